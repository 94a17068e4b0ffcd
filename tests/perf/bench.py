"""Speeds and memory, each beside a yardstick of the same run: `python -m tests.perf.bench`.

The yardstick is np.sort + np.exp over one float32 block of 100 steps × 64 requests × 7 slots. Rates on a shared
machine move by a factor of two; the ratios move far less. Nothing here fails on a time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from avsim import estimators, policies
from avsim.comparison.scoring import fit_halves, score
from avsim.comparison.walk import Table as Blocks
from avsim.comparison.walk import full_walk
from avsim.costs import load
from avsim.jit import Engine
from avsim.replay import replay
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.sources import Trace
from avsim.sources.importers import import_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.workload import Pool, request_sequences

SLOTS, REQS, STEPS = 7, 64, 100
AUTHORS_SIMULATOR_S = 79.0  # SpecDecode-Bench's own simulator, gsm8k's 12 cells, one core (published.md, V15)
COST = load("deepseek-v4-flash-tp4-b300")


def best(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the shortest of a few wall times, s; the yardstick is taken the same way."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def yardstick_events_per_s() -> float:
    block = np.random.default_rng(0).random((STEPS, REQS * SLOTS), dtype=np.float32)

    def work() -> None:
        for _ in range(10):
            np.exp(np.sort(block, axis=1))

    return 10 * block.size / best(work)


def law(requests: int) -> SyntheticLaw:
    return SyntheticLaw(kind="on-policy", num_requests=requests, output_len=256, num_reqs=REQS, request_sd=0.5)


def open_loop(trace: Trace) -> float:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    return trace.num_blocks * SLOTS / best(lambda: replay(trace, [arm], COST), 3)


def loading(trace: Trace) -> float:
    def work() -> None:
        for _ in trace.iter_blocks(["log_odds"]):
            pass

    return trace.num_blocks * SLOTS / best(work)


def closed_loop(pool: Pool, runs: int, engine: Engine = "numpy", rounds: int = 8) -> float:
    """Return decided slot events per second: steps of all runs with every seat taken × 64 × 7.

    `rounds`: requests per seat. What start and drain take is in the time, and not in the steps.
    """
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    everyone = [np.arange(len(pool.start))] * runs
    sequences = request_sequences(everyone, rounds * REQS, [[run] for run in range(runs)])

    def work() -> SimulationResult:
        return simulate(pool, arm, sequences, REQS, COST, engine=engine)

    steps = int(work().full.steps.sum())  # compiles, if need be
    return steps * REQS * SLOTS / best(work, 3)


def comparison(pool: Pool, trace: Trace, spec: str) -> float:
    """Return slot events per second of one estimator in `avsim compare`: predict, learn, and all scores."""
    estimator, blocks = estimators.make(spec), Blocks.of_pool(pool, trace)
    sequence = request_sequences([np.arange(len(pool.start))], 32 * REQS, [[0]])[0]
    walk = full_walk(pool, sequence, REQS)
    halves = None
    if estimator.offline:
        halves = fit_halves(estimator, blocks, walk, blocks.unit % 2 == 0)
    return len(walk.rows) * SLOTS / best(lambda: score(estimator, blocks, [walk], halves=halves), 3)


def one_at_a_time(pool: Pool, learner: str) -> float | None:
    """Return slot events per second of a general online learner: predict, then learn, on 20,000 reached slots.

    The same law as `online-logistic`: the log-odds, and an indicator of the slot. river takes a dict per event,
    scikit-learn one step's rows per `partial_fit`.
    """
    slot = np.arange(SLOTS)[:, None]
    reached = (slot <= pool.num_accepted) & (slot < pool.num_recorded)
    slots, rows = np.nonzero(reached.T[: 20_000 // 3])[::-1]
    x, y = pool.features["log_odds"][slots, rows], slots < pool.num_accepted[rows]
    if learner == "river":
        try:
            from river import linear_model, optim
        except ImportError:
            return None
        events = [
            ({"log_odds": float(f), f"slot{k}": 1.0}, bool(label)) for f, k, label in zip(x, slots, y, strict=True)
        ]

        def work() -> None:
            model = linear_model.LogisticRegression(optim.SGD(0.01))
            for features, label in events:
                model.predict_proba_one(features)
                model.learn_one(features, label)
    else:
        from sklearn.linear_model import SGDClassifier

        wide = np.zeros((len(x), 1 + SLOTS))
        wide[:, 0], wide[np.arange(len(x)), 1 + slots] = x, 1.0

        def work() -> None:
            model = SGDClassifier(loss="log_loss")
            model.partial_fit(wide[:REQS], y[:REQS], classes=[False, True])
            for start in range(REQS, len(x), REQS):
                part = slice(start, start + REQS)
                model.predict_proba(wide[part])
                model.partial_fit(wide[part], y[part])

    # Others are paid per reached slot; avsim's rates count every drafted one.
    return len(np.unique(rows)) * SLOTS / best(work, 2)


def with_features(pool: Pool) -> Pool:
    """Return the pool with made-up columns for every feature that an estimator reads."""
    noise = np.random.default_rng(0)
    shape = pool.features["log_odds"].shape
    wanted = {name for cls in estimators.BUILTIN.values() for name in cls().features} - set(pool.features)
    made = {name: noise.random(shape, dtype=np.float32) * (-1 if name.endswith("logprob") else 1) for name in wanted}
    return replace(pool, features=pool.features | made)


def v15_seconds(reference: Path, folder: Path) -> float:
    source = reference / "reference/specdecode_bench/gsm8k.jsonl"
    pool = Pool.from_trace(import_trace("specdecode-bench:drafter=eagle", source, folder / "gsm8k"))
    one_each, cost = np.arange(len(pool.start))[:, None], load("llama-3.1-8b-h100-eagle")

    def work() -> None:
        for copies in (1, 8, 64):
            for policy in ("none", "fixed:1", "fixed:3", "fixed:5", "oracle:exact"):
                simulate(pool, Arm(policies.make(policy)), one_each, 1, cost, prompts="own-step", copies=copies)

    return best(work, 3)


_MEMORY = """
import sys
from pathlib import Path
from avsim import estimators, policies
from avsim.costs import load
from avsim.replay import replay
from avsim.simulate import Arm
from avsim.sources import open_trace
arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
replay(open_trace(sys.argv[1]), [arm], load("deepseek-v4-flash-tp4-b300"))
status = Path("/proc/self/status").read_text()  # ru_maxrss would start from the parent's
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""


