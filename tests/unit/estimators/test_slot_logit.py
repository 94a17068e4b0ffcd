"""slot-logit: online-logistic's arithmetic on the drawn token's log-odds."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import OnlineLogistic, SlotLogit
from avsim.estimators.base import EstimatorState
from avsim.features import log_odds_from_log_prob
from avsim.testing.estimator_interface import same_state
from avsim.testing.stream import Stream, drive, make_stream

OPTIONS = {"slope": 0.7, "intercept": 0.1, "l2": 1e-2, "damping": 20.0, "refit_interval": 30}


def twins() -> tuple[Stream, Stream]:
    """Return the same stream with the drawn tokens' log-probabilities, and with their log-odds as `log_odds`."""
    drawn = make_stream(("draft_logprob",), seed=4)
    odds = make_stream(("log_odds",), seed=4)
    odds.features["log_odds"][:] = log_odds_from_log_prob(drawn.features["draft_logprob"])
    return drawn, odds


def test_it_is_online_logistic_on_the_drawn_tokens_log_odds() -> None:
    drawn, odds = twins()
    found, expected = drive(SlotLogit(**OPTIONS), drawn), drive(OnlineLogistic(**OPTIONS), odds)
    assert found.state.refits == 11
    assert np.array_equal(found.confidence, expected.confidence)
    assert same_state(found.state, expected.state)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_is_handed_on(name: str) -> None:
    drawn, _ = twins()
    changed: EstimatorState = drive(SlotLogit(**{name: OPTIONS[name]}), drawn).state
    assert not same_state(changed, drive(SlotLogit(), drawn).state)


def test_it_reads_the_slots_own_token_and_says_so() -> None:
    estimator = SlotLogit()
    assert estimator.uses_drawn_token
    assert not estimator.uses_truth
    likely, unlikely = (np.full((1, 1), value, dtype=np.float32) for value in (-0.1, -5.0))
    first = estimator.predict(estimator.init(1), {"draft_logprob": likely}, (1, 1))
    second = estimator.predict(estimator.init(1), {"draft_logprob": unlikely}, (1, 1))
    assert first > second


def test_a_certain_draft_is_finite() -> None:
    features = {"draft_logprob": np.zeros((2, 1), dtype=np.float32)}
    p = SlotLogit().predict(SlotLogit().init(2), features, (2, 1))
    assert p == pytest.approx(np.ones((2, 1)), abs=1e-6)


@pytest.mark.parametrize("options", [{"l2": 0.0}, {"damping": -1.0}, {"slope": np.nan}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="slot-logit: l2 must be > 0, damping and slope ≥ 0"):
        SlotLogit(**options)
