"""Published acceptance lengths through the planner's reader, where each K was measured in a run of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.planning.acceptance import Acceptance

NAMES = ("model", "drafter", "mode")


def run(experiment: Experiment, out: Path) -> Result:
    rows = pl.read_csv(experiment.reference("golden_al.csv"))
    length = rows.drop(NAMES).to_numpy()
    rise = np.diff(length, axis=1, prepend=1.0)
    falling, lawful = (rise < 0).any(axis=1), ((rise > 0).all(axis=1)) & (np.diff(rise, axis=1) <= 0).all(axis=1)
    read = [Acceptance.from_lengths(line) for line in length]
    held = np.stack([1 + np.cumsum(acceptance.marginal) for acceptance in read])
    away = np.abs(held - length).max(axis=1)
    noted = np.array([bool(acceptance.notes) for acceptance in read])
    conditional = np.stack([acceptance.conditional for acceptance in read])[lawful]
    ratios = rise[lawful] / np.concatenate([np.ones((lawful.sum(), 1)), rise[lawful][:, :-1]], axis=1)
    source = experiment.source
    checks = (
        Check(name="rows read as planner input", got=len(read), expected=12, source=source),
        Check(name="largest K", got=length.shape[1], expected=8, source=source),
        Check(name="rows with a falling tail", got=int(falling.sum()), expected=5, source=source),
        Check(name="rows with a falling tail that are mended without a note", got=int((falling & ~noted).sum()),
              expected=0, source="no silent change"),
        Check(name="rows without a note that are not held exactly", got=int((~noted & (away > 1e-5)).sum()), expected=0,
              source="no silent change"),
        Check(name="rows of one acceptance law: conditional acceptance − ratio of rises, largest",
              got=float(np.abs(conditional - ratios).max(initial=0)), expected=0.0, tolerance=1e-5, source="identity"),
        Check(name="rows of one acceptance law: length held − published, largest",
              got=float(away[lawful].max(initial=0)), expected=0.0, tolerance=1e-5, unit="tokens", source="identity"),
        Check(name="rows that no acceptance law has", got=int((~lawful).sum()), rule="reported"),
        Check(name="furthest that the nearest law lies from what was published", got=float(away.max()), rule="reported",
              unit="tokens"),
    )  # fmt: skip
    plot(rows, length, held, lawful, out)
    return Result(
        checks,
        f"{int(lawful.sum())} of {len(rows)} curves are one acceptance law and are held exactly; the others fall or "
        f"rise faster than before somewhere, and the nearest law stands in with a note, up to "
        f"{away.max():.2f} tokens away",
    )


def plot(rows: pl.DataFrame, length: np.ndarray, held: np.ndarray, lawful: np.ndarray, out: Path) -> None:
    figure, axes = make_plot(2, width=8.5, height=4.2)
    depth = range(1, length.shape[1] + 1)
    for line, name in enumerate(rows.select(NAMES).iter_rows()):
        axis = axes[0 if lawful[line] else 1]
        (curve,) = axis.plot(depth, length[line], "o", ms=3, label=" ".join(name))
        axis.plot(depth, held[line], "-", lw=1, color=curve.get_color())
    for axis, title in zip(axes, ("One acceptance law", "No acceptance law has these: the nearest"), strict=True):
        axis.set(xlabel="K", ylabel="acceptance length", title=title, ylim=(1.5, 6.6))
        axis.legend(
            fontsize=6,
            loc="upper left",
            ncols=2,
            columnspacing=0.6,
            title="points: published, lines: read",
            title_fontsize=7,
        )
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