def peak_mib(trace: Trace) -> float:
    command = [sys.executable, "-c", _MEMORY, str(trace.path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def help_seconds() -> float:
    command = [sys.executable, "-m", "avsim", "--help"]
    return best(lambda: subprocess.run(command, check=True, capture_output=True), 7)


def measure() -> list[dict[str, str | float | None]]:
    """Run everything; one row per line of the table."""
    rows: list[dict[str, str | float | None]] = []

    def add(what: str, events_per_s: float) -> None:
        steps = events_per_s / (REQS * SLOTS)
        share = events_per_s / yardstick_events_per_s()
        rows.append({"what": what, "M slot events/s": events_per_s / 1e6, "steps/s": steps, "of yardstick": share})

    rows.append({"what": "yardstick: np.sort + np.exp", "M slot events/s": yardstick_events_per_s() / 1e6})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = (write_synthetic(folder / str(n), law(n)) for n in (5120, 51200))
        add("load log-odds, with every check", loading(small))
        add("open loop, adaptive + online-logistic, all metrics", open_loop(small))
        dense = SyntheticLaw(kind="dense", num_requests=128, output_len=128, request_sd=0.5)
        trace = write_synthetic(folder / "dense", dense)
        pool = with_features(Pool.from_trace(trace, ["log_odds", "label"]))
        for runs in (1, 8, 40):
            add(f"closed loop, {runs} run{'s' if runs > 1 else ''} in lockstep", closed_loop(pool, runs))
        if importlib.util.find_spec("numba") is not None:
            for runs, rounds in ((1, 8), (1, 64), (40, 8), (40, 32)):
                what = f"closed loop, {runs} run{'s' if runs > 1 else ''} of {rounds * REQS} requests, compiled (jit)"
                add(what, closed_loop(pool, runs, "jit", rounds))
        for spec in sorted([*estimators.BUILTIN, "multi-logistic:history=false"]):
            add(f"compare: {spec}", comparison(pool, trace, spec))
        for learner in ("river", "scikit-learn partial_fit"):
            rate = one_at_a_time(pool, learner)
            if rate is not None:
                add(f"yardstick: {learner}, logistic regression", rate)
        rows.append({"what": "open loop: peak memory, small trace", "MiB": peak_mib(small)})
        rows.append({"what": "open loop: peak memory, ten times the blocks", "MiB": peak_mib(large)})
        rows.append({"what": "avsim --help", "s": help_seconds()})
        if "AVSIM_REFERENCE" in os.environ:
            seconds = v15_seconds(Path(os.environ["AVSIM_REFERENCE"]), folder)
            rows.append({"what": "V15: gsm8k's 12 cells", "s": seconds})
            rows.append(
                {"what": "V15: times faster than the authors' simulator", "ratio": AUTHORS_SIMULATOR_S / seconds}
            )
    return rows


def main() -> None:
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title="synthetic traces, 64 requests × 7 slots, one process")
    columns = ("what", "M slot events/s", "steps/s", "of yardstick", "MiB", "s", "ratio")
    for column in columns:
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        values = [row.get(column) for column in columns[1:]]
        table.add_row(str(row["what"]), *("" if value is None else f"{value:,.4g}" for value in values))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
