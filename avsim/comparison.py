"""Offline comparison of estimators: predict, then learn, all on the same path through a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from avsim import policies, registry
from avsim.costs.base import CostModel
from avsim.costs.linear import step_counter
from avsim.errors import InputError
from avsim.estimators.base import Estimator, advance
from avsim.metrics.calibration import ECE_BINS, Calibration
from avsim.metrics.savings import Path, flatten_log
from avsim.policies.budget import survival
from avsim.simulate import Arm, simulate
from avsim.sources.base import Trace
from avsim.types import BoolArray, F32Array, F64Array, IntArray, Observations
from avsim.what_if import check_match
from avsim.workload import Pool, request_sequences

__all__ = ["Score", "compare", "score_path", "walk"]

_SMALLEST = np.float32(2.0**-24)


@dataclass(frozen=True, slots=True)
class Score:
    """How one estimator did on a path.

    Attributes:
        conditional: scores of p_k on every reached slot.
        cumulative: scores of the survival S_k on every slot that was drafted and has a verdict.
        loss_by_unit: summed conditional log-loss of each source unit, nats, `[units]`.
        refits: completed refits.
    """

    conditional: Calibration
    cumulative: Calibration
    loss_by_unit: F64Array
    refits: int


def walk(pool: Pool, arm: Arm, concurrency: int, cost: CostModel, seed: int) -> Path:
    """Return the path of a closed loop that serves whole permutations of the pool."""
    sequences = request_sequences([np.arange(len(pool.start))], 8 * concurrency, [[seed]])
    log = simulate(pool, arm, sequences, concurrency, cost, log=True).log
    assert log is not None
    return flatten_log(log)


def compare(
    trace: Trace,
    estimators: Sequence[Estimator],
    *,
    admission: Arm | None = None,
    cost: CostModel | None = None,
    what_if: bool = False,
    concurrency: int = 8,
    num_slots: int | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Score estimators prequentially on the closed-loop schedule of a dense trace.

    Every estimator sees the same blocks in the same steps, predicts them, and then learns from the slots that the
    admission arm verified. All are scored on the same slots: every reached one, verified or not.

    Args:
        trace: a dense trace.
        estimators: the first is the reference of the paired differences.
        admission: whose path it is; None verifies everything.
        cost: the step costs that a ranking admission reads; not needed for one that is separable.
        what_if: allow step costs of another model than the trace's.
        concurrency: requests in a step, which fixes how many blocks lie between two refits.
        bootstrap: resamples of source requests for the intervals.

    Returns:
        A JSON-ready document with one row per estimator.

    Raises:
        InputError: the trace is not dense or lacks a feature, no estimator is named, or the step costs are missing or
            of another model.
    """
    if not estimators:
        raise InputError("name at least one estimator")
    arm = admission or Arm(policies.FixedDepth(num_slots or trace.card.num_speculative_tokens))
    ranks = not arm.policy.separable
    if ranks and cost is None:
        raise InputError(f"admission {arm.policy.name} needs step costs: pass --cost (see `avsim list costs`)")
    clock = cost if ranks and cost is not None else step_counter()
    foreign = ranks and check_match(trace, clock, what_if)
    readers = [*estimators, *([admission.estimator] if admission and admission.estimator else [])]
    pool = Pool.from_trace(trace, sorted({name for e in readers for name in e.features}), num_slots=num_slots)
    path = walk(pool, arm, concurrency, clock, seed)
    scores = [score_path(estimator, pool, path) for estimator in estimators]
    rng = np.random.default_rng([seed, 0xC0])
    units = len(scores[0].loss_by_unit)
    draws = rng.integers(units, size=(bootstrap, units))
    rows = [_row(estimator, score, scores[0], draws) for estimator, score in zip(estimators, scores, strict=True)]
    return {
        "trace": trace.card.name,
        "synthetic": trace.card.synthetic,
        "num_speculative_tokens": pool.num_slots,
        "concurrency": concurrency,
        "admission": "full" if admission is None else registry.format_spec(admission.policy),
        "cost": clock.card.name if ranks else None,
        "what_if": foreign,
        "steps": len(path.ms),
        "num_sources": units,
        "ece_bins": ECE_BINS,
        "reference": rows[0]["estimator"],
        "rows": rows,
    }


def score_path(estimator: Estimator, pool: Pool, path: Path) -> Score:
    """Drive an estimator over a path from a cold start: predict, score, then learn from what was verified."""
    slots = pool.num_slots
    state = estimator.start(slots)
    conditional, cumulative = Calibration(slots), Calibration(slots)
    unit_of_row = pool.unit[np.searchsorted(pool.start, np.arange(len(pool.num_accepted)), side="right") - 1]
    losses = np.zeros(pool.num_units)
    slot = np.arange(slots)[:, None]
    for start in range(0, len(path.ms), estimator.refit_interval):
        part = slice(start, start + estimator.refit_interval)
        active = path.active[part]
        rows, admitted = path.rows[part][active], path.admitted[part][active]
        features = {name: pool.features[name][:, rows] for name in estimator.features}
        confidence = estimator.predict(state.params, features, (slots, len(rows)))
        full, recorded = pool.num_accepted[rows], pool.num_recorded[rows]
        accepted, reached = slot < full, (slot <= full) & (slot < recorded)
        conditional.add(confidence, accepted, reached)
        product = survival(confidence[:, None], np.full((1, len(rows)), slots))[:, 0]
        cumulative.add(product, accepted, slot < np.minimum(recorded, admitted))
        losses += _loss_by_unit(confidence, accepted, reached, unit_of_row[rows], pool.num_units)
        starts = np.concatenate(([0], np.cumsum(active.sum(axis=1))))
        known = np.minimum(admitted, recorded)
        seen = Observations.grade(features, confidence, known, np.minimum(full, known), starts, pool.unfit[rows])
        state = advance(estimator, state, seen, len(active))
    return Score(conditional, cumulative, losses, state.refits)


def _loss_by_unit(
    confidence: F32Array, accepted: BoolArray, reached: BoolArray, unit: IntArray, units: int
) -> F64Array:
    right = np.where(accepted, confidence, 1 - confidence)
    loss = np.where(reached, -np.log(np.maximum(right, _SMALLEST)), np.float32(0)).sum(axis=0, dtype=np.float64)
    return np.bincount(unit, loss, units).astype(np.float64)


def _row(estimator: Estimator, score: Score, reference: Score, draws: IntArray) -> dict[str, Any]:
    loss = score.loss_by_unit
    base = reference.loss_by_unit
    change = loss.sum() / base.sum() - 1
    resampled = loss[draws].sum(axis=1) / base[draws].sum(axis=1) - 1
    low, high = np.percentile(resampled, [2.5, 97.5])
    same = score is reference
    return {
        "estimator": registry.format_spec(estimator),
        "attainable": not estimator.uses_truth,
        "refits": score.refits,
        "log_loss_change_pct": None if same else float(change * 100),
        "log_loss_change_low_pct": None if same else float(low * 100),
        "log_loss_change_high_pct": None if same else float(high * 100),
        "conditional": score.conditional.summary(),
        "cumulative": score.cumulative.summary(),
    }
