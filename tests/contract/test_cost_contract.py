from __future__ import annotations

import json
from dataclasses import replace

import broken_costs as broken
import pytest
from contract_cases import failures, parametrised, unneeded

from avsim import costs
from avsim.testing import COST_CHECKS

CARD = costs.CostCard("made-up", model="none", hardware="none", kind="synthetic", source="this test")
VERIFY = ((1, 1.0), (4, 0.9), (8, 2.0), (16, 2.5), (64, 12.0), (128, 30.0))
DRAFT = ((1, 0.1), (8, 0.3), (32, 0.2), (64, 0.5))
CURVE = {"verify": VERIFY, "draft": DRAFT, "capture_limit": 16, "card": CARD}
LINE = {
    "fixed_ms": 5.9,
    "per_token_us": 21.0,
    "per_kv_token_ns": 39.3,
    "draft_fixed_ms": 2.1,
    "draft_per_kv_token_ns": 2.4,
    "draft_per_request_token_us": 0.8,
    "card": CARD,
}

PARTS = costs.DraftParts("autoregressive", 3, 0.3, 2.0, 1.0, 0.2, 0.5, 2.0)
BLOCK = costs.DraftParts("block", 4, first_per_token_us=1.0, next_ms=0.4, next_per_token_us=0.7)
LOOKUP = costs.DraftParts("ngram", 5, next_ms=0.05)

NO_SIZES = dict.fromkeys(
    ("check_flags_outside", "check_running_maximum", "check_flat_between_captured", "check_keeps_jump"),
    "it has no measured sizes of its own",
)


def case(model):
    return model, {} if isinstance(model, costs.CurveCost) else NO_SIZES


def estimate(**options):
    return costs.load("roofline:" + ",".join(f"{key}={value}" for key, value in options.items()))


CASES = [
    case(costs.CurveCost(**CURVE)),
    case(costs.CurveCost(**CURVE | {"capture_limit": 0}, overhead_ms=0.4)),
    case(costs.CurveCost(**CURVE | {"capture_limit": 128})),
    case(costs.CurveCost(verify=((8, 3.0),), draft=((4, 1.0),), card=CARD)),
    case(costs.LinearCost(**LINE)),
    case(costs.LinearCost(fixed_ms=0.0, per_token_us=10.0, overhead_ms=2.0, card=CARD)),
    case(costs.CurveCost(verify=VERIFY, draft=(), draft_parts=PARTS, capture_limit=16, card=CARD)),
    case(costs.CurveCost(**CURVE, per_kv_token_ns=30.0, skip_ms=0.05)),
    case(costs.LinearCost(fixed_ms=2.0, per_token_us=10.0, draft_parts=BLOCK, card=CARD)),
    case(costs.LinearCost(fixed_ms=2.0, per_token_us=10.0, draft_parts=LOOKUP, card=CARD)),
    case(costs.LinearCost(**LINE, skip_ms=0.5)),
    case(estimate(model="llama-3.1-8b", gpu="h100")),
    case(estimate(model="llama-3.1-8b", gpu="h100", drafter="eagle", overlap="false", overhead_ms=0.3)),
    case(estimate(model="qwen3-8b", gpu="l40s", drafter="dflash", context=4000, cpu_ms=8)),
    case(estimate(model="qwen3-30b-a3b", gpu="a100", drafter="dspark", eager_us_per_layer=900)),
    case(estimate(model="deepseek-v3", gpu="h200", tp=8, drafter="mtp", head="false")),
    case(estimate(model="deepseek-v4-flash", gpu="b300", tp=4, drafter="dspark", capture_limit=1024)),
    case(estimate(model="gpt-oss-120b", gpu="mi300x", drafter="eagle3", dtype="fp4", expert_correlation=1)),
    case(estimate(model="llama-3.1-70b", gpu="h200", tp=2, drafter="draft-model", drafter_model="llama-3.1-8b")),
    case(estimate(model="llama-3.1-8b", gpu="b200", drafter="ngram", capture_limit=0)),
    case(costs.load("noisy:base=llama-3.1-8b-h100-eagle,sd=0.2,drift_pct=30")),
    case(costs.load("distorted:base=deepseek-v4-flash-tp4-b300,tilt_pct=-20,jitter=0.1,scale=0.8,draft_scale=2")),
    case(costs.load("distorted:base=deepseek-v4-flash-tp4-b300,no_cliff=true,spike_tokens=64")),
    *(case(costs.load(name)) for name in costs.presets()),
]

BROKEN = [
    (broken.FreeIdle(**LINE), {"check_positive", "check_tables"}),
    (broken.PaysLargest(**CURVE), {"check_elementwise", "check_running_maximum"}),
    (
        broken.TrustsMedians(**CURVE | {"capture_limit": 0}),
        {"check_monotone_tokens", "check_monotone_requests", "check_running_maximum"},
    ),
    (broken.SharesDraft(**LINE), {"check_monotone_requests"}),
    (broken.DiscountsDepth(**LINE), {"check_monotone_depth"}),
    (broken.TaxesSkipping(**LINE), {"check_monotone_depth"}),
    (broken.PaysForFewLogits(**LINE), {"check_monotone_logits"}),
    (broken.TablesFirstPassTwice(fixed_ms=2.0, per_token_us=10.0, draft_parts=PARTS, card=CARD), {"check_tables"}),
    (broken.TablesOneDepth(fixed_ms=2.0, per_token_us=10.0, draft_parts=PARTS, card=CARD), {"check_tables"}),
    (broken.CreditsCache(**LINE), {"check_monotone_kv"}),
    (broken.SkipsOverhead(**LINE), {"check_step_is_a_sum"}),
    (broken.ForgetsOverhead(**LINE), {"check_json"}),
    (broken.ShiftsTable(**LINE), {"check_tables"}),
    (broken.FlagsWrongSide(**CURVE), {"check_outside_is_none_or_reason", "check_flags_outside"}),
    (broken.NeverOutside(**CURVE), {"check_flags_outside"}),
    (broken.Interpolates(**CURVE), {"check_flat_between_captured"}),
    (broken.SmoothsCliff(**CURVE), {"check_keeps_jump"}),
]


def test_every_registered_cost_model_is_covered():
    assert {type(model) for model, _ in CASES} == set(costs.BUILTIN.values())


@pytest.mark.parametrize(("model", "check"), parametrised(CASES, COST_CHECKS))
def test_cost_contract(model, check):
    check(model)


@pytest.mark.parametrize(("model", "opt_outs"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_cost_opt_outs_are_needed(model, opt_outs):
    assert not unneeded(COST_CHECKS, model, opt_outs)


@pytest.mark.parametrize(("model", "expected"), BROKEN, ids=[type(model).__name__ for model, _ in BROKEN])
def test_broken_cost_models_are_caught(model, expected):
    assert failures(COST_CHECKS, model, case(model)[1]) == expected


def test_every_cost_check_catches_something():
    assert set().union(*(caught for _, caught in BROKEN)) == {check.__name__ for check in COST_CHECKS}


def test_a_cost_model_survives_dump_and_parse():
    for model, _ in CASES:
        changed = replace(model, overhead_ms=0.125)
        assert costs.parse(json.dumps(costs.dump(changed)), "test") == changed
