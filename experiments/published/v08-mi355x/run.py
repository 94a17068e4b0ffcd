"""Adaptive over fixed:7 on MI355X at seven loads, from plain and fixed:7 throughputs under priors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from avsim.experiments import Check, Experiment, Result, main, make_plot, save_plot
from avsim.planning.infer import Fit, Posterior, Priors, fit_points
from avsim.planning.predict import Overhead, Prediction, predict_adaptive
from avsim.planning.throughput_table import Point

SWEEPS = 3000
SEEDS = (0, 1, 2)  # the first is the run that is judged
SIGNED = (64, 128, 256)
ASKED_INSIDE, ASKED_HALF_WIDTH_PCT = 5, 15
PRIOR_DRAWS = 4000


def read_rows(path: Path, depth: int) -> tuple[list[Point], dict[int, float]]:
    """Return the plain and fixed points, and the published adaptive / fixed ratio by load."""
    points, ratio = [], {}
    for row in pl.read_csv(path).iter_rows(named=True):
        load = int(row["concurrency"])
        points.append(Point("", "none", 0, load, load, float(row["none_tok_s"])))
        points.append(Point("", "fixed", depth, load, load, float(row["fixed7_tok_s"])))
        ratio[load] = float(row["adaptive_tok_s"]) / float(row["fixed7_tok_s"])
    return points, ratio


def predicted(posterior: Posterior, settings: dict[str, Any], overhead: Overhead, seed: int = 0) -> list[Prediction]:
    depth, draws = settings["draft_depth"], settings["posterior_draws"]
    return predict_adaptive(
        posterior, depth=depth, overhead=overhead, against=[f"fixed:{depth}"], draws=draws, seed=seed
    )


def inside(item: Prediction, ratio: float) -> bool:
    return item.low80 <= ratio <= item.high80


def quantities(fit: Fit, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the table may or may not identify, for parameter vectors `[n, P]`."""
    law = fit.law(theta)
    spreads = [fit.spread(row) for row in theta]
    reqs, depth = 64, fit.num_slots
    return {
        "acceptance length at K = 7": 1 + fit.conditional(theta, "").cumprod(axis=1).sum(axis=1),
        "spread of the confidences' logits": np.array([spread.sd for spread in spreads]),
        "share of the spread that a request keeps": np.array([spread.request_share for spread in spreads]),
        "fixed cost of a step, ms": law.fixed,
        "per target token, µs": 1e3 * law.per_token,
        "per request (KV reads and the like), µs": 1e3 * law.per_req,
        "cliff past the capture limit, ms": law.cliff,
        "drafting for 64 requests, ms": law.draft_ms(reqs, depth),
        "share of drafting that goes by request and slot": (law.draft_per_req + law.draft_per_slot * depth) * reqs
        / law.draft_ms(reqs, depth),
        "prompt work per output token, µs": 1e3 * law.prompt_per_output,
        "a fixed:7 step at 64 requests, ms": law.verify_ms(reqs, reqs * (1 + depth)) + law.draft_ms(reqs, depth),
    }  # fmt: skip


def learned(posterior: Posterior) -> pl.DataFrame:
    """Return prior and posterior of every quantity: median, 80 % interval, and how much of the spread is left."""
    fit, rng = posterior.fit, np.random.default_rng([0, 0x9812])
    prior = quantities(fit, fit.mean + fit.sd * rng.standard_normal((PRIOR_DRAWS, len(fit.mean))))
    pick = rng.choice(len(posterior.draws), PRIOR_DRAWS, replace=False)
    now = quantities(fit, posterior.draws[pick])
    rows = []
    for name, after in now.items():
        (low0, middle0, high0), (low, middle, high) = (np.percentile(x, [10, 50, 90]) for x in (prior[name], after))
        rows.append({
            "quantity": name, "prior_low": low0, "prior_median": middle0, "prior_high": high0, "low": low,
            "median": middle, "high": high, "spread_left": np.log(high / low) / np.log(high0 / low0),
        })  # fmt: skip
    return pl.DataFrame(rows)


