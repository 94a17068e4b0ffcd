"""Every word that a verdict can say, and the overhead that breaks a gain even."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.metrics.verdict import Verdict, break_even_overhead_ms, judge, with_overhead
from avsim.simulate import Totals


def totals(rates: np.ndarray, steps: int = 1000, step_ms: float = 10.0) -> Totals:
    ms = np.full(len(rates), steps * step_ms)
    zero = np.zeros(len(rates), dtype=np.int64)
    return Totals(np.full(len(rates), steps), zero, zero, zero, zero, np.rint(rates * ms).astype(np.int64), zero, ms)


def verdict(
    ratio: float, spread: float, *, sources: int = 60, overhead: float | None = 0.0, step_ms: float = 10
) -> Verdict:
    noise = np.exp(np.r_[0.0, spread * np.random.default_rng(0).standard_normal(200)])
    return judge("a", "b", totals(7 * ratio * noise, step_ms=step_ms), totals(np.full(201, 7.0)), sources, overhead)


@pytest.mark.parametrize(
    ("ratio", "spread", "word"),
    [
        (1.10, 0.01, "gain"),
        (0.90, 0.01, "loss"),
        (1.01, 0.01, "not distinguishable"),
        (0.99, 0.01, "not distinguishable"),
    ],
)
def test_words_follow_the_interval(ratio: float, spread: float, word: str) -> None:
    got = verdict(ratio, spread)
    assert got.word == word
    assert got.low < got.ratio < got.high
    assert got.ratio == pytest.approx(ratio, rel=1e-3)
    assert np.log(got.high / got.ratio) == pytest.approx(1.96 * spread, rel=0.15)


def test_few_sources_give_no_verdict() -> None:
    assert verdict(2.0, 0.001, sources=29).word == "not enough requests"


def test_a_gain_that_the_published_overhead_erases_is_withheld() -> None:
    assert verdict(1.10, 0.001, overhead=None).word == "gain withheld"  # 1.3 ms of 10 is more than 10 %
    assert verdict(1.20, 0.001, overhead=None).word == "gain"
    assert verdict(1.10, 0.001, overhead=None, step_ms=100).word == "gain"


def test_a_known_overhead_is_charged() -> None:
    assert verdict(1.10, 0.001, overhead=0.5).ratio == pytest.approx(1.10 * 10 / 10.5, rel=1e-3)
    assert verdict(1.10, 0.001, overhead=2.0).word == "loss"


def test_break_even_overhead_breaks_even() -> None:
    policy, baseline = totals(np.array([7.7])), totals(np.array([7.0]))
    margin = break_even_overhead_ms(policy, baseline)
    assert margin == pytest.approx(1.0)
    assert with_overhead(policy, margin)[0] == pytest.approx(baseline.throughput_tok_s[0])
    assert break_even_overhead_ms(baseline, policy) < 0
