"""Requests that arrive by themselves: queueing theory, saturation, and a replay from its config to its verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avsim import policies
from avsim.arrivals import make
from avsim.config import ReplayConfig
from avsim.costs import CostCard, LinearCost, dump
from avsim.errors import InputError
from avsim.loads import loads_of
from avsim.manifest import json_text
from avsim.metrics.serving import grows, measure
from avsim.report.console import print_replay
from avsim.report.html import html_report
from avsim.runs import ReplayRun, run_replay
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.sources import open_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.study import build_arms, make_study
from avsim.workload import Pool
from tests.engine_cases import pool_of

STEP_MS = 10.0
CLOCK = LinearCost(fixed_ms=STEP_MS, per_token_us=0.0, card=CostCard("clock", "", "", "synthetic", ""))
NONE = Arm(policies.make("none"))


def queue(outputs: list[int], load: float, num: int, runs: int, seats: int = 1, process: str = "poisson") -> Any:
    """Serve with plain decoding at steps of 10 ms; returns the result and the services' moments, s."""
    pool = pool_of(1, [0] * len(outputs), outputs, [0], np.zeros((1, sum(outputs))))
    service = (np.array(outputs) - 1) * STEP_MS / 1e3
    rate = load * seats / service.mean()
    rng = np.random.default_rng(0)
    sequences = rng.integers(len(outputs), size=(runs, num))
    arrivals = make(f"{process}:{rate}").times_ms(num, [[5, run] for run in range(runs)])
    return simulate(pool, NONE, sequences, seats, CLOCK, arrivals=arrivals), service, rate


@pytest.mark.parametrize(("outputs", "load"), [([2], 0.5), ([2], 0.8), ([2, 2, 2, 10], 0.6)])
def test_one_server_waits_as_long_as_pollaczek_and_khinchine_say(outputs: list[int], load: float) -> None:
    """E[W] = λ E[S²] / 2 (1 − ρ) for Poisson arrivals and any service; within its interval over 30 runs."""
    result, service, rate = queue(outputs, load, 4000, 30)
    waits = result.times.waiting_ms[:, 500:].mean(axis=1) / 1e3
    expected = rate * (service**2).mean() / (2 * (1 - load))
    error = waits.std(ddof=1) / np.sqrt(len(waits))
    assert error < 0.1 * expected
    assert abs(waits.mean() - expected) < 4 * error, (waits.mean(), expected, error)


def test_many_requests_at_once_share_each_step() -> None:
    """With seats for all, a request's time does not depend on others, and nobody waits longer than a step."""
    result, _, _ = queue([9], 0.5, 300, 3, seats=64)
    times = result.times
    np.testing.assert_allclose(times.tpot_ms, STEP_MS)
    assert (times.waiting_ms < STEP_MS).all()


@pytest.mark.parametrize(("load", "grown"), [(0.7, False), (1.3, True)])
def test_saturation_is_a_queue_that_grows(load: float, grown: bool) -> None:
    result, _, rate = queue([9], load, 600, 21, seats=4)
    measures = measure(result, result.times)
    assert grows(measures) is grown
    served = measures.totals.throughput_tok_s[0]
    capacity = 4 * 1e3 / STEP_MS
    assert served == pytest.approx(capacity if grown else 8 * rate, rel=0.02 if grown else 0.1)


def test_idle_time_counts_in_throughput_and_not_in_work() -> None:
    result: SimulationResult = queue([9], 0.1, 200, 2)[0]
    assert result.whole.ms == pytest.approx(result.clock_ms)
    assert result.whole_work.busy_ms + result.idle_ms == pytest.approx(result.clock_ms)
    assert (result.idle_ms > 0.8 * result.clock_ms).all()


def test_fewer_places_to_begin_with_change_nothing() -> None:
    """Begun with one place and doubled until nobody waits who need not."""
    pool = pool_of(2, [5, 3, 8], [7, 4, 9], [1, 0, 2], np.linspace(-2, 2, 40))
    arm = Arm(policies.make("fixed:2"))
    arrivals = make("bursty:60,cv=3").times_ms(40, [[1], [2]])
    sequences = np.resize([0, 1, 2, 1], (2, 40))
    kinds = {"prompts": "scheduled", "token_budget": 12, "arrivals": arrivals}
    wide, narrow = (simulate(pool, arm, sequences, 6, CLOCK, places=places, log=True, **kinds) for places in (None, 1))
    np.testing.assert_array_equal(wide.times.end_ms, narrow.times.end_ms)
    assert wide.whole.emitted.tolist() == narrow.whole.emitted.tolist()


def test_more_clients_than_seats_wait_for_one() -> None:
    """Eight clients on two seats: the first two are served at once, and each later one as somebody leaves."""
    pool = pool_of(1, [0], [5], [0], np.zeros((1, 5)))
    times = simulate(pool, NONE, np.zeros((1, 40), dtype=np.int64), 2, CLOCK).times.behind(8)
    assert times.arrival_ms[0, :8].tolist() == [0.0] * 8
    np.testing.assert_array_equal(times.arrival_ms[0, 8:], np.sort(times.end_ms[0])[:32])
    assert (times.waiting_ms >= 0).all()
    # In the middle, six of eight clients wait: each for three rounds of two seats.
    np.testing.assert_allclose(times.waiting_ms[0, 8:34], 3 * 4 * STEP_MS)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ReplayConfig:
    folder = tmp_path_factory.mktemp("open") / "trace"
    law = SyntheticLaw(kind="dense", num_requests=64, output_len=16, num_speculative_tokens=2, prompt_len=24)
    write_synthetic(folder, law)
    return ReplayConfig(
        trace=str(folder),
        cost="deepseek-v4-flash-tp4-b300",
        arrivals=("poisson:10", "poisson:2000"),
        max_num_seqs=8,
        baselines=("none", "fixed:1", "fixed:2"),
        what_if=True,
        bootstrap=20,
    )


