"""Running rates, on published acceptance."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import PositionRate
from avsim.types import Observations, observe


def published(reference: Path, column: str) -> np.ndarray:
    """Return P(slot accepted) per drafted slot in units of 1/10,000, as vLLM PR #52992 prints it."""
    with (reference / "reference/pr52992_glm52_dspark16.csv").open(encoding="utf-8") as lines:
        return np.array([round(100 * float(row[column])) for row in csv.DictReader(lines)])


def blocks_with(counts: np.ndarray) -> np.ndarray:
    """Return A of 10,000 blocks in which slot k is accepted in counts[k] of them."""
    reached = np.concatenate([[10_000], counts, [0]])
    return np.repeat(np.arange(len(counts) + 1), -np.diff(reached))


def test_published_positions_give_the_published_acceptance_lengths(reference: Path) -> None:
    for column, expected in (("off_pct", 4.348), ("on_pct", 3.759)):
        accepted = blocks_with(published(reference, column))
        assert len(accepted) == 10_000
        assert round(1 + accepted.mean(), 3) == expected
        _, label = observe(np.full(10_000, 16), accepted, 16)
        assert round(1 + label.mean(axis=1).sum(), 3) == expected


def test_published_conditional_acceptance_rises_with_depth(reference: Path) -> None:
    accepted = blocks_with(published(reference, "off_pct"))
    estimator = PositionRate(prior_weight=1e-9)
    confidence = np.full((16, 10_000), 0.5, dtype=np.float32)
    observations = Observations.grade({}, confidence, np.full(10_000, 16), accepted, np.array([0, 10_000]))
    params, _ = estimator.refit(estimator.init(16), estimator.accumulate(estimator.zero_stats(16), observations))
    rate = params["rate"]
    assert round(float(rate[0]), 3) == 0.712
    assert round(float(rate.max()), 3) == 0.888
    top = int(rate.argmax())
    assert top == 11
    assert (np.diff(rate[: top + 1]) > 0).all()


def test_the_prior_counts_as_so_many_observations() -> None:
    estimator = PositionRate(prior=0.8, prior_weight=10)
    assert estimator.init(2)["rate"] == pytest.approx([0.8, 0.8])
    stats = {"accepted": np.array([10.0, 0.0]), "observed": np.array([10.0, 0.0])}
    params, kept = estimator.refit(estimator.init(2), stats)
    assert params["rate"] == pytest.approx([0.9, 0.8])
    assert kept["observed"].tolist() == [10.0, 0.0]


def test_a_discount_forgets_at_each_refit() -> None:
    estimator = PositionRate(discount=0.5)
    _, kept = estimator.refit(estimator.init(1), {"accepted": np.array([4.0]), "observed": np.array([8.0])})
    assert (kept["accepted"].tolist(), kept["observed"].tolist()) == ([2.0], [4.0])


@pytest.mark.parametrize(
    "options",
    [{"prior": 0.0}, {"prior": 1.0}, {"prior_weight": 0.0}, {"prior_weight": float("inf")}, {"discount": 0.0}],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="position-rate"):
        PositionRate(**options)
