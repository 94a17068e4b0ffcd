"""The classes themselves; `test_check.py` holds them against enumeration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from avsim import estimators, policies
from avsim.estimators import OracleLabel, PositionRate
from avsim.lossless import classify
from avsim.policies import Oracle, Policy


@dataclass(frozen=True)
class DrawnToken(PositionRate):
    name: ClassVar[str] = "drawn-token"
    uses_drawn_token: ClassVar[bool] = True

    @property
    def features(self) -> tuple[str, ...]:
        return ("draft_logprob",)


def sampled(policy: str, estimator: str | None = "online-logistic", lag: int = 1, left_out: bool = False) -> str | None:
    """Return why sampled drafts are lossy, or None if they are not."""
    score = None if estimator is None else estimators.make(estimator)
    found = classify(policies.make(policy), score, lag, "probabilistic", left_out=left_out)
    assert found.reason
    return None if found.exact else found.reason


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize(
    "policy",
    ["none", "fixed:2", "prefix-scheduler", "batch-schedule:1-4:2/5-:0", "goodput", "threshold:0.5"],
)
def test_rules_that_are_exact_at_every_lag(policy: str, lag: int) -> None:
    assert sampled(policy, lag=lag) is None
    assert sampled(policy, lag=lag, left_out=True) is None


SIZED = ["adaptive", "adaptive:floor=1,hide_trimmed=true", "adaptive+skip", "renewal", "slo:30"]


@pytest.mark.parametrize("policy", SIZED)
def test_rules_that_size_are_exact_on_old_confidences_only(policy: str) -> None:
    assert sampled(policy, lag=1) is None
    assert sampled(policy, lag=2) is None
    assert "global argmax on live confidences" in (sampled(policy, lag=0) or "")


@pytest.mark.parametrize("policy", SIZED)
def test_a_request_left_out_of_a_step_is_a_leak_of_rules_that_size(policy: str) -> None:
    reason = sampled(policy, lag=1, left_out=True) or ""
    assert "left out of one step" in reason
    assert "global argmax" in reason


def test_a_global_maximum_is_lossy_at_every_lag() -> None:
    assert "global argmax" in (sampled("prefix-scheduler:early_stop=false", lag=1) or "")


@pytest.mark.parametrize("policy", ["adaptive", "prefix-scheduler"])
def test_a_score_of_the_drawn_token_is_lossy_where_it_is_read(policy: str) -> None:
    found = classify(policies.make(policy), DrawnToken(), 1, "probabilistic")
    assert (found.exact, found.reason) == (False, "estimator drawn-token reads the drawn token")
    assert classify(policies.make("fixed:2"), DrawnToken(), 1, "probabilistic").exact


def test_a_score_that_reads_no_draft_cannot_leak() -> None:
    assert sampled("adaptive", "position-rate", lag=0) is None
    assert sampled("adaptive", "position-rate", left_out=True) is None


def test_who_reads_the_verdict_is_lossy() -> None:
    assert sampled("oracle", None) == "it reads the verdict"
    assert sampled("oracle:exact", None) == "it reads the verdict"
    assert sampled("oracle+skip", None) == "it reads the verdict"


def test_greedy_drafts_are_exact_whatever_reads_them() -> None:
    pairs: list[tuple[Policy, estimators.Estimator | None]] = [
        (policies.make("adaptive"), OracleLabel()),
        (policies.make("prefix-scheduler:early_stop=false"), DrawnToken()),
        (Oracle(), None),
    ]
    for policy, score in pairs:
        assert classify(policy, score, 0, "greedy", left_out=True).exact
        assert not classify(policy, score, 0, "probabilistic").exact
