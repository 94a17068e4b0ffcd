"""Gains of four datasets from the fixed arms of all and the adaptive arm of one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
from pr52228 import Found, Row, fit_and_predict, kept_and_step, off_errors_pct, read_table

from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot

MODEL = "unnamed-k8"
ALLOWED = {"speed-bench-2k-high-entropy": 5.0, "mt-bench": 8.0}
SEEDS = (0, 1)  # the first is the run that is judged


def run(experiment: Experiment, out: Path) -> Result:
    settings = tomllib.loads((experiment.folder / "inputs.toml").read_text(encoding="utf-8"))
    rows = read_table(experiment.reference("pr52228_results.csv"), MODEL)
    both, names, draws = settings["fit_both_arms"], settings["predict"], settings["posterior_draws"]
    found, again = (fit_and_predict(rows, both, draws, seed) for seed in SEEDS)
    source, checks = experiment.source, []
    for name in names:
        middle, low, high = found.gain_pct(name)
        judged = name in ALLOWED
        checks.append(Check(name=f"{name}: gain, 80 % interval (repeat noise of the row {rows[name].on.noise_pct:g} %)",
                            got=middle, expected=rows[name].gain_pct, low=low, high=high, unit="%", source=source,
                            rule="within" if judged else "reported", tolerance=ALLOWED.get(name, 0.0)))  # fmt: skip
    for name in names:
        kept, step = kept_and_step(found.posterior, rows[name].off)
        checks += [
            Check(name=f"{name}: acceptance length, on / off", got=kept, expected=rows[name].kept_length,
                  rule="reported", source=source),
            Check(name=f"{name}: step time, on / off", got=step, expected=rows[name].step_ratio, rule="reported",
                  source=source),
        ]  # fmt: skip
    for name in both:
        middle, low, high = found.gain_pct(name)
        checks.append(Check(name=f"{name}: gain, fitted", got=middle, expected=rows[name].gain_pct, low=low, high=high,
                            rule="reported", unit="%", source=source))  # fmt: skip
    checks += [
        Check(name=f"{name}: error of the fit where adaptive verification is off ({row.off.num_reqs:.0f} requests)",
              got=error, expected=0.0, rule="reported", unit="%", source=source)
        for (name, row), error in zip(rows.items(), off_errors_pct(found.posterior), strict=True)
    ]  # fmt: skip
    checks += [
        Check(name="independent draws that the weights are worth", got=found.effective_draws, rule="reported")
    ] + [
        Check(name=f"{name}: gain with another seed", got=again.gain_pct(name)[0], expected=found.gain_pct(name)[0],
              rule="reported", unit="%", source="the run that is judged")
        for name in names
    ]  # fmt: skip
    plot(out, rows, found, both)
    noise = max(abs(again.gain_pct(name)[0] - found.gain_pct(name)[0]) for name in names)
    missed = [
        name for name in names if not found.gain_pct(name)[1] <= rows[name].gain_pct <= found.gain_pct(name)[2]
    ]  # fmt: skip
    return Result(
        tuple(checks),
        f"{', '.join(f'{name} {found.gain_pct(name)[0]:+.1f} % ({rows[name].gain_pct:+.1f})' for name in names)}, "
        f"published in brackets; outside its 80 % interval: {', '.join(missed) or 'none'}; seeds differ by up to "
        f"{noise:.1f} points",
    )


def plot(out: Path, rows: dict[str, Row], found: Found, both: list[str]) -> None:
    figure, (axis,) = make_plot(height=3.8)
    place = np.arange(len(rows))
    gains = np.array([found.gain_pct(name) for name in rows])
    fitted = np.array([name in both for name in rows])
    for mask, color, label in ((~fitted, "C0", "predicted"), (fitted, "0.6", "fitted")):
        axis.errorbar(place[mask] - 0.1, gains[mask, 0], yerr=np.abs(gains[mask, 1:].T - gains[mask, 0]), fmt="o",
                      color=color, capsize=3, label=f"{label}, 80 % interval")  # fmt: skip
    published = [row.gain_pct for row in rows.values()]
    noise = [np.sqrt(2) * row.on.noise_pct for row in rows.values()]
    axis.errorbar(place + 0.1, published, yerr=noise, fmt="D", color="C1", capsize=3, ms=5,
                  label="published, bar: √2 · its repeat noise")  # fmt: skip
    labels = [
        f"{name.removeprefix('speed-bench-2k-')}\n{row.off.num_reqs:.0f} requests, AL {row.off.acceptance_length}"
        for name, row in rows.items()
    ]
    axis.set_xticks(place, labels, fontsize=7.5)
    axis.axhline(0, color="0.4", lw=1, ls="--")
    axis.set(ylabel="gain of adaptive verification, %", title="PR #52228, unnamed model, K = 8", ylim=(None, 56))
    axis.legend(loc="upper right", fontsize=7)
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
