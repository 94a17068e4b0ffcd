"""What a plan does not know, as draws: quality of the confidences, and how far off step costs may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from avsim.costs.base import CostModel
from avsim.costs.roofline import RooflineCost
from avsim.planning.given import PlanInput
from avsim.planning.infer import Priors
from avsim.planning.population import BLOCK_SHARE, Latents, Population, Spread
from avsim.types import F64Array

__all__ = ["COST_SD", "MODEL_SD", "Draws", "draw_unknowns", "log_cost_sd", "unknown_layer_latency"]

COST_SD = {"measured": 0.05, "published": 0.1, "fitted": 0.1, "roofline": 0.3}
"""How far the cost of drafting and of verifying drafts may be off, as a sd of its logarithm, by the card's kind.

A profile leaves out LM head, sampler and input preparation, and experiments/roofline-check shows what an estimate is
off by.
"""
MODEL_SD = 0.008
"""How far plans with borrowed confidences were off closed loops of the shipped dense traces (rms of the logarithm of
adaptive's throughput over that of plain decoding; experiments/plan-check)."""
_LATENCY_RATIO = 2.0
"""A layer's latency in a mixture of experts, as a multiple of the roofline's: at most so much, at least one over it.
An assumption: kernels of 1.5 to 6 µs, or other ones than were counted."""
_AUC_CELLS = 2048


@dataclass(frozen=True)
class Draws:
    """n draws; the arrays are `[n]`.

    Attributes:
        spreads: of the confidences.
        auc: that the spreads amount to, mean over slots.
        verify, draft, level: factors of verifying drafts, of drafting, and of the whole step.
        latency_ms: what plain decoding takes beyond the cost model.
        model: factor of adaptive verification's throughput: drawn requests stand for real ones.
        seed: of the run; with a draw's index it keys the draw's requests.
    """

    spreads: tuple[Spread, ...]
    auc: F64Array
    verify: F64Array
    draft: F64Array
    level: F64Array
    latency_ms: F64Array
    model: F64Array
    seed: int

    def __len__(self) -> int:
        return len(self.spreads)

    def first(self, count: int) -> Draws:
        """Return the first few."""
        names = ("auc", "verify", "draft", "level", "latency_ms", "model")
        return replace(self, spreads=self.spreads[:count], **{name: getattr(self, name)[:count] for name in names})

    def latents(self, index: int, num_slots: int, cells: int) -> Latents:
        """Return the requests behind one draw, in one line of cells."""
        return Latents.draw(num_slots, 1, cells, self.seed * 100_003 + index)


def draw_unknowns(given: PlanInput) -> Draws:
    """Draw whatever is not given from the shipped priors; a draw does not depend on how many there are."""

    def normal(row: int) -> F64Array:
        return np.random.default_rng([given.seed, 0x91A4, row]).standard_normal(given.draws)

    priors = Priors.load().confidence
    mean, sd = priors["logit_request_share"]
    share = 1 / (1 + np.exp(-(mean + sd * normal(1))))
    if given.request_share is not None:
        share = np.full(given.draws, given.request_share)
    share = np.minimum(share, 1 - BLOCK_SHARE)
    sizes = np.geomspace(0.02, 12.0, 24)
    found = _auc_by_spread(given, sizes, float(np.median(share)))
    if given.auc is None:
        mean, sd = priors["log_sd"]
        spreads = np.clip(np.exp(mean + sd * normal(0)), sizes[0], sizes[-1])
    else:
        wanted = np.clip(given.auc + given.auc_sd * normal(0), 0.505, 0.98)
        spreads = np.exp(np.interp(wanted, found, np.log(sizes)))
    slope = np.exp(priors["log_slope"][0] + priors["log_slope"][1] * normal(2))
    offset = priors["offset"][0] + priors["offset"][1] * normal(3)
    if given.calibration_slope is not None:
        slope = np.full(given.draws, given.calibration_slope)
    if given.calibration_offset is not None:
        offset = np.full(given.draws, given.calibration_offset)
    cost_sd = log_cost_sd(given)
    ratio = _LATENCY_RATIO ** np.random.default_rng([given.seed, 0x91A4, 7]).uniform(-1, 1, given.draws)
    return Draws(
        tuple(
            Spread(float(a), float(b), BLOCK_SHARE, float(c), float(d))
            for a, b, c, d in zip(spreads, share, slope, offset, strict=True)
        ),
        np.interp(np.log(spreads), np.log(sizes), found),
        np.exp(cost_sd * normal(4)),
        np.exp(cost_sd * normal(5)),
        np.exp(cost_sd * normal(6)),
        unknown_layer_latency(given) * (ratio - 1),
        np.exp(MODEL_SD * normal(8)),
        given.seed,
    )


def log_cost_sd(given: PlanInput) -> float:
    """Return the sd of the logarithm of drafting and verification costs."""
    return COST_SD.get(given.cost.card.kind, 0.1) if given.cost_sd is None else given.cost_sd


def unknown_layer_latency(given: PlanInput) -> float:
    """Return the latency of all layers, ms, of which a step may have twice or half as much; 0 where it is known.

    Small steps of a mixture of experts are mostly the latency of small kernels, which no data sheet gives. What it is
    decides how much drafts add to a step, so an estimate that does not vary it would be sure of what nobody knows.
    """
    cost: CostModel = given.cost
    if given.cost_sd is not None or not isinstance(cost, RooflineCost) or not cost.target.experts:
        return 0.0
    return cost.target.layers * cost.target.kernels * cost.kernel_us * 1e-3


def _auc_by_spread(given: PlanInput, sizes: F64Array, request_share: float) -> F64Array:
    conditional = given.acceptance.conditional
    latents = Latents.draw(len(conditional), 1, _AUC_CELLS, 0)
    found = [Population.make(conditional, Spread(float(sd), request_share), latents).auc().mean() for sd in sizes]
    return np.maximum.accumulate(found)
