"""A plan from summary numbers: best fixed depth, adaptive verification, and where drafting stops paying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.costs.cliff import capture_limit, without_cliff
from avsim.errors import InputError
from avsim.metrics.verdict import PUBLISHED_OVERHEAD_MS
from avsim.planning.acceptance import Acceptance
from avsim.planning.expected import expected_step
from avsim.planning.infer import Priors
from avsim.planning.population import BLOCK_SHARE, Latents, Population, Spread, spread_for_auc
from avsim.planning.predict import Word, word_for
from avsim.policies import NO_LOGIT_LIMIT, Adaptive
from avsim.types import F64Array

__all__ = ["AtLoad", "Plan", "PlanInput", "Quantiles", "make_plan"]

_CELLS = 1024  # blocks behind one expectation
_GRID = tuple(sorted({round(2 ** (i / 2)) for i in range(21)}))  # 1 to 1024 requests
COST_SD = {"measured": 0.05, "published": 0.05, "fitted": 0.1, "roofline": 0.3}
"""How far the cost of drafting and of verifying drafts may be off, as a sd of its logarithm, by the card's kind."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median, and the central 95 % over the draws."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: F64Array) -> Quantiles:
        """Summarise draws."""
        low, middle, high = np.percentile(values, [2.5, 50, 97.5])
        return cls(float(middle), float(low), float(high))


@dataclass(frozen=True)
class PlanInput:
    """What is known: acceptance, step costs, and how good confidences are.

    Attributes:
        acceptance: per position.
        cost: step costs of target and drafter.
        context_tokens: cached tokens of a request, on average.
        auc, auc_sd: AUC of the confidences at a slot, and how sure that is; None: the priors' spread.
        request_share, request_share_sd: see `Spread`; None: the priors'.
        cost_sd: of the logarithm of drafting and verification costs; None: by the kind of the cost card.
        max_total_logits: see `StepBatch`.
        draws: of everything that is not known.
    """

    acceptance: Acceptance
    cost: CostModel
    context_tokens: float = 1024.0
    auc: float | None = None
    auc_sd: float = 0.04
    request_share: float | None = None
    cost_sd: float | None = None
    overhead_ms: float | None = None
    max_total_logits: int = NO_LOGIT_LIMIT
    draws: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 20:
            raise InputError(f"draws must be at least 20 for an interval, not {self.draws}")
        if not (np.isfinite(self.context_tokens) and self.context_tokens >= 0):
            raise InputError(f"context must be finite and ≥ 0 tokens, not {self.context_tokens}")
        if self.cost_sd is not None and not 0 <= self.cost_sd < 2:
            raise InputError(f"cost uncertainty is a sd of the logarithm from 0 to 2, not {self.cost_sd}")
        if self.request_share is not None and not 0 <= self.request_share <= 1 - BLOCK_SHARE:
            raise InputError(f"request share lies between 0 and {1 - BLOCK_SHARE:g}, not {self.request_share}")
        if self.overhead_ms is not None and not 0 <= self.overhead_ms < float("inf"):
            raise InputError(f"av overhead must be finite and ≥ 0 ms, not {self.overhead_ms}")

    @property
    def log_cost_sd(self) -> float:
        return COST_SD.get(self.cost.card.kind, 0.1) if self.cost_sd is None else self.cost_sd


@dataclass(frozen=True, slots=True)
class AtLoad:
    """One load.

    `best_fixed` is the depth with the highest median throughput (0: plain decoding); `best_share` in how many draws
    it is the best depth of all. Ratios are of throughput. `break_even_length` is the acceptance length at which
    `best_fixed` (or, where plain decoding wins, depth 1) would equal plain decoding, beside what is had there.
    `cliff_share` is the part of adaptive's gain over the best fixed arm that is gone once the capture limit costs
    nothing; None where no limit is reached or there is no gain.
    """

    concurrency: int
    best_fixed: int
    best_share: float
    fixed_over_none: Quantiles
    fixed_tok_s: Quantiles
    adaptive_over_fixed: Quantiles
    adaptive_over_none: Quantiles
    word: Word
    break_even_depth: int
    break_even_length: float
    length_there: float
    verified_share: float
    cliff_share: Quantiles | None
    outside: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """A plan at several loads, and the concurrency from which plain decoding is best (None: nowhere up to 1024)."""

    given: PlanInput
    loads: tuple[AtLoad, ...]
    crossover: int | None
    crossover_range: tuple[int | None, int | None]
    auc: Quantiles
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Draw:
    """One draw of what is not known: spread of the confidences, and factors of verification and drafting costs."""

    spread: Spread
    verify: float
    draft: float


