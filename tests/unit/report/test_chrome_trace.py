"""The trace of steps: the Trace Event Format, times that rise, durations that add up, spans that nest."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.report.chrome_trace import chrome_trace
from avsim.simulate import Arm, SimulationResult, simulate
from tests.engine_cases import LINEAR, pool_of

POOL = pool_of(2, [9, 3, 5, 1], [6, 4, 1, 8], [0, 2, 1], np.linspace(-3, 3, 38))
ORDER = [0, 1, 2, 3, 1, 0]


def run(scheduled: bool) -> tuple[SimulationResult, dict[str, Any]]:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    arrivals = np.array([[0.0, 1.0, 2.0, 30.0, 90.0, 90.0]])
    options: dict[str, Any] = {"prompts": "scheduled", "token_budget": 8} if scheduled else {}
    result = simulate(POOL, arm, np.array([ORDER]), 2, LINEAR, arrivals=arrivals, log=True, **options)
    assert result.log is not None
    return result, json.loads(chrome_trace(result.log, result.times, "an arm at a load", POOL))


@pytest.fixture(scope="module", params=[False, True], ids=["free", "scheduled"])
def traced(request: pytest.FixtureRequest) -> tuple[SimulationResult, dict[str, Any]]:
    return run(request.param)


def of(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if all(event.get(key) == value for key, value in wanted.items())]


def test_every_event_has_what_its_phase_demands(traced: Any) -> None:
    _, document = traced
    demanded = {
        "X": {"name", "ts", "dur", "pid", "tid"},
        "C": {"name", "ts", "pid", "args"},
        "M": {"name", "pid", "args"},
    }
    assert {event["ph"] for event in document["traceEvents"]} == set(demanded)
    for event in document["traceEvents"]:
        assert demanded[event["ph"]] <= set(event)
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
    assert document["displayTimeUnit"] == "ms"


def test_times_rise_and_steps_fill_the_clock(traced: Any) -> None:
    result, document = traced
    stamps = [event["ts"] for event in document["traceEvents"] if "ts" in event]
    assert stamps == sorted(stamps)
    steps = of(document, cat="step")
    assert sum(step["dur"] for step in steps) / 1e3 + result.idle_ms[0] == pytest.approx(result.clock_ms[0])
    for step, after in pairwise(steps):
        assert step["ts"] + step["dur"] <= after["ts"] + 1e-6
    assert steps[-1]["ts"] + steps[-1]["dur"] == pytest.approx(result.clock_ms[0] * 1e3)
    for name in ("admitted", "accepted", "drafted"):
        assert sum(step["args"][name] for step in steps) == getattr(result.whole, name)[0], name
    assert sum(step["args"]["tokens"] for step in steps) == result.whole_work.tokens[0]


def test_each_seat_holds_one_request_at_a_time_with_its_steps_inside(traced: Any) -> None:
    result, document = traced
    requests = of(document, cat="request")
    served = len(ORDER) if result.whole.first_tokens[0] else len(ORDER) - 1  # one token: over before it takes a seat
    assert len(requests) == served
    for seat in {event["tid"] for event in requests}:
        mine = [event for event in requests if event["tid"] == seat]
        for event, after in pairwise(mine):
            assert event["ts"] + event["dur"] <= after["ts"] + 1e-6
        for part in [*of(document, cat="block", tid=seat), *of(document, cat="prompt", tid=seat)]:
            assert any(
                event["ts"] - 1e-6 <= part["ts"] and part["ts"] + part["dur"] <= event["ts"] + event["dur"] + 1e-6
                for event in mine
            )
    emitted = sum(event["args"]["emitted"] for event in of(document, cat="block"))
    assert emitted + result.whole.first_tokens[0] == result.whole.emitted[0]
    prompts = sum(event["args"]["tokens"] for event in of(document, cat="prompt"))
    assert prompts == result.whole_work.prompt_tokens[0]


def test_counters_follow_who_waits_and_runs(traced: Any) -> None:
    result, document = traced
    counts = of(document, ph="C", name="requests")
    assert len(counts) == result.whole.steps[0]
    assert max(event["args"]["running"] for event in counts) == 2
    assert max(event["args"]["waiting"] for event in counts) >= 1
    names = [event["args"]["name"] for event in of(document, ph="M")]
    assert names == ["engine: an arm at a load (simulated)", "steps", "seats", "seat 0", "seat 1"]
