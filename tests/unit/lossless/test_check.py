"""Classes against enumeration: every combination of the table, and subjects that lie about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.errors import InputError
from avsim.estimators import OnlineLogistic, RawConfidence
from avsim.estimators.base import Arrays
from avsim.lossless.cases import Case, Settings, default_cases
from avsim.lossless.check import check_case
from avsim.policies import Adaptive, FixedDepth, PrefixScheduler
from avsim.types import F32Array, Features
from tests.lossy_scores import OwnToken

SMALL = Settings(models=200)
CASES, LEFT = default_cases(SMALL)


def title(case: Case) -> str:
    score = case.estimator.name if case.estimator else "-"
    return f"{case.policy.name}-{score}-{case.lag}-{case.draft_sampling}" + "-left-out" * case.left_out


@pytest.mark.parametrize("case", CASES, ids=title)
def test_every_combination_is_what_its_class_says(case: Case) -> None:
    row = check_case(case, SMALL)
    assert row["passed"], row
    if row["expected"]["exact"]:
        assert row["largest_total_variation"] < 1e-12
        assert row["models_off"] == 0
    else:
        assert row["largest_total_variation"] > 1e-3
        assert row["models_off"] >= 1


def test_every_registered_estimator_and_policy_is_asked() -> None:
    asked = {case.estimator.name for case in CASES if case.estimator is not None}
    assert asked | {note.split()[0] for note in LEFT} == set(estimators.available())
    assert {case.policy.name for case in CASES} >= {name for name, cls in policies.available().items() if cls}


@dataclass(frozen=True)
class SlyPolicy(Adaptive):
    """Claims to be exact on live confidences."""

    name: ClassVar[str] = "sly-policy"

    def lossy(self, lag: int) -> str | None:
        return None


@dataclass(frozen=True)
class NeedsOptions(FixedDepth):
    """A policy of another package that has no default depth."""

    name: ClassVar[str] = "needs-options"


@dataclass(frozen=True)
class OtherRule(SlyPolicy):
    """A policy of another package."""

    name: ClassVar[str] = "other-rule"


def test_policies_of_other_packages_are_asked_if_they_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies.BUILTIN, "needs-options", NeedsOptions)
    monkeypatch.setitem(policies.BUILTIN, "other-rule", OtherRule)
    cases, left = default_cases(SMALL)
    assert len(cases) == len(CASES) + 1
    assert OtherRule() in [case.policy for case in cases]
    assert "needs-options needs options: name it with --policy" in left


def test_both_classes_and_both_kinds_of_drafts_are_in_the_table() -> None:
    kinds = {(case.expected.exact, case.draft_sampling) for case in CASES}
    assert kinds == {(True, "probabilistic"), (False, "probabilistic"), (True, "greedy")}
    assert sum(case.left_out for case in CASES) == 2


def test_exact_combinations_are_no_tautology() -> None:
    """On many models, what is admitted depends on what was drawn; and yet the distribution stays."""
    for case in (Case(Adaptive(), OnlineLogistic()), Case(PrefixScheduler(), OnlineLogistic())):
        assert check_case(case, SMALL)["models_admission_varies"] >= 15


@pytest.mark.parametrize(("slots", "vocab"), [(1, 4), (3, 2)])
def test_other_sizes(slots: int, vocab: int) -> None:
    settings = Settings(models=60, num_slots=slots, vocab=vocab)
    assert check_case(Case(Adaptive(), OnlineLogistic()), settings)["largest_total_variation"] < 1e-12
    assert check_case(Case(PrefixScheduler(), OnlineLogistic()), settings)["passed"]
    # With one slot a live confidence is a function of the past: nothing can leak.
    leak = check_case(Case(Adaptive(), OnlineLogistic(), lag=0), settings)["largest_total_variation"]
    assert (leak > 1e-3) == (slots > 1)


@dataclass(frozen=True)
class EarlierTokens(RawConfidence):
    """Reads the drawn tokens of earlier slots only, which it may."""

    name: ClassVar[str] = "earlier-tokens"

    @property
    def features(self) -> tuple[str, ...]:
        return ("draft_logprob",)

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        drawn = np.exp(np.minimum(features["draft_logprob"], 0))
        return np.concatenate([np.full_like(drawn[:1], 0.6), drawn[:-1]])


@dataclass(frozen=True)
class Coarse(RawConfidence):
    """Rounds to quarters, so that survivals tie within and across requests."""

    name: ClassVar[str] = "coarse"

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return np.round(super().predict(params, features, shape) * 4) / np.float32(4)


@dataclass(frozen=True)
class Scaremonger(FixedDepth):
    """Claims to be lossy, and is not."""

    name: ClassVar[str] = "scaremonger"

    def lossy(self, lag: int) -> str | None:
        return "so it says"


def test_a_rule_that_hides_its_leak_fails() -> None:
    row = check_case(Case(SlyPolicy(), OnlineLogistic(), lag=0), SMALL)
    assert row["expected"]["exact"]
    assert not row["passed"]
    assert check_case(Case(SlyPolicy(), OnlineLogistic(), lag=1), SMALL)["passed"]


def test_a_score_that_hides_its_leak_fails() -> None:
    row = check_case(Case(Adaptive(), OwnToken()), SMALL)
    assert row["expected"]["exact"]
    assert row["largest_total_variation"] > 1e-3
    assert not row["passed"]


def test_drawn_tokens_of_earlier_slots_may_be_read() -> None:
    row = check_case(Case(Adaptive(), EarlierTokens()), SMALL)
    assert row["passed"]
    assert row["models_admission_varies"] > 0


@pytest.mark.parametrize("policy", [Adaptive(), PrefixScheduler(), Adaptive(explore=0.5)], ids=str)
def test_ties_are_broken_without_looking_ahead(policy: Adaptive | PrefixScheduler) -> None:
    row = check_case(Case(policy, Coarse()), SMALL)
    assert row["passed"], row
    assert row["models_admission_varies"] > 0


def test_a_leak_that_is_not_there_fails() -> None:
    row = check_case(Case(Scaremonger(k=2)), SMALL)
    assert not row["expected"]["exact"]
    assert not row["passed"]


def test_reading_coins_is_lossy_even_with_greedy_drafts() -> None:
    """Why those who read verdicts are asked at temperature 0: above it, the verdict is more than draft and prefix."""
    case = Case(policies.Oracle("exact"), draft_sampling="greedy")
    assert not check_case(case, SMALL)["passed"]
    assert Case(policies.Oracle("exact")).greedy().greedy_target
    assert check_case(Case(policies.Oracle("exact")).greedy(), SMALL)["passed"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Settings(models=0), "at least 1"),
        (lambda: Settings(vocab=1), "vocabulary at least 2"),
        (lambda: Settings(num_slots=5), "59049 joint drafts"),
        (lambda: Case(Adaptive()), "needs an estimator"),
        (lambda: Case(FixedDepth(k=1), lag=-1), "lag"),
        (lambda: check_case(Case(FixedDepth(k=3)), SMALL), "fixed:3 needs 3 draft slots"),
    ],
)
def test_bad_settings(make, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=said):
        make()
