"""Trimming the filler slots of n-gram drafts, and adaptive verification, on what an 8 B dense target costs.

An analogy: the trace is of a 135 M target on a CPU, the step costs are a roofline of Qwen3-8B on a GB200.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from avsim import estimators, policies
from avsim.costs import CostModel, StepShape, load
from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.metrics.verdict import judge
from avsim.simulate import Arm, Totals, simulate
from avsim.sources import open_trace
from avsim.workload import Pool, request_sequences, resample_units

CONCURRENCY = 128
CAPTURE_LIMIT = 1024
"""Assumed: not given. All steps here have fewer tokens, so the cliff beyond it plays no part."""
COST = f"roofline:model=qwen3-8b,gpu=gb200,drafter=ngram,capture_limit={CAPTURE_LIMIT}"
REPLICATES = 40
TRIMMING_TOK_S, NOT_TRIMMING_TOK_S, NOT_TRIMMING_TPOT_MS, NOT_TRIMMING_AL = 12680.0, 12752.0, 8.49, 1.50
NOISE_PCT = 3.12
"""Spread of generated tokens between runs of the arm without trimming."""
TRIMMED = "filler trimmed"


def serve(pool: Pool, policy: str, cost: CostModel) -> Totals:
    """Return the sums at full concurrency, for the requests and for resamples of them."""
    everyone = np.arange(len(pool.start))
    rng = np.random.default_rng(18)
    samples = [everyone] + [resample_units(everyone, pool.unit, rng) for _ in range(REPLICATES)]
    sequences = request_sequences(samples, 8 * CONCURRENCY, [[18, run] for run in range(len(samples))])
    arm = Arm(policies.make(policy), estimators.make("position-rate"))
    return simulate(pool, arm, sequences, CONCURRENCY, cost).full


def length_of(totals: Totals) -> float:
    return float(1 + totals.accepted[0] / totals.blocks[0])


def ms_of(totals: Totals) -> float:
    return float(totals.ms[0] / totals.steps[0])


def step_ms(cost: CostModel, tokens: np.ndarray) -> np.ndarray:
    """Return the time of a decoding step of 128 requests with 512 cached tokens each."""
    reqs = np.full(len(tokens), CONCURRENCY)
    shape = StepShape(reqs, tokens, reqs * 512.0, np.zeros(len(tokens), dtype=np.int64))
    return cost.step_ms(shape, drafting=True)


def run(experiment: Experiment, out: Path) -> Result:
    (path,) = experiment.traces
    trace = open_trace(path)
    bare = load(COST)
    published = TRIMMING_TOK_S / NOT_TRIMMING_TOK_S
    pools = {}
    for depth in range(1, trace.card.num_speculative_tokens + 1):
        found = Pool.from_trace(trace, num_slots=depth)
        # Without trimming, a request that finds no match is verified with filler in all its slots.
        pools[depth] = found, replace(found, num_drafted=np.full(len(found.num_drafted), depth))
    plain = {k: serve(filled, f"fixed:{k}", bare) for k, (_, filled) in pools.items()}
    depth = min(plain, key=lambda k: abs(length_of(plain[k]) - NOT_TRIMMING_AL))
    measured_ms, gpu_ms = NOT_TRIMMING_TPOT_MS * NOT_TRIMMING_AL, ms_of(plain[depth])
    clocks = {
        "GPU alone": bare,
        "GPU, then the rest": replace(bare, overhead_ms=max(0.0, measured_ms - gpu_ms)),
        "GPU behind the CPU": replace(bare, cpu_ms=measured_ms),
    }
    lines = []
    for clock, cost in clocks.items():
        for k, (found, filled) in pools.items():
            base = serve(filled, f"fixed:{k}", cost)
            for arm, pool, policy in ((TRIMMED, found, f"fixed:{k}"), ("adaptive", filled, "adaptive")):
                totals = serve(pool, policy, cost)
                verdict = judge(arm, "not trimmed", totals, base, found.num_units, None)
                lines.append(
                    {"clock": clock, "k": k, "arm": arm, "ratio": verdict.ratio, "low": verdict.low,
                     "high": verdict.high, "verdict": verdict.word, "acceptance_length": length_of(totals),
                     "acceptance_length_not_trimmed": length_of(base), "step_ms": ms_of(totals),
                     "step_ms_not_trimmed": ms_of(base)}
                )  # fmt: skip
    frame = pl.DataFrame(lines)
    frame.write_csv(out / "ratios.csv", float_precision=4)
    checks = [
        Check(name=f"acceptance length without trimming, K = {depth}", got=length_of(plain[depth]),
              expected=NOT_TRIMMING_AL, rule="reported", source=experiment.source),
        Check(name="ms a step without trimming: GPU alone, against TPOT × acceptance length", got=gpu_ms,
              expected=measured_ms, rule="reported", unit="ms", source=experiment.source),
    ]  # fmt: skip
    chosen = frame.filter(pl.col("k") == depth)
    for row in chosen.iter_rows(named=True):
        against = published if row["arm"] == TRIMMED else None
        checks.append(
            Check(name=f"{row['clock']}, K = {depth}: {row['arm']} / not trimmed ({row['verdict']})", got=row["ratio"],
                  expected=against, rule="reported", low=row["low"], high=row["high"], source=experiment.source)
        )  # fmt: skip
    plot(frame, clocks, published, out)
    said = [
        f"{100 * (row['ratio'] - 1):+.1f} % ({row['clock']}: {row['verdict']})"
        for row in chosen.filter(pl.col("arm") == TRIMMED).iter_rows(named=True)
    ]
    return Result(
        tuple(checks),
        f"published {100 * (published - 1):+.1f} %, spread of runs up to {NOISE_PCT} %; by analogy avsim says "
        f"{', '.join(said)}",
    )


def plot(frame: pl.DataFrame, clocks: dict[str, CostModel], published: float, out: Path) -> None:
    figure, axes = make_plot(2, width=8.5)
    tokens = np.arange(CONCURRENCY, CONCURRENCY * 6 + 1)
    for number, (clock, cost) in enumerate(clocks.items()):
        axes[0].plot(tokens, step_ms(cost, tokens), color=f"C{number}", label=clock)
        for arm, mark in ((TRIMMED, "o-"), ("adaptive", "s--")):
            part = frame.filter((pl.col("clock") == clock) & (pl.col("arm") == arm))
            gaps = [part["ratio"] - part["low"], part["high"] - part["ratio"]]
            gaps = [100 * gap.clip(lower_bound=0) for gap in gaps]
            axes[1].errorbar(part["k"], 100 * (part["ratio"] - 1), yerr=gaps, fmt=mark, ms=4, lw=1, color=f"C{number}",
                             label=f"{clock}: {arm}")  # fmt: skip
    axes[0].set(xlabel="target tokens in a step of 128 requests", ylabel="ms", ylim=(0, None), title="Step time")
    axes[0].legend(fontsize=8)
    change = 100 * (published - 1)
    axes[1].axhspan(change - NOISE_PCT, change + NOISE_PCT, color="0.85", label="published ± spread of runs")
    axes[1].axhline(change, color="0.4", lw=1)
    axes[1].set(
        xlabel="K",
        xticks=range(1, 6),
        ylabel="throughput against not trimming, %",
        title="Simulated by analogy, published in grey",
    )
    axes[1].legend(fontsize=7)
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
