"""Coefficients of online-logistic at the end of every shipped trace with log-odds, over several orders of requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from avsim.comparison import CompareConfig, compare
from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.sources import open_trace

ORDERS = 10
ESTIMATOR = "online-logistic"


def fitted(path: Path, seed: int) -> tuple[float, list[float], int]:
    """Return slope, intercepts and refits at the end of one walk over a trace."""
    config = CompareConfig(estimators=(ESTIMATOR,), seed=seed, offsets=1, bootstrap=100)
    state = compare([path], config, workers=1)[0]["states"][ESTIMATOR]
    slope, levels = (state["params"][name]["values"] for name in ("slope", "intercepts"))
    return float(slope[0]), [float(level) for level in levels], int(state["refits"])


def measured(path: Path) -> dict[str, object]:
    """Return a trace's coefficients: means over orders, and the range of the slope."""
    card = open_trace(path).card
    orders = range(ORDERS if card.kind == "dense" else 1)  # an engine's own steps have one order
    slopes, levels, refits = zip(*(fitted(path, seed) for seed in orders), strict=True)
    levels = np.array(levels)
    return {
        "trace": path.name, "drafting": card.draft_sampling, "num_speculative_tokens": card.num_speculative_tokens,
        "temperature": card.temperature, "refits": max(refits), "orders": len(orders), "slope": float(np.mean(slopes)),
        "slope_low": min(slopes), "slope_high": max(slopes), "intercept_mean": float(levels.mean()),
        "intercept_sd": float(levels.std(axis=1).mean()),
        "intercepts": " ".join(f"{level:.2f}" for level in levels.mean(axis=0)),
    }  # fmt: skip


def run(experiment: Experiment, out: Path) -> Result:
    published = pl.read_csv(experiment.reference("pr52228_coefficients.csv"))
    slopes = (published["slope_mean"].min(), published["slope_mean"].max())
    spreads = (published["intercept_sd"].min(), published["intercept_sd"].max())
    wanted = [path for path in experiment.traces if "log_odds" in (card := open_trace(path).card).recorded
              and card.derived_from is None]  # fmt: skip
    frame = pl.DataFrame([measured(path) for path in wanted])
    checks = []
    for row in frame.iter_rows(named=True):
        name = f"{row['trace']} ({row['drafting']}, {row['refits']} refits)"
        checks += [
            Check(name=f"{name}: slope", got=row["slope"], expected=slopes, rule="reported", low=row["slope_low"],
                  high=row["slope_high"], source=experiment.source),
            Check(name=f"{name}: spread of intercepts across slots (SD)", got=row["intercept_sd"], expected=spreads,
                  rule="reported", source=experiment.source),
        ]  # fmt: skip
    frame.write_csv(out / "coefficients.csv", float_precision=3)
    plot(frame, published, out)
    inside = frame.filter(pl.col("slope").is_between(*slopes)).height
    wide = frame.filter(pl.col("intercept_sd") > spreads[1]).height
    return Result(
        tuple(checks),
        f"{inside} of {frame.height} mean slopes lie in the published {slopes[0]:.3f} … {slopes[1]:.3f} "
        f"(here {frame['slope'].min():.3f} … {frame['slope'].max():.3f}); in {wide} traces intercepts differ more "
        "across slots than in any published drafter",
    )


def plot(frame: pl.DataFrame, published: pl.DataFrame, out: Path) -> None:
    figure, (axis,) = make_plot(height=4)
    for drafting, mark in (("greedy", "o"), ("probabilistic", "s")):
        mine, theirs = (part.filter(pl.col("drafting") == drafting) for part in (frame, published))
        gaps = np.abs(np.stack([mine["slope_low"], mine["slope_high"]]) - mine["slope"].to_numpy())
        axis.errorbar(mine["slope"], mine["intercept_mean"], xerr=gaps, fmt=mark, color="C0", ms=5, lw=0.6, alpha=0.8,
                      label=f"shipped traces, {drafting} drafts (bar: range over orders)")  # fmt: skip
        axis.errorbar(theirs["slope_mean"], theirs["intercept_mean"], xerr=theirs["slope_sd"], fmt=mark, color="C1",
                      ms=6, label=f"published, {drafting} drafts (bar: SD)")  # fmt: skip
    axis.plot(0.5, -0.2, "k*", ms=10, label="where the estimator starts")
    axis.set(xlabel="slope", ylabel="mean intercept", title="online-logistic: fitted coefficients", ylim=(None, 1.1))
    axis.legend(fontsize=7, loc="upper left")
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
