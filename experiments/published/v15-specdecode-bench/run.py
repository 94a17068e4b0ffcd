"""SpecDecode-Bench's 24 speed-ups through avsim's closed loop: a batch is as many copies of one request."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from avsim import policies
from avsim.costs import load
from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.simulate import Arm, simulate
from avsim.sources.importers import import_trace
from avsim.workload import Pool

COST = "llama-3.1-8b-h100-eagle"
BATCHES = (1, 8, 64)
ALLOWED = 1e-4
NAMES = {"none": "none", "fixed:1": "fixed:1", "fixed:3": "fixed:3", "fixed:5": "fixed:5", "oracle": "oracle:exact"}
"""The benchmark's oracle verifies exactly what will be accepted."""


def throughputs(source: Path, scratch: Path) -> dict[tuple[str, int], float]:
    """Return the mean over requests of tokens/s, each request served alone in a batch of its copies."""
    pool = Pool.from_trace(import_trace("specdecode-bench:drafter=eagle", source, scratch / source.stem))
    one_each = np.arange(len(pool.start))[:, None]
    found = {}
    for copies in BATCHES:
        for name, spec in NAMES.items():
            arm = Arm(policies.make(spec))
            result = simulate(pool, arm, one_each, 1, load(COST), prompts="own-step", copies=copies)
            found[name, copies] = float(result.whole.throughput_tok_s.mean())
    return found


def run(experiment: Experiment, out: Path) -> Result:
    cells = pl.read_csv(experiment.reference("specdecode_bench_speedups.csv"))
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for dataset in cells["dataset"].unique().sort():
            source = experiment.reference(f"specdecode_bench/{dataset}.jsonl")
            found[dataset] = throughputs(source, Path(scratch))
    checks, lines = [], []
    for cell in cells.iter_rows(named=True):
        rates, batch = found[cell["dataset"]], cell["batch_size"]
        speedup = rates[cell["policy"], batch] / rates["none", batch]
        check = Check(
            name=f"{cell['dataset']} {cell['policy']}, batch of {batch}", got=speedup,
            expected=cell["throughput_speedup"], rule="relative", tolerance=ALLOWED, source=experiment.source,
        )  # fmt: skip
        checks.append(check)
        lines.append(cell | {"avsim": speedup, "error_pct": 100 * (check.error or 0.0)})
    frame = pl.DataFrame(lines)
    plot(frame, out)
    worst = max(abs(check.error or 0.0) for check in checks)
    return Result(tuple(checks), f"largest error {100 * worst:.4f} % over {len(checks)} cells")


def plot(frame: pl.DataFrame, out: Path) -> None:
    figure, axes = make_plot(2, width=8)
    for axis, dataset in zip(axes, frame["dataset"].unique().sort(), strict=True):
        for number, (policy,) in enumerate(frame.select("policy").unique(maintain_order=True).iter_rows()):
            part = frame.filter((pl.col("dataset") == dataset) & (pl.col("policy") == policy))
            axis.plot(part["batch_size"], part["throughput_speedup"], "o", ms=8, mfc="none", color=f"C{number}")
            axis.plot(part["batch_size"], part["avsim"], "x-", ms=4, lw=0.8, color=f"C{number}", label=policy)
        axis.set(xscale="log", xticks=BATCHES, xticklabels=BATCHES, xlabel="copies in the batch", title=dataset,
                 ylabel="speed-up over plain decoding")  # fmt: skip
        axis.minorticks_off()
    axes[0].legend(title="lines: avsim\ncircles: authors", fontsize=8)
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