def run(experiment: Experiment, out: Path) -> Result:
    settings = tomllib.loads((experiment.folder / "inputs.toml").read_text(encoding="utf-8"))
    points, true = read_rows(experiment.reference("pr52362_mi355x.csv"), settings["draft_depth"])
    priors = Priors.load().with_auc(*settings["auc"])
    overhead = Overhead(settings["overhead_ms"], settings["overhead_sd_ms"])
    fits = [fit_points(points, priors, limit=settings["capture_limit"], seed=seed, sweeps=SWEEPS) for seed in SEEDS]
    runs = [predicted(fit, settings, overhead, seed) for fit, seed in zip(fits, SEEDS, strict=True)]
    posterior, found = fits[0], runs[0]
    free = predicted(posterior, settings, Overhead())
    counts = [sum(inside(item, true[item.concurrency]) for item in items) for items in runs]
    half = [(item.high80 - item.low80) / 2 / item.ratio * 100 for item in found]
    signs = sum(item.ratio > 1 for item in found if item.concurrency in SIGNED)
    errors = posterior.errors_pct()

    checks = [
        Check(name=f"fit of the {len(errors)} points, rms", got=np.sqrt(np.mean(errors**2)), rule="reported", unit="%"),
        Check(name="fit, worst point", got=np.abs(errors).max(), rule="reported", unit="%"),
    ]
    for item, none in zip(found, free, strict=True):
        load = item.concurrency
        kind = "predicted" if load in SIGNED else "explained"
        checks.append(Check(name=f"{load} requests ({kind}): adaptive / fixed7, 80 % interval", got=item.ratio,
                            expected=true[load], low=item.low80, high=item.high80, rule="reported",
                            source=experiment.source))  # fmt: skip
        checks.append(Check(name=f"{load} requests: the same if adaptive verification itself cost nothing",
                            got=none.ratio, expected=true[load], low=none.low80, high=none.high80, rule="reported",
                            source=experiment.source))  # fmt: skip
    checks += [
        Check(name="loads whose published ratio lies inside the 80 % interval", got=counts[0], expected=ASKED_INSIDE,
              rule="at least", source="asked for"),
        Check(name="widest half-width, % of the ratio", got=max(half), expected=ASKED_HALF_WIDTH_PCT, rule="at most",
              unit="%", source="asked for"),
        Check(name=f"signs right at {', '.join(map(str, SIGNED))}", got=signs, expected=len(SIGNED),
              source="asked for"),
    ]  # fmt: skip
    for seed, count in list(zip(SEEDS, counts, strict=True))[1:]:
        checks.append(Check(name=f"loads inside with another seed of the sampler ({seed})", got=count,
                            expected=ASKED_INSIDE, rule="reported", source="asked for"))  # fmt: skip
    table = learned(posterior)
    table.write_csv(out / "identified.csv", float_precision=4)
    for row in table.iter_rows(named=True):
        name = f"{row['quantity']} (prior {row['prior_low']:.2g} … {row['prior_high']:.2g}), 80 % interval"
        checks.append(Check(name=name, got=row["median"], low=row["low"], high=row["high"], rule="reported"))
    plot(out, found, free, true, table)
    missed = [str(item.concurrency) for item in found if not inside(item, true[item.concurrency])]
    said = (
        f"inside at {counts[0]} of {len(found)} loads, not at {' and '.join(missed) or 'none'}; with other seeds "
        f"{' and '.join(map(str, counts[1:]))}; half-widths up to {max(half):.1f} %"
    )
    return Result(tuple(checks), said)


def plot(
    out: Path, found: list[Prediction], free: list[Prediction], true: dict[int, float], table: pl.DataFrame
) -> None:
    figure, (left, right) = make_plot(2, width=9.5, height=4)
    loads = [item.concurrency for item in found]
    place = np.arange(len(loads))
    for items, shift, color, label in (
        (found, -0.12, "C0", "with the overhead of the ablation"),
        (free, 0.12, "0.6", "if it cost nothing itself"),
    ):
        middle = np.array([item.ratio for item in items])
        ends = np.array([[item.low80 for item in items], [item.high80 for item in items]])
        left.errorbar(place + shift, middle, yerr=np.abs(ends - middle), fmt="o", color=color, ms=4, capsize=3, lw=1.2,
                      label=f"{label}, 80 % interval")  # fmt: skip
    left.plot(place, list(true.values()), "D", color="C1", ms=5, label="published")
    left.axhline(1, color="0.4", lw=1, ls="--")
    left.set(xlabel="requests in flight", ylabel="adaptive / fixed:7", xticks=place, xticklabels=loads, yscale="log",
             title="Predicted (64 up), explained (32 down)", ylim=(0.86, 1.85))  # fmt: skip
    ticks = [0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.legend(loc="upper left", fontsize=7)
    order = table.sort("spread_left", descending=True)
    names = [name.replace(" (KV reads and the like)", "") for name in order["quantity"]]
    right.barh(np.arange(len(names)), order["spread_left"], color="C0")
    right.set_yticks(np.arange(len(names)), names, fontsize=7)
    right.axvline(1, color="0.4", lw=1, ls="--")
    right.set(xlabel="80 % interval after the fit / before, of the logarithm", title="1: the table says nothing of it")
    save_plot(figure, out)


if __name__ == "__main__":
    main(run)