def make_plan(given: PlanInput, loads: Sequence[int]) -> Plan:
    """Plan for several loads.

    Each draw fixes confidence quality and cost factors; fixed depths and adaptive verification are then compared on
    the same blocks. Fixed arms follow in closed form, adaptive verification in expectation over drawn steps.

    Raises:
        InputError: no load, or one below 1.
    """
    if not loads or min(loads) < 1:
        raise InputError(f"concurrency must be a list of numbers of at least 1, not {list(loads)}")
    draws = _draw(given)
    at = tuple(_at_load(given, draws, load) for load in loads)
    grid = np.array(
        [_fixed(given, draws, load)[:, 1:].max(axis=1) / _fixed(given, draws, load)[:, 0] for load in _GRID]
    )
    reqs = _latents(given.acceptance.num_slots, 64)
    auc = [Population.make(given.acceptance.conditional, d.spread, reqs).auc().mean() for d in draws]
    return Plan(
        given,
        at,
        _crossover(np.median(grid, axis=1)),
        (_crossover(np.percentile(grid, 2.5, axis=1)), _crossover(np.percentile(grid, 97.5, axis=1))),
        Quantiles.of(np.array(auc)),
        given.acceptance.notes,
    )


def _draw(given: PlanInput) -> list[_Draw]:
    rng = np.random.default_rng([given.seed, 0x91A4])
    normal = rng.standard_normal((6, given.draws))
    priors = Priors.load().confidence
    level = float(np.exp(np.log(given.acceptance.conditional).mean()))
    if given.auc is None:
        mean, sd = priors["log_sd"]
        spreads = np.exp(mean + sd * normal[0])
    else:
        wanted = np.clip(given.auc + given.auc_sd * normal[0], 0.51, 0.99)
        grid = np.linspace(wanted.min() - 1e-3, wanted.max() + 1e-3, 9)
        spreads = np.interp(wanted, grid, [spread_for_auc(float(auc), level) for auc in grid])
    mean, sd = priors["logit_request_share"]
    share = 1 / (1 + np.exp(-(mean + sd * normal[1])))
    if given.request_share is not None:
        share = np.full(given.draws, given.request_share)
    share = np.minimum(share, 1 - BLOCK_SHARE)
    slope = np.exp(priors["log_slope"][0] + priors["log_slope"][1] * normal[2])
    offset = priors["offset"][0] + priors["offset"][1] * normal[3]
    verify, draft = np.exp(given.log_cost_sd * normal[4]), np.exp(given.log_cost_sd * normal[5])
    return [
        _Draw(Spread(float(a), float(b), BLOCK_SHARE, float(c), float(d)), float(e), float(f))
        for a, b, c, d, e, f in zip(spreads, share, slope, offset, verify, draft, strict=True)
    ]


def _steps_ms(given: PlanInput, cost: CostModel, reqs: int) -> tuple[F64Array, F64Array, F64Array]:
    """Return ms of plain decoding, `[1]`, and of every depth what verification adds and drafting takes, `[K + 1]`."""
    depth = np.arange(given.acceptance.num_slots + 1)
    count = np.full(len(depth), reqs)
    shape = StepShape(
        count, count * (1 + depth), count * given.context_tokens, np.zeros(len(depth), dtype=np.int64), depth
    )
    verify = cost.verify_ms(shape) + cost.overhead_ms
    draft = np.concatenate(([0.0], cost.draft_ms(shape)[1:]))
    return verify[:1], verify - verify[0], draft


def _fixed(given: PlanInput, draws: Sequence[_Draw], reqs: int, cost: CostModel | None = None) -> F64Array:
    """Return the throughput of every depth in each draw, tok/s, `[draws, K + 1]`; depth 0 is plain decoding."""
    plain, more, draft = _steps_ms(given, cost or given.cost, reqs)
    length = np.concatenate(([1.0], 1 + np.cumsum(given.acceptance.marginal)))
    factors = np.array([[d.verify, d.draft] for d in draws])
    return reqs * length / (plain + factors[:, :1] * more + factors[:, 1:] * draft) * 1e3


