"""A plan from summary numbers: best fixed depth, adaptive verification, and where drafting stops paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from avsim.costs.base import CostModel
from avsim.costs.cliff import capture_limit, without_cliff
from avsim.errors import InputError
from avsim.metrics.verdict import PUBLISHED_OVERHEAD_MS
from avsim.planning.crossover import Crossover, crossover
from avsim.planning.expected import expected_step
from avsim.planning.given import PlanInput
from avsim.planning.population import Population
from avsim.planning.predict import Word, word_for
from avsim.planning.step_costs import StepCosts
from avsim.planning.unknowns import Draws, draw_unknowns
from avsim.policies import Adaptive
from avsim.types import F64Array

__all__ = ["AtLoad", "FixedAtLoad", "Plan", "Quantiles", "make_plan"]

_CELLS = 2048  # blocks behind one expectation; each draw has its own, so that intervals hold their noise
_GRID = tuple(sorted({round(2 ** (i / 2)) for i in range(21)}))  # 1 to 1024 requests
_COARSE, _COARSE_DRAWS = tuple(2**i for i in range(11)), 40  # for adaptive verification, which has no closed form
_Progress = Callable[[int, int, str], None]


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


@dataclass(frozen=True, slots=True)
class FixedAtLoad:
    """One depth at one load; depth 0 is plain decoding. Ratios are of throughput.

    `best_in` is the share of the draws in which it is the best depth of all.
    """

    depth: int
    acceptance_length: float
    throughput_tok_s: Quantiles
    over_none: Quantiles
    adaptive_over_it: Quantiles
    best_in: float


@dataclass(frozen=True, slots=True)
class AtLoad:
    """One load. Ratios are of throughput.

    Attributes:
        fixed: every depth, plain decoding first.
        best_fixed: the depth with the highest median throughput; 0: plain decoding.
        adaptive_tok_s: throughput of adaptive verification, which drafts every position that is given.
        over_tuned, word: adaptive over the best of plain decoding and all depths, tuned anew in each draw.
        over_none, word_over_none: adaptive over plain decoding.
        verified: share of the drafted slots that adaptive verifies.
        drafting_depth: the best depth that drafts.
        break_even_length: acceptance length at which that depth would equal plain decoding.
        cliff_share: part of the logarithm of `over_tuned` that is gone once the capture limit costs nothing, for both
            sides and with depths tuned anew; None where a full step stays within the limit, or without a gain.
        outside: how a full step leaves the range that the costs were measured in.
    """

    concurrency: int
    fixed: tuple[FixedAtLoad, ...]
    best_fixed: int
    adaptive_tok_s: Quantiles
    over_tuned: Quantiles
    word: Word
    over_none: Quantiles
    word_over_none: Word
    verified: Quantiles
    drafting_depth: int
    break_even_length: Quantiles
    cliff_share: Quantiles | None
    outside: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """A plan at several loads, and from where plain decoding is ahead of the best depth and of adaptive verification.

    `calibration_error` is the mean distance of the confidences read from what they should be, over reached slots.
    """

    given: PlanInput
    loads: tuple[AtLoad, ...]
    fixed_crossover: Crossover
    adaptive_crossover: Crossover
    auc: Quantiles
    calibration_error: Quantiles


@dataclass(frozen=True, slots=True)
class _Steps:
    """Adaptive verification in each draw: tokens emitted and ms per step (before level), share verified, `[draws]`."""

    emitted: F64Array
    ms: F64Array
    verified: F64Array

    def tok_s(self, draws: Draws, overhead_ms: float) -> F64Array:
        level, model = (factor[: len(self.ms)] for factor in (draws.level, draws.model))
        return model * self.emitted / (level * self.ms + overhead_ms) * 1e3


def make_plan(given: PlanInput, loads: Sequence[int], *, progress: _Progress = lambda done, total, what: None) -> Plan:
    """Plan for several loads.

    Each draw fixes the quality of confidences, requests and costs. Fixed depths follow in closed form, adaptive
    verification in expectation over steps of drawn requests whose mean acceptance is exact.

    Raises:
        InputError: no load, one below 1 or one twice.
    """
    if not loads or min(loads) < 1 or len(set(loads)) < len(loads):
        raise InputError(f"concurrency must be a list of different numbers of at least 1, not {list(loads)}")
    draws = draw_unknowns(given)
    smooth = without_cliff(given.cost)
    jobs = [(load, given.cost, len(draws)) for load in loads]
    jobs += [(load, given.cost, min(_COARSE_DRAWS, len(draws))) for load in _COARSE if load not in loads]
    jobs += [(load, smooth, len(draws)) for load in loads if smooth is not None and _past_limit(given, load)]
    steps, errors = _adaptive(given, draws, jobs, progress)
    at = tuple(
        _at_load(given, draws, load, steps[load, False, len(draws)], smooth, steps.get((load, True, len(draws))))
        for load in loads
    )
    return Plan(
        given,
        at,
        crossover(_GRID, np.array([_best_over_none(given, draws, load) for load in _GRID])),
        _adaptive_crossover(given, draws, steps, loads),
        Quantiles.of(draws.auc),
        Quantiles.of(errors),
    )


def _costs(given: PlanInput, cost: CostModel, load: int) -> StepCosts:
    return StepCosts.of(cost, load, given.acceptance.num_slots, given.context_tokens)


def _past_limit(given: PlanInput, load: int) -> bool:
    limit = capture_limit(given.cost)
    return limit is not None and load * (given.acceptance.num_slots + 1) > limit


def _fixed(given: PlanInput, draws: Draws, costs: StepCosts) -> F64Array:
    """Return the throughput of every depth in each draw, tok/s, `[draws, K + 1]`."""
    length = np.concatenate(([1.0], 1 + np.cumsum(given.acceptance.marginal)))
    return costs.reqs * length / costs.fixed_ms(draws) * 1e3


def _best_over_none(given: PlanInput, draws: Draws, load: int) -> F64Array:
    fixed = _fixed(given, draws, _costs(given, given.cost, load))
    return fixed[:, 1:].max(axis=1) / fixed[:, 0]


def _adaptive(
    given: PlanInput, draws: Draws, jobs: Sequence[tuple[int, CostModel, int]], progress: _Progress
) -> tuple[dict[tuple[int, bool, int], _Steps], F64Array]:
    """Let adaptive verification decide steps of drawn requests, by load, without the cliff or with it, and draws.

    Returns also each draw's calibration error.
    """
    slots, found, errors = given.acceptance.num_slots, {}, []
    costs = {(load, cost is not given.cost, count): _costs(given, cost, load) for load, cost, count in jobs}
    sums: dict[tuple[int, bool, int], list[tuple[float, float, float]]] = {key: [] for key in costs}
    for index, spread in enumerate(draws.spreads):
        progress(index, len(draws), "drawing requests")
        populations: dict[int, Population] = {}
        for key, cost in costs.items():
            if index >= key[2]:
                continue
            steps = max(2, -(-_CELLS // cost.reqs))
            cells = steps * cost.reqs
            if cells not in populations:
                latents = draws.latents(index, slots, cells)
                populations[cells] = Population.make(given.acceptance.conditional, spread, latents)
            tables = cost.tables(draws, index)
            batch = _in_steps(populations[cells], cost.reqs)
            step = expected_step(Adaptive(), batch, tables, max_total_logits=given.max_total_logits)
            ms = tables.draft[cost.reqs] + tables.verify[cost.reqs + step.admitted]
            sums[key].append((cost.reqs + step.accepted.mean(), ms.mean(), step.admitted.mean() / (cost.reqs * slots)))
        errors.append(_calibration_error(next(iter(populations.values()))))
    for key, rows in sums.items():
        found[key] = _Steps(*np.array(rows).T)
    return found, np.array(errors)


def _in_steps(line: Population, reqs: int) -> Population:
    shape = (len(line.live), -1, reqs)
    return Population(line.acceptance.reshape(shape), line.live.reshape(shape), line.sizing.reshape(shape))


def _calibration_error(population: Population) -> float:
    reach = np.concatenate([np.ones_like(population.acceptance[:1]), population.survival[:-1]])
    return float((reach * np.abs(population.live - population.acceptance)).sum() / reach.sum())


def _at_load(
    given: PlanInput, draws: Draws, load: int, steps: _Steps, smooth: CostModel | None, smooth_steps: _Steps | None
) -> AtLoad:
    costs = _costs(given, given.cost, load)
    fixed = _fixed(given, draws, costs)
    tuned, choice = fixed.max(axis=1), fixed.argmax(axis=1)
    charged = given.overhead_ms or 0.0
    adaptive = steps.tok_s(draws, charged)
    erased = None if given.overhead_ms is not None else steps.tok_s(draws, PUBLISHED_OVERHEAD_MS)
    word = word_for(adaptive / tuned, None if erased is None else erased / tuned)
    over_none = adaptive / fixed[:, 0]
    ms, lengths = costs.fixed_ms(draws), np.concatenate(([1.0], 1 + np.cumsum(given.acceptance.marginal)))
    middle = np.median(fixed, axis=0)
    drafting = 1 + int(middle[1:].argmax())
    share = None
    if smooth is not None and smooth_steps is not None and word in ("gain", "gain withheld"):
        left = smooth_steps.tok_s(draws, charged) / _fixed(given, draws, _costs(given, smooth, load)).max(axis=1)
        gains = adaptive > tuned
        share = Quantiles.of(1 - np.log(left[gains]) / np.log((adaptive / tuned)[gains]))
    return AtLoad(
        load,
        tuple(
            FixedAtLoad(
                depth,
                float(lengths[depth]),
                Quantiles.of(fixed[:, depth]),
                Quantiles.of(fixed[:, depth] / fixed[:, 0]),
                Quantiles.of(adaptive / fixed[:, depth]),
                float((choice == depth).mean()),
            )
            for depth in range(given.acceptance.num_slots + 1)
        ),
        int(middle.argmax()),
        Quantiles.of(adaptive),
        Quantiles.of(adaptive / tuned),
        word,
        Quantiles.of(over_none),
        word_for(over_none, None if erased is None else erased / fixed[:, 0]),
        Quantiles.of(steps.verified),
        drafting,
        Quantiles.of(ms[:, drafting] / ms[:, 0]),
        share,
        given.cost.outside(load, load * (given.acceptance.num_slots + 1)),
    )


def _adaptive_crossover(
    given: PlanInput, draws: Draws, steps: dict[tuple[int, bool, int], _Steps], loads: Sequence[int]
) -> Crossover:
    few = min(_COARSE_DRAWS, len(draws))
    first = draws.first(few)
    places = sorted({*_COARSE, *(load for load in loads if load <= _COARSE[-1])})
    ratios = []
    for load in places:
        none = _fixed(given, first, _costs(given, given.cost, load))[:, 0]
        found = steps[load, False, len(draws) if load in loads else few]
        ratios.append(found.tok_s(draws, given.overhead_ms or 0.0)[:few] / none)
    return crossover(places, np.array(ratios))
