"""What an output token takes: rows, FLOPs, GPU time and money, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.costs import CostCard, LinearCost, load
from avsim.metrics.economy import Engine, economy, engine_of, savings
from avsim.metrics.serving import Measures
from avsim.simulate import Totals, Work


def measures(emitted: int, admitted: int, tokens: int, padded: int, ms: float) -> Measures:
    def ints(value: int) -> np.ndarray:
        return np.full(21, value)

    floats = np.full(21, ms)
    totals = Totals(ints(10), ints(10), ints(10), ints(admitted), ints(0), ints(emitted), ints(0), floats)
    work = Work(ints(10), ints(tokens), ints(padded), ints(0), ints(0), floats / 2)
    return Measures(totals, work, floats, floats, floats, ints(1), floats, floats)


def test_each_quantity_by_hand() -> None:
    engine = Engine(gpus=4, active_params=10e9, params_source="x", pads=True, price_per_gpu_hour=3.6)
    found = economy(measures(1000, 500, 1500, 1600, 2000.0), engine)
    assert found == pytest.approx(
        {
            "verified_slots_per_token": 0.5,
            "target_rows_per_token": 1.5,
            "padded_rows_per_token": 1.6,
            "target_gflops_per_token": 2 * 10 * 1.6,
            "engine_seconds_per_million_tokens": 2000.0,
            "gpu_seconds_per_million_tokens": 8000.0,
            "cost_per_million_tokens": 8.0,
            "busy_share": 0.5,
        }
    )


def test_what_is_not_known_is_left_out() -> None:
    found = economy(measures(1000, 500, 1500, 1500, 2000.0), Engine(None, None, "", False, 3.6))
    assert set(found) == {
        "verified_slots_per_token", "target_rows_per_token", "engine_seconds_per_million_tokens", "busy_share"
    }  # fmt: skip


def test_savings_are_ratios_to_each_rival() -> None:
    engine = Engine(4, None, "", False, None)
    mine, none = measures(1000, 500, 1500, 1500, 1000.0), measures(1000, 0, 1000, 1000, 2000.0)
    (line,) = savings("adaptive", [("none", mine, none)], engine)
    assert line["verified_slots_per_token"] is None  # nothing to compare with
    assert line["target_rows_per_token"] == pytest.approx({"ratio": 1.5, "low": 1.5, "high": 1.5})
    assert line["gpu_seconds_per_million_tokens"]["ratio"] == pytest.approx(0.5)


def test_an_engine_is_read_from_the_cost_card() -> None:
    engine = engine_of(load("deepseek-v4-flash-tp4-b300"), None, None)
    assert (engine.gpus, engine.pads, engine.params_source) == (4, True, "deepseek-v4-flash")
    assert engine.active_params == pytest.approx(13e9, rel=0.05)
    assert engine_of(load("deepseek-v4-flash-tp4-b300"), 8, None).gpus == 8
    card = CostCard("x", "Nobody-7B", "a laptop", "measured", "")
    unknown = engine_of(LinearCost(fixed_ms=1.0, per_token_us=1.0, card=card), None, None)
    assert (unknown.gpus, unknown.active_params, unknown.pads) == (None, None, False)
    roofline = engine_of(load("roofline:model=llama-3.1-8b,gpu=h100,tp=2"), None, None)
    assert (roofline.gpus, roofline.params_source) == (2, "llama-3.1-8b")
    assert roofline.active_params == pytest.approx(7.5e9, rel=0.02)
