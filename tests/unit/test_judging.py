"""What is said of simulated arms beside verdicts: the price of a wrong belief, the cliff's share, and overhead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avsim.config import ReplayConfig
from avsim.costs import CostCard, CurveCost, dump, load
from avsim.judging import _share, pick_measures
from avsim.manifest import json_text
from avsim.metrics.serving import Measures
from avsim.report.serving import belief_sentences, cliff_sentences
from avsim.runs import run_replay
from avsim.simulate import Totals, Work
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

CARD = CostCard("toy", "toy", "toy", "synthetic", "a test", vocab_size=1000)
# Flat and cheap up to 24 tokens, then ten times as dear.
CLIFF = CurveCost(
    verify=((1, 5.0), (8, 5.2), (16, 5.4), (24, 5.6), (32, 56.0), (64, 57.0)),
    draft=((1, 0.2), (64, 0.4)),
    capture_limit=24,
    card=CARD,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judging")
    law = SyntheticLaw(kind="dense", num_requests=64, output_len=24, num_speculative_tokens=3)
    write_synthetic(folder / "trace", law)
    (folder / "cliff.json").write_text(json_text(dump(CLIFF)))
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> ReplayConfig:
    return ReplayConfig(
        trace=str(folder / "trace"),
        cost=str(folder / "cliff.json"),
        concurrency=(2, 8),
        baselines=("none", "fixed:3"),
        what_if=True,
        bootstrap=20,
        av_overhead_ms=0.0,
    )


@pytest.fixture(scope="module")
def summary(config: ReplayConfig) -> dict[str, Any]:
    return run_replay(config, workers=1).summary


def test_a_gain_that_only_keeps_below_the_cliff_is_told_as_such(summary: dict[str, Any]) -> None:
    """Eight requests with three drafts each want 32 tokens: fixed:3 falls off, adaptive does not."""
    low, high = summary["loads"]
    assert (low["cliff_reached"], low["cliff"]) == (False, [])
    assert high["cliff_reached"]
    against = {item["against"]: item for item in high["cliff"]}
    fixed = against["best fixed (fixed:3)"]
    assert fixed["gain_ratio"] > 3
    assert fixed["gain_ratio_without_cliff"] < 1.3
    share = fixed["share_pct"]
    assert 80 < share["low"] < share["value"] < share["high"] < 105
    said = cliff_sentences(summary)
    assert any("never reached" in sentence and "at 2" in sentence for sentence in said)
    assert any("of the gain (interval" in sentence for sentence in said)


def test_a_share_is_exact_where_the_gains_are() -> None:
    cliff, plain = np.full(21, np.log(2.0)), np.full(21, np.log(2.0) / 4)
    assert _share(cliff, plain) == pytest.approx({"value": 75.0, "low": 75.0, "high": 75.0})


def test_what_a_wrong_belief_costs(config: ReplayConfig, folder: Path) -> None:
    """A belief that does not know the cliff sends every step over it."""
    blind = replace(CLIFF, verify=tuple((size, min(ms, 5.8)) for size, ms in CLIFF.verify))
    (folder / "blind.json").write_text(json_text(dump(blind)))
    summary = run_replay(replace(config, belief=str(folder / "blind.json"), concurrency=(8,)), workers=1).summary
    (cost,) = summary["loads"][0]["belief_costs"]
    assert (cost["policy"], cost["word"]) == ("adaptive", "costs")
    assert cost["high"] < 0.7
    assert "What the wrong belief costs adaptive at 8" in belief_sentences(summary)[0]
    same = run_replay(replace(config, belief=config.cost, concurrency=(8,)), workers=1).summary
    (none,) = same["loads"][0]["belief_costs"]
    assert (none["ratio"], none["low"], none["high"], none["word"]) == (1.0, 1.0, 1.0, "no difference")


def test_without_a_belief_nothing_is_said_of_it(summary: dict[str, Any]) -> None:
    assert belief_sentences(summary) == []


def test_overhead_is_charged_once_per_step_and_per_request(config: ReplayConfig, summary: dict[str, Any]) -> None:
    """1 ms a step is 500 µs for each of two requests; the steps are the same, so the break-even overhead is too."""
    at_2 = replace(config, concurrency=(2,))
    free = summary["loads"][0]
    by_step = run_replay(replace(at_2, av_overhead_ms=1.0), workers=1).summary["loads"][0]
    by_req = run_replay(replace(at_2, av_overhead_ms=None, av_overhead_us_per_req=500.0), workers=1).summary["loads"][0]
    arms = [{arm["policy"]: arm for arm in at["arms"]} for at in (free, by_step, by_req)]
    assert arms[1]["adaptive"]["step_ms"] == pytest.approx(arms[0]["adaptive"]["step_ms"] + 1.0)
    assert arms[1]["none"]["step_ms"] == arms[0]["none"]["step_ms"]
    for name in ("step_ms", "throughput_tok_s"):
        assert arms[2]["adaptive"][name] == pytest.approx(arms[1]["adaptive"][name])
    for one, two, three in zip(*(at["verdicts"] for at in (free, by_step, by_req)), strict=True):
        assert two["ratio"] < one["ratio"]
        assert two["break_even_overhead_ms"] == pytest.approx(one["break_even_overhead_ms"])
        assert three["break_even_overhead_ms"] == pytest.approx(one["break_even_overhead_ms"])
        # At the break-even overhead the ratio is 1: what is left after 1 ms is the rest of it.
        assert two["ratio"] == pytest.approx(
            one["ratio"] * arms[0]["adaptive"]["step_ms"] / arms[1]["adaptive"]["step_ms"], rel=0.02
        )


def test_measures_are_picked_run_by_run() -> None:
    def measures(value: int) -> Measures:
        ints, floats = np.array([value, value + 1]), np.array([value + 0.5, value + 1.5])
        totals = Totals(ints, ints, ints, ints, ints, ints, ints, floats)
        return Measures(
            totals, Work(ints, ints, ints, ints, ints, floats), floats, floats, floats, ints, floats, floats
        )

    picked = pick_measures([measures(0), measures(10)], np.array([1, 0]))
    assert picked.totals.ms.tolist() == [10.5, 1.5]
    assert picked.work.tokens.tolist() == [10, 1]
    assert picked.tpot_ms.tolist() == [10.5, 1.5]


def test_the_shipped_curve_goes_on_without_its_jump() -> None:
    from avsim.costs import StepShape
    from avsim.costs.cliff import without_cliff

    model = load("deepseek-v4-flash-tp4-b300")
    plain = without_cliff(model)
    assert plain is not None
    size = np.arange(1, 9000)
    shape = StepShape(size, size, np.zeros(len(size)), np.zeros(len(size), dtype=np.int64))
    before, after = model.verify_ms(shape), plain.verify_ms(shape)
    np.testing.assert_array_equal(before[:1024], after[:1024])
    assert (np.diff(after) >= 0).all()
    assert np.diff(after)[1023:1100].max() < 0.1 < 80 < np.diff(before)[1023]
    rises = np.diff(before[2047:]), np.diff(after[2047:])
    np.testing.assert_allclose(rises[0], rises[1], atol=1e-9)
