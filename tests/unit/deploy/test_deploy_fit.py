"""Which engines take which bundles, and what the environment may ask for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from avsim import estimators
from avsim.deploy.bundle import Bundle
from avsim.deploy.config import DeployConfig
from avsim.deploy.fit import unfit_bundle, unfit_engine
from avsim.errors import InputError

K = 3
FACTS = {
    "num_speculative_tokens": K,
    "target": "t",
    "drafter": "d",
    "drafter_kind": "eagle",
    "draft_sampling": "greedy",
    "acceptance_rule": "standard",
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
}


def bundle(**changes):
    estimator = estimators.make("online-logistic")
    names = [name for name in FACTS if not name.startswith("max_")]
    held = {name: FACTS[name] for name in names} | changes
    return Bundle(estimator=estimator, state=estimator.start(held["num_speculative_tokens"]), **held)


def table(**changes):
    return {"engine": {"max_num_seqs": 64, "max_num_batched_tokens": 8192} | changes}


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0", "0.32.0+cpu"])
def test_a_bundle_for_this_engine(version):
    assert unfit_bundle(bundle(cost_table=table()), FACTS, version) is None


@pytest.mark.parametrize(
    ("changes", "facts", "version", "message"),
    [
        ({}, {"num_speculative_tokens": 5}, "0.33.0", "the bundle's num_speculative_tokens is 3, the engine's 5"),
        ({}, {"drafter": "other"}, "0.33.0", "the bundle's drafter is 'd', the engine's 'other'"),
        ({}, {"drafter_kind": "mtp"}, "0.33.0", "kind of drafter"),
        ({}, {"target": "T"}, "0.33.0", "target model"),
        ({}, {"draft_sampling": "probabilistic"}, "0.33.0", "draft sampling"),
        ({}, {"acceptance_rule": "block"}, "0.33.0", "acceptance rule"),
        ({}, {}, "0.34.0", "for vLLM 0.32.0 and 0.33.0, and this is 0.34.0"),
        ({"engine_versions": ("0.33.0",)}, {}, "0.32.0", "for vLLM 0.33.0"),
        ({"avsim_version": "0.0.1"}, {}, "0.33.0", "made by avsim 0.0.1"),
        ({"cost_table": table(max_num_seqs=32)}, {}, "0.33.0", "max_num_seqs 32, the engine has 64"),
        ({"cost_table": table(max_num_batched_tokens=1)}, {}, "0.33.0", "max_num_batched_tokens 1"),
    ],
)
def test_a_bundle_for_another_engine(changes, facts, version, message):
    assert message in (unfit_bundle(bundle(**changes), FACTS | facts, version) or "")


def test_greedy_drafts_are_judged_alike_under_both_names_of_the_rule():
    held = bundle(acceptance_rule="greedy-match")
    assert unfit_bundle(held, FACTS, "0.33.0") is None
    sampled = FACTS | {"draft_sampling": "probabilistic"}
    held = bundle(acceptance_rule="greedy-match", draft_sampling="probabilistic")
    assert "acceptance rule" in (unfit_bundle(held, sampled, "0.33.0") or "")
    assert "acceptance rule" in (unfit_bundle(bundle(acceptance_rule="block"), FACTS, "0.33.0") or "")


def engine(**changes):
    speculator = SimpleNamespace(enable_adaptive_verification=True, acceptance_estimator=object())
    held = {
        "speculator": speculator,
        "speculative_config": SimpleNamespace(rejection_sample_method="standard"),
        "parallel_config": SimpleNamespace(pipeline_parallel_size=1, prefill_context_parallel_size=1),
        "lora_config": None,
    }
    return SimpleNamespace(**held | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculator": None}, "speculative decoding is off"),
        ({"speculator": SimpleNamespace(enable_adaptive_verification=False)}, "adaptive verification is off"),
        (
            {"speculator": SimpleNamespace(enable_adaptive_verification=True, acceptance_estimator=None)},
            "confidence head",
        ),
        ({"parallel_config": SimpleNamespace(pipeline_parallel_size=2)}, "pipeline parallelism"),
        (
            {"parallel_config": SimpleNamespace(pipeline_parallel_size=1, prefill_context_parallel_size=2)},
            "prefill context",
        ),
        ({"lora_config": object()}, "LoRA"),
        ({"speculative_config": SimpleNamespace(rejection_sample_method="synthetic")}, "synthetic"),
    ],
)
def test_engines_that_take_no_estimator(changes, message):
    assert unfit_engine(engine()) is None
    assert message in (unfit_engine(engine(**changes)) or "")


def test_every_variable_is_read():
    environ = {
        "AVSIM_DEPLOY": "/b.json",
        "AVSIM_DEPLOY_MODE": "On",
        "AVSIM_DEPLOY_REPORT": "/r.json",
        "AVSIM_DEPLOY_REPORT_SECONDS": "2.5",
    }
    assert DeployConfig.from_env(environ) == DeployConfig(
        bundle=Path("/b.json"), mode="on", report=Path("/r.json"), report_seconds=2.5
    )
    assert DeployConfig.from_env({"AVSIM_DEPLOY_MODE": "nonsense"}) is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AVSIM_DEPLOY_MODE", "yes", "AVSIM_DEPLOY_MODE is 'yes'; it must be on, shadow or off"),
        ("AVSIM_DEPLOY_REPORT_SECONDS", "0", "above 0"),
        ("AVSIM_DEPLOY_REPORT_SECONDS", "soon", "above 0"),
        ("AVSIM_DEPLOY_REPORT_SECONDS", "nan", "above 0"),
        ("AVSIM_DEPLOY_ALLOCATE", "topk", "AVSIM_DEPLOY_ALLOCATE is 'topk'; it must be vllm or avsim"),
        ("AVSIM_DEPLOY_MOD", "on", "did you mean 'AVSIM_DEPLOY_MODE'"),
    ],
)
def test_bad_values_are_named(variable, value, message):
    with pytest.raises(InputError, match=message):
        DeployConfig.from_env({"AVSIM_DEPLOY": "/b.json", variable: value})
