"""Cumulative ECE of a confidence head before and after STS, and AUCs, beside DSpark's figure 6.

The measuring is that of experiments/estimator-bakeoff (heads.py), which compares more scores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "estimator-bakeoff"))
from heads import head_rows

PUBLISHED = {0: (5.7, 2.0, 0.818), 2: (8.2, 1.7, 0.812), 4: (5.8, 0.8, 0.864), 6: (3.3, 0.4, 0.907)}
"""By slot (position − 1): cumulative ECE before and after STS in %, AUC."""
BEFORE, AFTER, LOGITS = "head, raw", "head, STS (offline, cross-fitted)", "log-odds, online-logistic"


def run(experiment: Experiment, out: Path) -> Result:
    frame = pl.DataFrame([row for path in experiment.traces for row in head_rows(path, 0)])
    frame = frame.filter(pl.col("score").is_in([BEFORE, AFTER, LOGITS, "multi-logistic (no head)"]))
    frame.write_csv(out / "calibration.csv", float_precision=4)
    checks = []
    for row in frame.iter_rows(named=True):
        before, after, auc = PUBLISHED.get(row["slot"], (None, None, None))
        name = f"{row['trace']}, position {row['slot'] + 1}, {row['score']}"
        if row["score"] in (BEFORE, AFTER):
            checks.append(
                Check(name=f"{name}: cumulative ECE", got=row["ece_pct"], rule="reported", unit="%", low=row["low_pct"],
                      expected=before if row["score"] == BEFORE else after, high=row["high_pct"],
                      source=experiment.source)
            )  # fmt: skip
        if row["score"] == AFTER:
            checks.append(
                Check(name=f"{name}: change of ECE by STS", got=row["change_points"], rule="reported", unit="points",
                      expected=None if before is None or after is None else after - before, low=row["change_low"],
                      high=row["change_high"], source=experiment.source)
            )  # fmt: skip
        if row["score"] in (BEFORE, LOGITS):
            checks.append(
                Check(name=f"{name}: AUC", got=row["auc"], rule="reported", expected=auc, source=experiment.source)
            )
    plot(frame, out)
    changes = frame.filter(pl.col("score") == AFTER)
    lower, higher = (changes.filter(test).height for test in (pl.col("change_high") < 0, pl.col("change_low") > 0))
    raw = frame.filter(pl.col("score") == BEFORE)["ece_pct"]
    theirs = [before for before, _, _ in PUBLISHED.values()]
    return Result(
        tuple(checks),
        f"STS lowers cumulative ECE distinguishably in {lower} of {changes.height} slots and raises it in {higher}; "
        f"before it, these heads are off by {raw.min():.1f} … {raw.max():.1f} %, the published one by {min(theirs)} … "
        f"{max(theirs)} %",
    )


def plot(frame: pl.DataFrame, out: Path) -> None:
    traces = frame["trace"].unique(maintain_order=True)
    figure, axes = make_plot(len(traces), width=8.5)
    for axis, trace in zip(axes, traces, strict=True):
        for number, (score, label) in enumerate(((BEFORE, "head"), (AFTER, "head + STS"))):
            part = frame.filter((pl.col("trace") == trace) & (pl.col("score") == score))
            gaps = [part["ece_pct"] - part["low_pct"], part["high_pct"] - part["ece_pct"]]
            gaps = [gap.clip(lower_bound=0) for gap in gaps]  # resampling adds noise, so an ECE can lie below it all
            axis.errorbar(part["slot"] + 1 + 0.1 * number, part["ece_pct"], yerr=gaps, fmt="o-", ms=4, lw=1,
                          color=f"C{number}", label=f"{label}, here (95 %)")  # fmt: skip
            theirs = [values[number] for values in PUBLISHED.values()]
            axis.plot([slot + 1 for slot in PUBLISHED], theirs, "x--", lw=0.8, color=f"C{number}",
                      label=f"{label}, Qwen3-4B (published)")  # fmt: skip
        axis.set(xlabel="position", ylabel="cumulative ECE, %", title=trace, ylim=(0, 12))
    axes[0].legend(fontsize=7, loc="upper right")
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
