"""DSpark's appendix A, the losslessness side: what its one request emits, enumerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from avsim.costs import CostTables
from avsim.estimators.base import Arrays, Estimator
from avsim.lossless.admission import Surroundings, admit, confidences
from avsim.lossless.enumerate import enumerate_outcomes, total_variation
from avsim.lossless.models import ToyLaws
from avsim.policies import PrefixScheduler
from avsim.types import F32Array, Features


@dataclass(frozen=True)
class Alpha(Estimator):
    """p_k = α_k: the best score that reads no drawn token of its own slot."""

    name: ClassVar[str] = "alpha"

    @property
    def features(self) -> tuple[str, ...]:
        return ("alpha",)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return features["alpha"]


def appendix_a() -> tuple[ToyLaws, Surroundings]:
    """One request, two slots: a₁ = 0.8, and c₂ = 0.9 after the first token, 0.1 after the other."""
    target = (
        np.array([[[[0.7, 0.3]]]]),
        np.array([[[[0.6, 0.4], [0.95, 0.05]]]]),
        np.full((1, 1, 4, 2), 0.5),
    )
    drafter = (np.array([[[[0.5, 0.5]]]]), np.array([[[[0.5, 0.5], [0.05, 0.95]]]]))
    laws = ToyLaws(target, drafter, tuple(map(np.log, drafter)), (np.ones((1, 1, 1)), np.ones((1, 1, 2))))
    steps_per_s = np.array([np.inf, 1.0, 0.5, 0.45])
    tables, new = CostTables(np.zeros(2), 1 / steps_per_s), np.ones((2, 1, 1), np.float32)
    return laws, Surroundings(tables, np.array([0]), np.zeros((1, 1), np.float32), new, np.array([[2]]))


def run(policy: PrefixScheduler) -> tuple[list[int], float]:
    """Return what is admitted after each of the four drafts, and the total variation."""
    laws, surroundings = appendix_a()
    outcomes = enumerate_outcomes(laws)
    live = confidences(Alpha(), {}, np.zeros((0, 1), np.float32), laws, outcomes)
    assert live[:, 0, 0, [0, 2]].tolist() == pytest.approx(np.array([[0.8, 0.8], [0.9, 0.1]]))
    admitted = admit(policy, outcomes, live, live, surroundings)
    return admitted[0, :, 0].tolist(), float(total_variation(laws, outcomes, admitted)[0])


def test_early_stop_admits_nothing_and_is_exact() -> None:
    admitted, distance = run(PrefixScheduler())
    assert admitted == [0, 0, 0, 0]
    assert distance < 1e-15


def test_the_retrospective_maximum_changes_the_distribution() -> None:
    """It verifies the first slot only if token 0 was drawn there, and then always accepts it, as 0.7 > 0.5.

    So P(first token = 0) = 0.5 + 0.5 · 0.7 = 0.85 in place of 0.7; what follows it is as it should be.
    """
    admitted, distance = run(PrefixScheduler(early_stop=False))
    assert admitted == [2, 2, 0, 0]
    assert distance == pytest.approx(0.15, abs=1e-12)
