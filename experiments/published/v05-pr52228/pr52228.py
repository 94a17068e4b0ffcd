"""vLLM PR #52228's table: its cells as points, a fit on some of them, and what follows for the others (V5 and V6).

Adaptive cells cost thousands of times what fixed ones do, so the sampler sees the fixed cells only, and the draws are
then weighted by how likely each makes the adaptive cells that may be used: the same posterior, by importance sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from avsim.planning.infer import Posterior, Priors, fit_points
from avsim.planning.predict import Prediction, predict_adaptive
from avsim.planning.throughput_table import Point

CONCURRENCY = 64
SWEEPS = 4000
WEIGHED = 3000
STEP_DRAWS = 60


@dataclass(frozen=True)
class Row:
    """One dataset of one model: its two cells, without and with adaptive verification."""

    off: Point
    on: Point

    @property
    def gain_pct(self) -> float:
        return 100 * (self.on.throughput_tok_s / self.off.throughput_tok_s - 1)

    @property
    def kept_length(self) -> float:
        """Acceptance length, on / off."""
        return (self.on.acceptance_length or np.nan) / (self.off.acceptance_length or np.nan)

    @property
    def step_ratio(self) -> float:
        """Step time, on / off: TPOT × acceptance length."""
        return self.kept_length * (self.on.num_reqs / self.off.num_reqs) / (1 + self.gain_pct / 100)


@dataclass(frozen=True)
class Found:
    """A posterior given the cells that were used, the draws its weights are worth, and predictions by workload."""

    posterior: Posterior
    effective_draws: float
    predictions: dict[str, Prediction]

    def gain_pct(self, workload: str) -> tuple[float, float, float]:
        """Return the predicted gain and its 80 % interval, %."""
        item = self.predictions[workload]
        middle, low, high = (100 * (x - 1) for x in (item.ratio, item.low80, item.high80))
        return middle, low, high


def read_table(path: Path, model: str) -> dict[str, Row]:
    """Return the rows of a model by dataset; requests in flight on average = tok/s × TPOT."""
    rows = {}
    for line in pl.read_csv(path).filter(pl.col("model") == model).iter_rows(named=True):
        arms = [
            Point(
                line["dataset"],
                policy,
                int(line["num_speculative_tokens"]),
                CONCURRENCY,
                float(line[f"tok_s_{arm}"]) * float(line[f"tpot_ms_{arm}"]) * 1e-3,
                float(line[f"tok_s_{arm}"]),
                float(line[f"al_{arm}"]),
                float(line["noise_pct"]),
            )
            for policy, arm in (("fixed", "off"), ("adaptive", "on"))
        ]
        rows[line["dataset"]] = Row(*arms)
    return rows


def weighed(posterior: Posterior, cells: list[Point], seed: int) -> tuple[Posterior, float]:
    """Add cells to a posterior: draws resampled by their likelihood, and how many independent ones they are worth."""
    fit, rng = posterior.fit, np.random.default_rng([seed, 0x0E55])
    theta = posterior.draws[rng.choice(len(posterior.draws), WEIGHED, replace=False)]
    more = replace(fit, points=cells)
    prior = -0.5 * (((theta - fit.mean) / fit.sd) ** 2).sum(axis=1)
    gain = more.log_density(theta) - prior
    weight = np.exp(gain - gain.max())
    weight /= weight.sum()
    even = (np.arange(WEIGHED) + rng.random()) / WEIGHED
    chosen = np.minimum(np.searchsorted(np.cumsum(weight), even), WEIGHED - 1)
    return replace(posterior, draws=theta[chosen], best=theta[gain.argmax()]), float(1 / (weight**2).sum())


def fit_and_predict(rows: dict[str, Row], both_arms: list[str], draws: int, seed: int) -> Found:
    """Fit the off arms of all rows and both arms of some; predict adaptive over fixed in every row."""
    off = [row.off for row in rows.values()]
    fitted = fit_points(off, Priors.load(), limit=None, seed=seed, sweeps=SWEEPS)
    posterior, effective = weighed(fitted, [rows[name].on for name in both_arms], seed)
    found = predict_adaptive(posterior, against=[f"fixed:{off[0].depth}"], draws=draws, seed=seed)
    return Found(posterior, effective, {item.workload: item for item in found})


def off_errors_pct(posterior: Posterior) -> np.ndarray:
    """Return the median error of the draws at each fitted fixed cell, %."""
    rate, _ = posterior.fit.predicted(posterior.draws)
    seen = np.log([point.throughput_tok_s for point in posterior.fit.points])
    return 100 * np.expm1(np.median(rate - seen, axis=0))


def kept_and_step(posterior: Posterior, off: Point) -> tuple[float, float]:
    """Return predicted acceptance length and step time, on / off, medians of some draws."""
    theta = posterior.draws[:: max(1, len(posterior.draws) // STEP_DRAWS)]
    law, mine = posterior.fit.law(theta), replace(off, policy="adaptive", acceptance_length=None)
    full = replace(posterior.fit, points=[off])
    rate, length = np.exp(full.predicted(theta))[:, :, 0]
    cells = np.array([posterior.fit.adaptive(row, law.draw(i), mine) for i, row in enumerate(theta)])
    kept = cells[:, 1] / length
    return float(np.median(kept)), float(np.median(kept / (cells[:, 0] / rate)))
