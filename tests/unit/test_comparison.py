"""Offline comparison: same rows for all, learning from what was verified only, and the known order of estimators."""

from __future__ import annotations

import pytest

from avsim import estimators, policies
from avsim.comparison import compare
from avsim.costs import CostModel
from avsim.errors import InputError
from avsim.simulate import Arm
from avsim.sources import Trace

NAMES = ("online-logistic", "position-rate", "raw-confidence", "oracle-label")


@pytest.mark.parametrize("admission", ["full", "adaptive"])
def test_every_estimator_is_scored_on_the_same_slots(admission: str, sampled: Trace, b300: CostModel) -> None:
    arm = None if admission == "full" else Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    result = compare(
        sampled, [estimators.make(name) for name in NAMES], admission=arm, cost=b300, what_if=True, bootstrap=100
    )
    rows = {row["estimator"]: row for row in result["rows"]}
    assert len({row["conditional"]["count"] for row in rows.values()}) == 1
    assert len({row["cumulative"]["count"] for row in rows.values()}) == 1
    losses = {name: row["conditional"]["log_loss"] for name, row in rows.items()}
    # Sampled drafts: max q says little about the drawn token until it is calibrated.
    assert losses["oracle-label"] < losses["online-logistic"] < losses["raw-confidence"]
    assert rows["position-rate"]["log_loss_change_low_pct"] > 0
    assert rows["online-logistic"]["refits"] >= 7
    assert not rows["oracle-label"]["attainable"]


def test_censored_learning_leaves_deep_slots_to_their_prior(greedy: Trace) -> None:
    """fixed:1 verifies one slot: deeper ones are never labelled, but they are scored."""
    arm = Arm(policies.make("fixed:1"))
    result = compare(greedy, [estimators.make("position-rate:prior=0.3")], admission=arm, bootstrap=100)
    slots = result["rows"][0]["conditional"]["slots"]
    assert slots[0]["mean_confidence"] != pytest.approx(0.3, abs=0.01)
    for slot in slots[1:]:
        assert slot["mean_confidence"] == pytest.approx(0.3, abs=2e-4)
        assert slot["count"] > 0


def test_a_ranking_admission_needs_step_costs_and_consent_to_foreign_ones(greedy: Trace, b300: CostModel) -> None:
    ours = estimators.make("online-logistic")
    arm = Arm(policies.make("adaptive"), ours)
    with pytest.raises(InputError, match="needs step costs"):
        compare(greedy, [ours], admission=arm)
    with pytest.raises(InputError, match="--what-if"):
        compare(greedy, [ours], admission=arm, cost=b300)
    result = compare(greedy, [ours], admission=arm, cost=b300, what_if=True, bootstrap=100)
    assert (result["what_if"], result["cost"]) == (True, "deepseek-v4-flash-tp4-b300")
    assert compare(greedy, [ours], bootstrap=100)["cost"] is None


def test_nothing_to_compare_is_named(greedy: Trace) -> None:
    with pytest.raises(InputError, match="at least one estimator"):
        compare(greedy, [])
