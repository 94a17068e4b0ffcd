"""What adaptive verification should do to a throughput table that holds plain and fixed-depth arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from avsim.errors import InputError
from avsim.metrics.verdict import PUBLISHED_OVERHEAD_MS
from avsim.planning.infer import Posterior
from avsim.planning.throughput_table import Point
from avsim.types import F64Array

__all__ = ["Overhead", "Prediction", "predict_adaptive", "word_for"]

Word = Literal["gain", "loss", "not distinguishable", "gain withheld"]


@dataclass(frozen=True, slots=True)
class Overhead:
    """What adaptive verification itself costs, ms a step: a normal distribution cut at 0."""

    mean_ms: float = 0.0
    sd_ms: float = 0.0

    def draw(self, count: int, seed: int) -> F64Array:
        """Return `[count]` draws."""
        noise = np.random.default_rng([seed, 0x0EAD]).standard_normal(count)
        return np.maximum(self.mean_ms + self.sd_ms * noise, 0.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Adaptive verification against the best plain or fixed arm of a load: the ratio of throughputs.

    `low` and `high` span 95 % of what a measurement of both would give, `low80` and `high80` 80 %: the posterior, and
    the noise of the table's own cells. `against` is the best arm.
    """

    workload: str
    concurrency: int
    against: str
    ratio: float
    low: float
    high: float
    low80: float
    high80: float
    word: Word
    auc: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def predict_adaptive(
    posterior: Posterior,
    *,
    depth: int | None = None,
    overhead: Overhead | None = None,
    against: Sequence[str] | None = None,
    draws: int = 200,
    seed: int = 0,
) -> list[Prediction]:
    """Predict adaptive verification at every load of the fitted table.

    Args:
        posterior: of a fit without adaptive cells, or what follows explains and does not predict.
        depth: K that it drafts; the table's largest if None.
        overhead: its own cost; None: unknown, charged as nothing, and gains that the published size would erase are
            withheld.
        against: arms compared with, like `fixed:7`; all plain and fixed ones of the load if None.
        draws: of the posterior.
    """
    points = posterior.fit.points
    depth = depth or posterior.fit.num_slots
    chosen = np.random.default_rng([seed, 0xD4A3]).choice(len(posterior.draws), min(draws, len(posterior.draws)), False)
    theta = posterior.draws[chosen]
    cost = (overhead or Overhead()).draw(len(theta), seed)
    found = []
    for workload, concurrency in dict.fromkeys((point.workload, point.concurrency) for point in points):
        rivals = [
            p for p in points if (p.workload, p.concurrency) == (workload, concurrency) and p.policy != "adaptive"
            and (against is None or _name(p) in against)
        ]  # fmt: skip
        if not rivals:
            raise InputError(f"no cell to compare with at concurrency {concurrency}; named: {', '.join(against or ())}")
        # An average load that the table implies is about the same for every arm.
        reqs = float(np.mean([p.num_reqs for p in rivals]))
        mine = replace(rivals[0], policy="adaptive", depth=depth, num_reqs=reqs, acceptance_length=None)
        ratios = posterior.ratio(mine, rivals, cost, theta)
        repeat = max(p.noise_pct for p in rivals) / 100
        noise = float(np.hypot(posterior.fit.priors.noise["throughput"], repeat)) * np.sqrt(2)
        noise_factor = np.exp(noise * np.random.default_rng([seed, 0x3E45]).standard_normal(len(ratios)))
        measured, erased = ratios * noise_factor, None
        if overhead is None:
            charged = np.full(len(theta), PUBLISHED_OVERHEAD_MS)
            erased = posterior.ratio(mine, rivals, charged, theta) * noise_factor
        low, low80, high80, high = np.percentile(measured, [2.5, 10, 90, 97.5])
        middle = np.median(ratios)
        found.append(
            Prediction(
                workload, concurrency, _best(posterior, rivals), float(middle), float(low), float(high), float(low80),
                float(high80), word_for(measured, erased), posterior.fit.auc(posterior.best, workload),
            )
        )  # fmt: skip
    return found


def word_for(ratios: F64Array, with_published_overhead: F64Array | None) -> Word:
    """Judge draws of a ratio: by the central 95 %; a gain that the published overhead would erase is withheld."""
    low, high = np.percentile(ratios, [2.5, 97.5])
    if high < 1:
        return "loss"
    if low <= 1:
        return "not distinguishable"
    if with_published_overhead is not None and np.percentile(with_published_overhead, 2.5) <= 1:
        return "gain withheld"
    return "gain"


def _best(posterior: Posterior, rivals: Sequence[Point]) -> str:
    rate, _ = replace(posterior.fit, points=rivals).predicted(posterior.best[None])
    return _name(rivals[int(rate[0].argmax())])


def _name(point: Point) -> str:
    return "none" if point.policy == "none" else f"fixed:{point.depth}"