def _tables(given: PlanInput, cost: CostModel, draw: _Draw, reqs: int) -> CostTables:
    """Return the tables of a draw; together they are the whole step."""
    slots = given.acceptance.num_slots
    nominal = cost.tables(reqs, reqs * (slots + 1), kv_tokens_per_req=given.context_tokens, depth=slots)
    plain, _, _ = _steps_ms(given, cost, reqs)
    whole = nominal.verify[reqs] + nominal.draft[reqs]
    draft = plain[0] + draw.draft * (whole - plain[0]) - nominal.verify[reqs]
    verify = nominal.verify[reqs] + draw.verify * (nominal.verify - nominal.verify[reqs])
    return CostTables(np.full(reqs + 1, draft), np.maximum(verify, 1e-6))


def _adaptive(given: PlanInput, draws: Sequence[_Draw], reqs: int, cost: CostModel, overhead_ms: float) -> F64Array:
    """Return adaptive verification's throughput and share of slots verified in each draw, `[2, draws]`."""
    latents = _latents(given.acceptance.num_slots, reqs)
    found = np.empty((2, len(draws)))
    for i, draw in enumerate(draws):
        population = Population.make(given.acceptance.conditional, draw.spread, latents)
        tables = _tables(given, cost, draw, reqs)
        step = expected_step(Adaptive(), population, tables, max_total_logits=given.max_total_logits)
        ms = tables.draft[reqs] + tables.verify[reqs + step.admitted] + overhead_ms
        found[0, i] = (reqs + step.accepted).sum() / ms.sum() * 1e3
        found[1, i] = step.admitted.mean() / (reqs * given.acceptance.num_slots)
    return found


def _at_load(given: PlanInput, draws: Sequence[_Draw], reqs: int) -> AtLoad:
    fixed = _fixed(given, draws, reqs)
    best = int(np.median(fixed, axis=0).argmax())
    charged = given.overhead_ms or 0.0
    adaptive, verified = _adaptive(given, draws, reqs, given.cost, charged)
    ratio, erased = adaptive / fixed[:, best], None
    if given.overhead_ms is None:
        erased = _adaptive(given, draws, reqs, given.cost, PUBLISHED_OVERHEAD_MS)[0] / fixed[:, best]
    depth = best or 1
    plain, more, draft = _steps_ms(given, given.cost, reqs)
    lengths = 1 + np.cumsum(given.acceptance.marginal)
    return AtLoad(
        reqs,
        best,
        float((fixed.argmax(axis=1) == best).mean()),
        Quantiles.of(fixed[:, best] / fixed[:, 0]),
        Quantiles.of(fixed[:, best]),
        Quantiles.of(ratio),
        Quantiles.of(adaptive / fixed[:, 0]),
        word_for(ratio, erased),
        depth,
        float((plain[0] + more[depth] + draft[depth]) / plain[0]),
        float(lengths[depth - 1]),
        float(np.median(verified)),
        _cliff_share(given, draws, reqs, ratio),
        given.cost.outside(reqs, reqs * (given.acceptance.num_slots + 1)),
    )


def _cliff_share(given: PlanInput, draws: Sequence[_Draw], reqs: int, ratio: F64Array) -> Quantiles | None:
    """Return which part of adaptive's gain over the best fixed arm goes with the cliff, where there is a gain."""
    limit = capture_limit(given.cost)
    if limit is None or reqs * (given.acceptance.num_slots + 1) <= limit:
        return None
    smooth = without_cliff(given.cost)
    gains = ratio > 1
    if smooth is None or gains.mean() < 0.5:
        return None
    fixed = _fixed(given, draws, reqs, smooth)
    best = int(np.median(fixed, axis=0).argmax())
    left = _adaptive(given, draws, reqs, smooth, given.overhead_ms or 0.0)[0] / fixed[:, best]
    return Quantiles.of(1 - np.log(left[gains]) / np.log(ratio[gains]))


def _latents(num_slots: int, reqs: int) -> Latents:
    return Latents.draw(num_slots, max(4, -(-_CELLS // reqs)), reqs, 0)


def _crossover(ratios: F64Array) -> int | None:
    """Return the first load of the grid from which plain decoding stays ahead of every fixed depth."""
    behind = ratios < 1
    stays = np.logical_and.accumulate(behind[::-1])[::-1]
    return _GRID[int(stays.argmax())] if stays.any() else None
