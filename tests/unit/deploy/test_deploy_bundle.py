"""Bundles: what they learn, what they refuse, and that nothing in the file can be altered unseen."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from avsim import estimators
from avsim.comparison.scoring import predict_walk
from avsim.comparison.walk import recorded_walk
from avsim.deploy.bundle import Bundle, read_bundle, write_bundle
from avsim.deploy.make import FROZEN, make_bundle
from avsim.errors import InputError
from avsim.estimators.base import EstimatorState
from avsim.manifest import sha256_json
from avsim.sources import open_trace

TRACES = Path(__file__).parents[3] / "traces"
LIVE = TRACES / "smollm2-adaptive-live"
K = 3


def bundle(**changes):
    estimator = changes.pop("estimator", estimators.make("multi-logistic"))
    facts = {
        "num_speculative_tokens": K,
        "target": "t",
        "drafter": "d",
        "drafter_kind": "eagle",
        "draft_sampling": "greedy",
        "acceptance_rule": "standard",
    }
    return Bundle(estimator=estimator, state=changes.pop("state", estimator.start(K)), **facts | changes)


def rewritten(path: Path, change, *, rehash: bool) -> Path:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    if rehash:
        data["sha256"] = sha256_json({name: value for name, value in data.items() if name != "sha256"})
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def written(tmp_path) -> Path:
    write_bundle(bundle(), tmp_path / "b.json")
    return tmp_path / "b.json"


def test_a_bundle_comes_back_as_it_was(tmp_path):
    made = make_bundle([LIVE], "multi-logistic:half_life=300", target="my/target", drafter="my/drafter")
    write_bundle(made, tmp_path / "b.json")
    back = read_bundle(tmp_path / "b.json")
    assert back.sha256 == made.sha256
    assert (back.estimator, back.target, back.drafter, back.num_speculative_tokens) == (
        made.estimator,
        "my/target",
        "my/drafter",
        K,
    )
    for ours, theirs in ((back.state.params, made.state.params), (back.state.stats, made.state.stats)):
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value)
    assert back.traces[0]["content_hash"] == open_trace(LIVE).card.content_hash


def test_it_knows_what_the_estimator_knew_after_serving_the_trace():
    trace, estimator = open_trace(LIVE), estimators.make("bayes-logistic")
    table, walk = recorded_walk(trace, estimator.features)
    _, state = predict_walk(estimator, table, walk)
    made = make_bundle([LIVE], "bayes-logistic")
    np.testing.assert_array_equal(made.state.params["mean"], state.params["mean"])
    assert (made.state.refits, made.state.steps_since_refit) == (state.refits, state.steps_since_refit)
    assert made.learned == {
        "how": "replay",
        "steps": walk.num_steps,
        "blocks": len(walk.rows),
        "refits": state.refits,
        "frozen": False,
    }


def test_traces_are_learned_from_in_turn():
    once = make_bundle([TRACES / "smollm2-eagle-live"], "online-logistic")
    twice = make_bundle([TRACES / "smollm2-eagle-live"] * 2, "online-logistic")
    assert twice.state.refits in (2 * once.state.refits, 2 * once.state.refits + 1)
    assert len(twice.traces) == 2


def test_cold_and_frozen():
    cold = make_bundle([LIVE], "online-logistic", cold=True)
    assert cold.state.params["slope"] == np.float32(0.5)
    assert cold.state.refits == 0
    warm, frozen = (make_bundle([LIVE], "multi-logistic", freeze=freeze) for freeze in (False, True))
    np.testing.assert_array_equal(frozen.state.params["mean"], warm.state.params["mean"])
    assert frozen.estimator.refit_interval == FROZEN
    assert not any(value.any() for value in frozen.state.stats.values())


@pytest.mark.parametrize("rehash", [False, True])
def test_an_altered_coefficient_is_seen_unless_its_hash_was_altered_too(written, rehash):
    def change(data):
        data["estimator"]["state"]["params"]["mean"]["values"][0] = 7.0

    path = rewritten(written, change, rehash=rehash)
    if rehash:
        assert read_bundle(path).state.params["mean"][0] == 7.0
    else:
        with pytest.raises(InputError, match="altered"):
            read_bundle(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(format="avsim-deploy-bundle/9"), "reads avsim-deploy-bundle/1"),
        (lambda data: data["estimator"].update(name="nonsense"), "no estimator 'nonsense'"),
        (lambda data: data["estimator"]["options"].pop("half_life"), "other options.*half_life"),
        (lambda data: data["estimator"]["options"].update(half_life=-1.0), "half_life"),
        (lambda data: data.update(num_speculative_tokens=K + 1), "not one of multi-logistic at K = 4"),
        (lambda data: data.pop("drafter"), "malformed bundle.*drafter"),
        (lambda data: data["estimator"]["state"].update(steps_since_refit=32), "32 steps past a refit"),
        (lambda data: data["estimator"].update(name="position-rate", options={}), "has no kernels|other options"),
    ],
)
def test_what_does_not_fit_is_named(written, change, message):
    with pytest.raises(InputError, match=message):
        read_bundle(rewritten(written, change, rehash=True))


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a": 1}', "\0", '{"format": NaN}', "{"])
def test_other_files_are_no_bundles(tmp_path, text):
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"not a bundle|reads avsim-deploy-bundle"):
        read_bundle(tmp_path / "b.json")


def test_a_bundle_is_not_overwritten_by_accident(written):
    with pytest.raises(InputError, match="--overwrite"):
        write_bundle(bundle(), written)
    write_bundle(bundle(drafter="other"), written, overwrite=True)
    assert read_bundle(written).drafter == "other"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("position-rate", "has no kernels; those that have: online-logistic"),
        ("oracle-prob", "reads"),
        ("raw-confidence", "has no kernels"),
        ("bayes-logistic:explore=true", "no kernels for explore=True"),
        ("request-adaptive:predictive=posterior", "deploy with predictive=plug-in"),
    ],
)
def test_estimators_that_no_engine_can_run(spec, message):
    with pytest.raises(InputError, match=message):
        make_bundle([LIVE], spec)


def test_every_option_and_number_must_be_finite():
    with pytest.raises(InputError, match="half_life is inf"):
        bundle(estimator=estimators.make("multi-logistic:half_life=inf"))
    cold = estimators.make("multi-logistic").start(K)
    broken = {**cold.params, "mean": np.full_like(cold.params["mean"], math.nan)}
    with pytest.raises(InputError, match="not finite: mean"):
        bundle(state=EstimatorState(broken, cold.stats))


def test_traces_must_belong_together_and_hold_what_is_read(tmp_path):
    with pytest.raises(InputError, match="eagle-live: drafter is 'EAGLE-1"):
        make_bundle([LIVE, TRACES / "smollm2-eagle-live"], "online-logistic")
    with pytest.raises(InputError, match="reads entropy, log_odds, margin"):
        make_bundle([TRACES / "smollm2-ngram-live"], "multi-logistic")
    with pytest.raises(InputError, match="hold no refit"):
        make_bundle([LIVE], "online-logistic:refit_interval=100000")
    with pytest.raises(InputError, match="choose one"):
        make_bundle([LIVE], "online-logistic", cold=True, freeze=True)
    made_up = tmp_path / "made-up"
    shutil.copytree(LIVE, made_up)
    card = json.loads((made_up / "trace.json").read_text(encoding="utf-8"))
    (made_up / "trace.json").write_text(json.dumps(card | {"name": "synthetic-x", "synthetic": True}), encoding="utf-8")
    with pytest.raises(InputError, match="--allow-synthetic"):
        make_bundle([made_up], "online-logistic")
    assert make_bundle([made_up], "online-logistic", allow_synthetic=True).synthetic
