"""Does a bad stretch lock an estimator in? SYNTHETIC traffic, `adaptive` admission. Writes results.csv and tables.

Run from the repository's root: `.venv/bin/python experiments/lock-in/run.py` (ten minutes on two cores); with
`tables`, only the tables, from results.csv.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from avsim import estimators, policies
from avsim.comparison.decisions import Bench
from avsim.comparison.drift import Scene, make_scene
from avsim.comparison.walk import Table
from avsim.costs import load
from avsim.metrics.intervals import ratio_interval
from avsim.metrics.savings import Path as Steps
from avsim.metrics.savings import flatten_log
from avsim.simulate import Arm, simulate
from avsim.sources import open_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.workload import Pool

HERE = Path(__file__).parent
COST = "llama-3.1-8b-h100-eagle"
NUM_REQS = 64
SEEDS = range(3)
K = 5
ARMS = (
    ("adaptive", "online-logistic"),
    ("adaptive:explore=0.02", "online-logistic"),
    ("adaptive", "position-rate"),
    ("adaptive", "position-rate:discount=0.8"),
    ("adaptive:explore=0.02", "position-rate:discount=0.8"),
    ("adaptive", "isotonic"),
    ("adaptive", "beta-bernoulli"),
    ("adaptive", "bayes-logistic"),
    ("adaptive", "bayes-logistic:explore=true"),
    ("adaptive:explore=0.02", "bayes-logistic"),
    ("adaptive", "multi-logistic:logits=false"),
    ("adaptive", "prefix-survival:entropy=false,margin=false,drawn=false"),
    ("fixed:5", ""),
)


@dataclass(frozen=True)
class Stream:
    """A bad stretch, then good traffic: p = σ(0.5 f + b_k)."""

    name: str
    what: str
    bad: float
    bad_step: float
    spread: float
    output_len: int


STREAMS = (
    Stream("telling", "deep slots fail for a while; log-odds vary widely, outputs are long", -0.5, -1.5, 2.0, 6000),
    Stream("mute", "the same, but the log-odds hardly vary from slot to slot", -0.5, -1.5, 0.1, 6000),
    Stream("mute-short", "the same with short outputs, so that new requests keep coming", -0.5, -1.5, 0.1, 300),
    Stream("collapse", "nothing is accepted for a while; log-odds vary widely, outputs are short", -5.0, 0.0, 2.0, 300),
)
PAIRS = (
    ("adaptive:explore=0.02", "online-logistic", "online-logistic"),
    ("adaptive:explore=0.02", "bayes-logistic", "bayes-logistic"),
    ("adaptive", "bayes-logistic:explore=true", "bayes-logistic"),
)
TRACES = HERE.parent.parent / "traces"
REAL_COST = "deepseek-v4-flash-tp4-b300"
COLUMNS = (
    "stream", "policy", "estimator", "seed", "good_steps", "deep_verified_late_pct", "deep_verified_never_bad_pct",
    "tokens_per_ms_late", "change_to_never_bad_pct", "state",
)  # fmt: skip


def scene(stream: Stream, seed: int) -> Scene:
    """Write both kinds of traffic and join them."""
    tokens = NUM_REQS * 6000
    with tempfile.TemporaryDirectory() as name:
        shared: dict[str, Any] = {
            "num_speculative_tokens": K, "feature_sd": stream.spread,
        }  # fmt: skip
        bad = SyntheticLaw(
            num_requests=NUM_REQS * 5, output_len=300, intercept=stream.bad, intercept_step=stream.bad_step,
            seed=2 * seed + 1, **shared,
        )  # fmt: skip
        good = SyntheticLaw(
            num_requests=tokens // stream.output_len, output_len=stream.output_len, intercept=1.5, seed=2 * seed + 2,
            **shared,
        )  # fmt: skip
        first = write_synthetic(Path(name) / "bad", bad)
        write_synthetic(Path(name) / "good", good)
        return make_scene(first, str(Path(name) / "good"), ["log_odds"])


def serve(stream: Stream, both: Scene, policy: str, spec: str, *, bad_first: bool, seed: int) -> tuple[Steps, Any]:
    """Serve the bad requests (or none), then all good ones."""
    rng = np.random.default_rng(seed)
    old, new = (rng.permutation(np.flatnonzero(both.new == kind)) for kind in (False, True))
    sequence = np.concatenate([old, new]) if bad_first else new
    arm = Arm(policies.make(policy), estimators.make(spec) if spec else None)
    result = simulate(both.pool, arm, sequence[None], NUM_REQS, load(COST), log=True)
    assert result.log is not None
    return flatten_log(result.log), result.states[0] if result.states else None


def late(path: Steps, both: Scene) -> tuple[int, float, float]:
    """Return steps of good traffic alone, and over their last third: share of deep slots verified, tokens per ms."""
    good = np.where(path.active, both.new_rows[path.rows], True).all(axis=1)
    full = np.flatnonzero(good & (path.num_reqs == NUM_REQS))
    last = full[-len(full) // 3 :]
    deep = (path.admitted[last] >= 3)[path.active[last]]
    return len(full), float(deep.mean() * 100), float(path.emitted[last].sum() / path.ms[last].sum())


def run(job: tuple[Stream, str, str, int]) -> dict[str, Any]:
    stream, policy, spec, seed = job
    both = scene(stream, seed)
    after, state = serve(stream, both, policy, spec, bad_first=True, seed=seed)
    never, _ = serve(stream, both, policy, spec, bad_first=False, seed=seed)
    steps, deep, rate = late(after, both)
    _, deep_never, rate_never = late(never, both)
    shown = ""
    if spec == "online-logistic":
        slope, levels = state.params["slope"], state.params["intercepts"]
        shown = f"w {slope[0]:.3g}; b {' '.join(f'{level:.3g}' for level in levels)}"
    values = (
        stream.name, policy, spec or "(none)", seed, steps, round(deep, 1), round(deep_never, 1), round(rate, 4),
        round((rate / rate_never - 1) * 100, 2), shown,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def table(rows: list[dict[str, Any]], stream: Stream) -> str:
    """Return one line per arm: means over seeds, and how many seeds stayed locked in."""
    lines = [
        "| policy | estimator | deep slots verified, late (had nothing happened) | throughput, late, against nothing "
        "happened | locked in |",
        "|---|---|---|---|---|",
    ]
    for policy, spec in ARMS:
        mine = [
            row
            for row in rows
            if (row["stream"], row["policy"], row["estimator"]) == (stream.name, policy, spec or "(none)")
        ]
        deep, never, change = (
            np.array([float(row[key]) for row in mine])
            for key in ("deep_verified_late_pct", "deep_verified_never_bad_pct", "change_to_never_bad_pct")
        )
        locked = int((deep < never / 2).sum())
        lines.append(
            f"| {policy} | {spec or '–'} | {deep.mean():.0f} % ({never.mean():.0f} %) | {change.mean():+.1f} % "
            f"({change.min():+.1f} … {change.max():+.1f}) | {locked} of {len(mine)} |"
        )
    return "\n".join(lines)


def exploration_cost(rows: list[dict[str, Any]]) -> str:
    """Return what exploring costs where nothing bad happens: throughput with it against without, means over seeds."""
    lines = ["| stream | exploration | throughput against none |", "|---|---|---|"]
    for stream in STREAMS:
        for policy, spec, plain in PAIRS:
            with_it, without = (
                np.array(
                    [
                        float(row["tokens_per_ms_late"]) / (1 + float(row["change_to_never_bad_pct"]) / 100)
                        for row in rows
                        if (row["stream"], row["policy"], row["estimator"]) == (stream.name, *arm)
                    ]
                )
                for arm in ((policy, spec), ("adaptive", plain))
            )
            change = (with_it / without - 1) * 100
            what = f"{policy} + {spec}"
            lines.append(
                f"| {stream.name} | {what} | {change.mean():+.2f} % ({change.min():+.2f} … {change.max():+.2f}) |"
            )
    return "\n".join(lines)


def real_cost(seed: int = 0) -> str:
    """Return what exploring costs on shipped traces: throughput with it against without, simulated on resamples."""
    lines = ["| trace | requests | exploration | throughput against none |", "|---|---|---|---|"]
    for name in ("smollm2-eagle-greedy", "smollm2-eagle-sampled"):
        trace = open_trace(TRACES / name)
        pool = Pool.from_trace(trace, ["log_odds"])
        bench = Bench(pool, Table.of_pool(pool, trace), load(REAL_COST), None, 20, 300, trace.card.vocab_size, seed)
        for num_reqs in (8, 64):
            for policy, spec, plain in PAIRS:
                arms = (
                    Arm(policies.make(policy), estimators.make(spec)),
                    Arm(policies.Adaptive(), estimators.make(plain)),
                )
                rates = [bench.serve(arm, num_reqs).full.throughput_tok_s for arm in arms]
                found = ratio_interval(float(rates[0][0] / rates[1][0]), rates[0][1:] / rates[1][1:])
                change, low, high = ((value - 1) * 100 for value in (found.ratio, found.low, found.high))
                lines.append(
                    f"| {name} | {num_reqs} | {policy} + {spec} | {change:+.2f} % ({low:+.2f} … {high:+.2f}) |"
                )
    return "\n".join(lines)


def main() -> None:
    results = HERE / "results.csv"
    if sys.argv[1:] == ["tables"]:
        with results.open(newline="", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    else:
        jobs = [(stream, policy, spec, seed) for stream in STREAMS for policy, spec in ARMS for seed in SEEDS]
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as executor:
            rows = list(executor.map(run, jobs))
        with results.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    blocks = {s.name: f"**{s.name}**: {s.what}.\n\n{table(rows, s)}" for s in STREAMS} | {
        "cost": exploration_cost(rows),
        "real": real_cost(),
    }
    for name, block in blocks.items():
        whole = f"<!-- {name} -->\n{block}\n<!-- /{name} -->"
        text = re.sub(f"<!-- {name} -->.*?<!-- /{name} -->", lambda _, w=whole: w, text, flags=re.S)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
