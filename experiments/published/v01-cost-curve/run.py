"""Tables of the published DeepSeek-V4-Flash profile, and the shipped preset beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from avsim.costs import CurveCost, load, staircase
from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot

PRESET = "deepseek-v4-flash-tp4-b300"
CAPTURE_LIMIT = 1024
ASKED = "published.md, V1"


def medians(path: Path, size: str) -> list[tuple[int, float]]:
    """Return (size, ms) of the median rows."""
    rows = pl.read_csv(path).filter(pl.col("kind") == "median").select(size, "ms")
    return [(int(n), float(ms)) for n, ms in rows.iter_rows()]


def run(experiment: Experiment, out: Path) -> Result:
    verify_file = experiment.reference("cost_verify_v4flash_tp4_b300.csv")
    verify = medians(verify_file, "num_target_tokens")
    draft = medians(experiment.reference("cost_draft_v4flash_tp4_b300.csv"), "num_reqs")
    table = staircase(16384, verify, CAPTURE_LIMIT)
    captured = [size for size, _ in verify if size <= CAPTURE_LIMIT]
    beyond = table[CAPTURE_LIMIT + 1 : 2 * CAPTURE_LIMIT + 1]
    preset = load(PRESET)
    assert isinstance(preset, CurveCost)
    tables = preset.tables(256, 2048)
    differing = len(set(preset.verify) ^ set(verify)) + len(set(preset.draft) ^ set(draft))
    checks = (
        Check(name="captured sizes", got=len(captured), expected=83, source=ASKED),
        Check(name="distinct values after the running maximum", got=len(np.unique(table[captured])), expected=49,
              source=ASKED),
        Check(name="V[1024]", got=table[1024], expected=20.634, unit="ms", source=ASKED),
        Check(name="least of V[1025…2048]", got=beyond.min(), expected=104.489, unit="ms", source=ASKED),
        Check(name="greatest of V[1025…2048]", got=beyond.max(), expected=104.489, unit="ms", source=ASKED),
        Check(name="sizes at which the table falls", got=int((np.diff(table) < 0).sum()), expected=0,
              source="a running maximum"),
        Check(name=f"points in which the preset {PRESET} differs from the published medians", got=differing, expected=0,
              source=experiment.source),
        Check(name="preset: V[1025] − V[1024]", got=tables.verify[1025] - tables.verify[1024],
              expected=104.489 - 20.634, tolerance=1e-9, unit="ms", source=ASKED),
    )  # fmt: skip
    plot(verify_file, table, out)
    cliff = beyond.min() / table[CAPTURE_LIMIT]
    return Result(checks, f"one token beyond the capture limit makes a step {cliff:.1f} times as long")


def plot(path: Path, table: np.ndarray, out: Path) -> None:
    rows = pl.read_csv(path)
    figure, (axis,) = make_plot()
    for kind, mark, color in (("sample", ".", "0.7"), ("median", "o", "C0")):
        part = rows.filter(pl.col("kind") == kind)
        axis.plot(part["num_target_tokens"], part["ms"], mark, ms=4, color=color, label=f"published {kind}s")
    axis.step(
        np.arange(1, len(table)), table[1:], where="mid", color="C1", lw=1.2, label="table read by the budget rule"
    )
    axis.axvline(CAPTURE_LIMIT, color="0.5", ls=":", lw=1)
    axis.annotate("capture limit", (CAPTURE_LIMIT, 5), xytext=(4, 0), textcoords="offset points", color="0.4")
    axis.set(xscale="log", yscale="log", xlabel="target tokens in the step", ylabel="ms",
             title="DeepSeek-V4-Flash on 4×B300: published profile and table")  # fmt: skip
    axis.legend(loc="upper left")
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
