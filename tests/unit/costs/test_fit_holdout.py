"""Blocks, folds, and errors on what was held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avsim.costs.fit_holdout import (
    MIN_BLOCKS,
    Blocking,
    autocorrelation_time,
    compare_forms,
    cross_predict,
    groups,
    make_blocks,
    resample,
    summarise,
)
from avsim.costs.fit_samples import Samples, profile_samples, verify_samples
from avsim.errors import InputError
from tests.unit.costs.fit_cases import made_up


def samples_of(num_steps: int = 1000, correlation: float = 0.0) -> Samples:
    return verify_samples(made_up(num_steps, correlation=correlation), with_prefill=False)


def profile(counts: int = 5, sizes: int = 12) -> Samples:
    size = np.repeat(np.arange(1, sizes + 1), counts)
    return profile_samples("verify", size, size.astype(np.float64), (), np.arange(len(size)))


def test_the_autocorrelation_time_of_an_autoregression() -> None:
    rng = np.random.default_rng(0)
    x = np.zeros(60_000)
    for step in range(1, len(x)):
        x[step] = 0.8 * x[step - 1] + rng.normal()
    # Its relative standard error is √(2 (2M + 1) / n) with the window M = 5 τ (Sokal 1997): 5.5 %; four of them.
    assert autocorrelation_time(x) == pytest.approx(1.8 / 0.2, rel=0.22)
    assert autocorrelation_time(np.ones(50)) == 1.0


def test_blocks_are_stretches_of_time_that_no_fold_cuts() -> None:
    samples = samples_of()
    blocking = make_blocks(samples, np.ones(len(samples)), 0.2, 0)
    assert (np.diff(blocking.of) >= 0).all()
    assert blocking.num_folds == 5
    for block in range(blocking.num_blocks):
        rows = np.flatnonzero(blocking.of == block)
        assert np.ptp(rows) == len(rows) - 1
        assert len(set(blocking.fold[rows].tolist())) == 1
    shares = np.bincount(blocking.fold) / len(samples)
    assert shares == pytest.approx([0.2] * 5, abs=0.02)


def test_blocks_do_not_run_from_one_source_into_the_next() -> None:
    steps = made_up(105)
    joined = replace(steps, series=(np.arange(105) >= 45).astype(np.int64), row=np.r_[0:45, 0:60])
    blocking = make_blocks(verify_samples(joined, with_prefill=False), np.ones(105), 0.5, 0)
    assert blocking.of[44] != blocking.of[45]
    assert set(blocking.of[:45]) & set(blocking.of[45:]) == set()


def test_blocks_are_longer_where_timings_hang_together() -> None:
    plain, sticky = samples_of(4000), samples_of(4000, correlation=0.9)
    law = samples_of(4000).steps
    law_ms = 5 + 0.02 * law.tokens + 4e-5 * law.kv
    short = make_blocks(plain, plain.ms / law_ms, 0.2, 0)
    long = make_blocks(sticky, sticky.ms / law_ms, 0.2, 0)
    assert short.length is not None
    assert long.length is not None
    assert short.length <= 12
    assert long.length >= 5 * 1.9 / 0.1 * 0.7
    assert not long.too_short


def test_samples_of_a_profile_are_held_out_one_of_each_size() -> None:
    samples = profile()
    blocking = make_blocks(samples, np.ones(60), 0.2, 0)
    for fold in range(5):
        assert samples.size[blocking.fold == fold].tolist() == list(range(1, 13))
    other = make_blocks(samples, np.ones(60), 0.2, 1)
    assert other.fold.tolist() != blocking.fold.tolist(), "the seed draws which go together"
    single = make_blocks(profile(counts=1), np.ones(12), 0.2, 0)
    assert single.unit == "whole sizes"
    assert len(set(single.fold.tolist())) == 5


def test_no_prediction_comes_from_a_fit_that_saw_its_block() -> None:
    blocking = Blocking(np.arange(10) // 2, np.arange(10) // 2 % 5, 5, 5, "pairs")
    seen = []

    def predict(rows: np.ndarray) -> np.ndarray:
        seen.append(rows)
        return np.full(10, float(len(seen)))

    made = cross_predict(blocking, np.arange(10) != 3, predict)
    assert np.isnan(made[3])
    assert made[~np.isnan(made)].tolist() == [1, 1, 2, 3, 3, 4, 4, 5, 5]
    for fold, rows in enumerate(seen):
        assert not rows[blocking.fold == fold].any()
        assert rows.sum() == 8


def test_the_figures_of_known_errors() -> None:
    ms = np.array([1.0, 2.0, 4.0, 8.0, np.inf])
    predicted = np.array([1.1, 1.8, 4.0, 16.0, np.nan])
    blocking = Blocking(np.arange(5), np.arange(5), 5, 5, "rows")
    found = summarise("all", predicted, ms, np.ones(5, dtype=bool), resample(blocking, 0))
    assert found is not None
    assert found.num_samples == 4
    assert found.median_abs.value == pytest.approx(10.0)
    assert found.p95_abs.value == pytest.approx(np.percentile([0, 10, 10, 100], 95))
    assert found.bias.value == pytest.approx(5.0)
    assert found.total.value == pytest.approx(100 * (22.9 / 15 - 1))
    assert found.median_abs.low is None, f"{blocking.num_blocks} blocks are fewer than {MIN_BLOCKS}"
    assert summarise("none", predicted, ms, np.zeros(5, dtype=bool), resample(blocking, 0)) is None


def test_blocks_widen_the_interval_of_a_common_error() -> None:
    rng = np.random.default_rng(5)
    shared = np.repeat(rng.normal(scale=0.1, size=40), 25)
    predicted, ms = 1 + shared + rng.normal(scale=0.01, size=1000), np.ones(1000)
    wide, narrow = (
        summarise("all", predicted, ms, np.ones(1000, dtype=bool), resample(Blocking(of, of % 5, num, 5, ""), 0))
        for of, num in ((np.arange(1000) // 25, 40), (np.arange(1000), 1000))
    )
    assert wide is not None
    assert narrow is not None
    widths = [item.total.high - item.total.low for item in (wide, narrow)]  # type: ignore[operator]
    assert widths[0] == pytest.approx(2 * 1.96 * 10 / np.sqrt(40), rel=0.3)
    assert widths[0] > 3 * widths[1]


def test_which_form_is_closer() -> None:
    rng = np.random.default_rng(6)
    ms, of = np.ones(400), np.arange(400) // 10
    draws = resample(Blocking(of, of % 5, 40, 5, ""), 0)
    near, far = 1 + 0.01 * rng.normal(size=400), 1 + 0.05 * rng.normal(size=400)
    words = [compare_forms(a, b, ms, draws) for a, b in ((near, far), (far, near), (near, near[::-1]))]
    assert [item.word for item in words if item is not None] == ["curve", "linear", "not distinguishable"]
    assert compare_forms(np.full(400, np.nan), far, ms, draws) is None


def test_groups_cover_each_sample_once() -> None:
    samples = samples_of(300)
    for by in ("size", "context", "graph-mode", "time"):
        found = groups(samples, by)
        assert np.sum([rows for _, rows in found], axis=0).tolist() == [1] * 300, by
    assert [name for name, _ in groups(profile(sizes=20), "size")] == ["1–4 tokens", "5–16 tokens", "17–64 tokens"]


@pytest.mark.parametrize("by", ["context", "graph-mode", "time"])
def test_a_profile_cannot_be_grouped_by_what_it_does_not_say(by: str) -> None:
    with pytest.raises(InputError, match=f"--by {by} needs"):
        groups(profile(), by)
