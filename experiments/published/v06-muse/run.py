"""The high-entropy gain of the Muse rows, from the low-entropy row and its own fixed arm."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "v05-pr52228"))  # the same table, read the same way
from pr52228 import STEP_DRAWS, Found, Row, fit_and_predict, kept_and_step, off_errors_pct, read_table

from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.planning.expected import expected_step
from avsim.planning.population import Latents, Population
from avsim.policies import Adaptive

MODEL = "muse-glimmer-30b-dflash2"
TOLERANCE = 10.0
SEEDS = (0, 1)  # the first is the run that is judged


def admitted_share(found: Found, row: Row) -> float:
    """Return the share of drafted slots that adaptive verification keeps, median of some draws."""
    fit, reqs, depth = found.posterior.fit, round(row.off.num_reqs), row.off.depth
    shares = []
    for theta in found.posterior.draws[:: max(1, len(found.posterior.draws) // STEP_DRAWS)]:
        conditional = fit.conditional(theta[None], row.off.workload)[0]
        population = Population.make(conditional, fit.spread(theta), Latents.draw(depth, 18, reqs, 0))
        step = expected_step(Adaptive(), population, fit.law(theta[None]).draw(0).tables(reqs, depth))
        shares.append(step.admitted.mean() / (reqs * depth))
    return float(np.median(shares))


def run(experiment: Experiment, out: Path) -> Result:
    settings = tomllib.loads((experiment.folder / "inputs.toml").read_text(encoding="utf-8"))
    rows = read_table(experiment.reference("pr52228_results.csv"), MODEL)
    (low_name,), (name,), draws = settings["fit_both_arms"], settings["predict"], settings["posterior_draws"]
    found, again = (fit_and_predict(rows, [low_name], draws, seed) for seed in SEEDS)
    source = experiment.source
    gain, fitted = found.gain_pct(name), found.gain_pct(low_name)
    checks = [
        Check(name="high-entropy: gain, 80 % interval", got=gain[0], expected=rows[name].gain_pct, low=gain[1],
              high=gain[2], tolerance=TOLERANCE, unit="%", source=source),
        Check(name="high-entropy: gain, against the low-entropy row's as published and as fitted, the larger one",
              got=gain[0], expected=max(fitted[0], rows[low_name].gain_pct), rule="at least", unit="%",
              source="asked for"),
        Check(name="low-entropy: gain, fitted", got=fitted[0], expected=rows[low_name].gain_pct, low=fitted[1],
              high=fitted[2], rule="reported", unit="%", source=source),
    ]  # fmt: skip
    for item in (name, low_name):
        label = item.removeprefix("speed-bench-2k-")
        kept, step = kept_and_step(found.posterior, rows[item].off)
        checks += [
            Check(name=f"{label}: acceptance length, on / off", got=kept, expected=rows[item].kept_length,
                  rule="reported", source=source),
            Check(name=f"{label}: step time, on / off", got=step, expected=rows[item].step_ratio, rule="reported",
                  source=source),
            Check(name=f"{label}: drafted slots that are verified", got=100 * admitted_share(found, rows[item]),
                  unit="%", rule="reported"),
        ]  # fmt: skip
    checks += [
        Check(name=f"{item}: error of the fit where adaptive verification is off", got=error, expected=0.0,
              rule="reported", unit="%", source=source)
        for item, error in zip(rows, off_errors_pct(found.posterior), strict=True)
    ]  # fmt: skip
    checks += [
        Check(name="independent draws that the weights are worth", got=found.effective_draws, rule="reported"),
        Check(name="high-entropy: gain with another seed", got=again.gain_pct(name)[0], expected=gain[0],
              rule="reported", unit="%", source="the run that is judged"),
    ]  # fmt: skip
    plot(out, rows, found, low_name)
    return Result(
        tuple(checks),
        f"{gain[0]:+.1f} % (80 %: {gain[1]:+.1f} … {gain[2]:+.1f}) where {rows[name].gain_pct:+.1f} % was published; "
        f"another seed {again.gain_pct(name)[0]:+.1f} %",
    )


def plot(out: Path, rows: dict[str, Row], found: Found, low_name: str) -> None:
    figure, (left, right) = make_plot(2, width=8.5, height=3.6)
    place = np.arange(len(rows))
    labels = [name.removeprefix("speed-bench-2k-") for name in rows]
    for i, name in enumerate(rows):
        middle, low, high = found.gain_pct(name)
        kind, color = ("fitted", "0.6") if name == low_name else ("predicted", "C0")
        left.errorbar([i - 0.1], [middle], yerr=[[middle - low], [high - middle]], fmt="o", color=color, capsize=3,
                      label=f"{kind}, 80 % interval")  # fmt: skip
    left.plot(place + 0.1, [row.gain_pct for row in rows.values()], "D", color="C1", label="published")
    left.set(ylabel="gain of adaptive verification, %", title="Muse, K = 7, 1×GB200", xlim=(-0.6, 1.6), ylim=(0, None))
    left.legend(loc="lower right", fontsize=7)
    here = np.array([kept_and_step(found.posterior, row.off) for row in rows.values()])
    there = np.array([(row.kept_length, row.step_ratio) for row in rows.values()])
    for column, (shift, name) in enumerate(((-0.2, "acceptance length"), (0.2, "step time"))):
        for values, side, color, who in ((here, -0.09, "C0", "model"), (there, 0.09, "C1", "published")):
            style = {"color": color, "alpha": 1 - 0.5 * column, "label": f"{name}, {who}"}
            right.bar(place + shift + side, values[:, column], 0.17, **style)
    right.set(ylabel="on / off", title="What the gain is made of", ylim=(0, 1.45))
    right.legend(fontsize=7, ncols=2, loc="upper center")
    for axis in (left, right):
        axis.set_xticks(place, labels)
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