@pytest.fixture(scope="module")
def run(config: ReplayConfig) -> ReplayRun:
    return run_replay(config, workers=1)


def test_a_replay_with_arrivals_tells_times_and_saturation(run: ReplayRun) -> None:
    low, high = run.summary["loads"]
    assert (low["saturated"], set(high["saturated"])) == ([], {"none", "fixed:1", "fixed:2", "adaptive"})
    assert {verdict["metric"] for verdict in low["verdicts"]} == {"mean TPOT", "p95 TTFT"}
    assert {verdict["metric"] for verdict in high["verdicts"]} == {"mean TPOT", "p95 TTFT", "throughput"}
    for load in (low, high):
        for arm in load["arms"]:
            assert arm["ttft_ms"]["p50"] <= arm["ttft_ms"]["p95"] <= arm["ttft_ms"]["p99"]
            assert arm["running"]["max"] <= 8
            assert arm["tpot_mean_ms"]["low"] < arm["tpot_mean_ms"]["value"] < arm["tpot_mean_ms"]["high"]
            assert arm["tokens_per_step"]["mean"] > 0
    rate = low["arms"][0]["throughput_tok_s"]
    assert rate == pytest.approx(10 * 16, rel=0.5)
    assert any("SATURATED at poisson:2000" in note for note in run.summary["notes"])
    assert any("Prompts run beside decoding requests" in note for note in run.summary["notes"])


def test_arrivals_give_the_same_result_on_any_number_of_workers(config: ReplayConfig) -> None:
    two_arms = replace(config, baselines=("none",), policies=("fixed:2",))
    one, two = (json_text(run_replay(two_arms, workers=workers).summary) for workers in (1, 2))
    assert one == two


def test_a_replay_with_arrivals_is_printed_and_reported(run: ReplayRun, capsys: pytest.CaptureFixture[str]) -> None:
    print_replay(run.summary)
    out = capsys.readouterr().out
    for words in ("Times of requests", "Queues and steps", "poisson:2000 SATURATED", "p95 TTFT", "SYNTHETIC"):
        assert words in out
    html = html_report(run.summary, run.manifest, run.calibration)
    for words in (
        "Change of mean TPOT",
        "Change of p95 TTFT",
        "arrivals poisson:10, poisson:2000",
        "poisson:2000 (sat",
    ):
        assert words in html


def test_an_unknown_overhead_is_simulated_before_a_gain_is_told(config: ReplayConfig, tmp_path: Path) -> None:
    """Steps of 1 ms: 1.3 ms more cost more than this drafter saves, so the gain is told only where it is ruled out."""
    (tmp_path / "fast.json").write_text(json_text(dump(replace(CLOCK, fixed_ms=1.0))))
    quiet = replace(config, cost=str(tmp_path / "fast.json"), arrivals=("poisson:10",), baselines=("none",))
    words = {}
    for overhead in (None, 0.0, 1.3):
        summary = run_replay(replace(quiet, av_overhead_ms=overhead), workers=1).summary
        words[overhead] = summary["loads"][0]["verdicts"][0]["word"]
    assert words[0.0] == "gain"
    assert words[1.3] != "gain"
    assert words[None] == "gain withheld"


def test_a_long_queue_that_does_not_grow_is_no_saturation() -> None:
    result, _, _ = queue([9], 0.5, 60, 21, seats=4)
    measures = measure(result, result.times)
    noise = np.random.default_rng(0).normal(0, 1, 21)
    steady = replace(measures, waiting_before=20 + noise, waiting=20.5 + noise[::-1])
    assert not grows(steady)
    assert grows(replace(steady, waiting=40 + noise[::-1]))
    assert not grows(replace(steady, waiting_before=np.full(21, 0.1), waiting=np.full(21, 0.9)))


def test_every_arm_meets_the_same_arrivals_and_samples(config: ReplayConfig) -> None:
    arms = build_arms(config, 2)
    study, loads = make_study(open_trace(config.trace), config, arms)
    first = [study.first_run(item, loads[0])[0] for item in arms]
    for times in first[1:]:
        np.testing.assert_array_equal(times.arrival_ms, first[0].arrival_ms)
        np.testing.assert_array_equal(times.tokens, first[0].tokens)


def test_recorded_arrivals_keep_each_request_at_its_own_time(config: ReplayConfig) -> None:
    recorded = replace(config, arrivals=("recorded",))
    arms = build_arms(recorded, 2)
    with pytest.raises(InputError, match="does not record when its requests arrived"):
        make_study(open_trace(config.trace), recorded, arms)
    study, _ = make_study(open_trace(config.trace), config, arms)
    pool: Pool = study.pool
    arrival_s = np.random.default_rng(0).permutation(len(pool.start)) * 0.25
    (load,) = loads_of(recorded, pool, study.truth, arrival_s)
    times, log = study.first_run(arms[0], load)
    served = set()
    for turns, requests, active in zip(log.turn, log.request, log.active, strict=True):
        for turn, request in zip(turns[active].tolist(), requests[active].tolist(), strict=True):
            assert times.arrival_ms[0, turn] == pytest.approx(arrival_s[request] * 1e3)
            served.add(request)
    assert served == set(range(len(pool.start)))
    assert times.arrival_ms.shape[1] == len(pool.start)
    assert load.rate_req_s() == pytest.approx(4.0)
