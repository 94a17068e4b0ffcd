"""One estimator over one or more walks: predict, score, then learn from what was verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from avsim.comparison.walk import Table, Walk
from avsim.estimators.base import MEMORY, Estimator, EstimatorState, advance
from avsim.metrics.calibration import LEAST_PROBABILITY, Calibration
from avsim.policies.budget import survival
from avsim.types import BoolArray, F32Array, F64Array, IntArray, Observations, picked_slots

__all__ = ["BUCKET_STEPS", "Scores", "block_losses", "fit_halves", "fit_walk", "predict_walk", "score"]

BUCKET_STEPS = 100
_CHUNK = 1 << 13  # scoring in pieces of this size stays in the cache


@dataclass(slots=True)
class Scores:
    """How one estimator did.

    Attributes:
        conditional: scores of p_k on every reached slot.
        cumulative: scores of the survival S_k on every verified slot.
        band: scores of p_k on the reached slots beside the cut of trimmed blocks: the last that was verified and the
            first that was not.
        by_category: scores of p_k for each category of requests.
        unit_loss: summed log-loss of each source request, nats, `[2, units]`: conditional and cumulative.
        loss_over_time: summed log-loss and slots in each stretch of `BUCKET_STEPS` steps, `[2, 2, stretches]`:
            conditional and cumulative, then loss and slots.
        refits: completed refits of the first walk.
        state: the estimator's state at the end of the first walk.
    """

    conditional: Calibration
    cumulative: Calibration
    band: Calibration
    by_category: list[Calibration]
    unit_loss: F64Array
    loss_over_time: F64Array
    refits: int = 0
    state: EstimatorState | None = field(default=None, repr=False)

    @classmethod
    def empty(cls, table: Table, num_steps: int) -> Scores:
        """Return the scores of no slots at all."""
        slots = table.num_slots
        return cls(
            Calibration(slots),
            Calibration(slots),
            Calibration(slots),
            [Calibration(slots) for _ in table.categories],
            np.zeros((2, table.num_units)),
            np.zeros((2, 2, num_steps // BUCKET_STEPS + 1)),
        )


def score(
    estimator: Estimator,
    table: Table,
    walks: Sequence[Walk],
    *,
    start: EstimatorState | None = None,
    halves: tuple[EstimatorState, EstimatorState, BoolArray] | None = None,
    learn: BoolArray | None = None,
    scored: BoolArray | None = None,
    detailed: bool = True,
) -> Scores:
    """Drive an estimator over walks, each from the same start, and score every slot that a verdict reaches.

    It learns from verified slots only; it is scored on all reached ones, so that a policy's own censoring shows.

    Args:
        estimator: what to score.
        table, walks: the blocks, and the orders in which they are met.
        start: the state to start from; None for a cold start.
        halves: for an offline estimator, two fitted states, and for each row of the table whether the second one
            predicts it: each half of the requests by a fit on the other.
        learn: rows whose labels may be learned from, bool `[rows]`; None for all that are fit.
        scored: rows to score, bool `[rows]`; None for all that are fit.
        detailed: score categories and the band beside the cut as well.
    """
    found = Scores.empty(table, max(walk.num_steps for walk in walks))
    unscored = table.unfit if scored is None else ~scored
    for number, walk in enumerate(walks):
        confidence, state = predict_walk(estimator, table, walk, start=start, halves=halves, learn=learn)
        step_of = walk.step_of()
        for begin in range(0, len(walk.rows), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            rows, admitted = walk.rows[part], walk.num_admitted[part]
            _add(found, table, rows, admitted, step_of[part], confidence[:, part], unscored, detailed)
        if number == 0:
            found.refits, found.state = state.refits, state
    if detailed:
        for calibration in found.by_category:
            found.conditional.absorb(calibration)
    return found


def predict_walk(
    estimator: Estimator,
    table: Table,
    walk: Walk,
    *,
    start: EstimatorState | None = None,
    halves: tuple[EstimatorState, EstimatorState, BoolArray] | None = None,
    learn: BoolArray | None = None,
) -> tuple[F32Array, EstimatorState]:
    """Return the confidences at draft time of a walk's blocks, float32 `[K, n]`, and the state at its end.

    Arguments as `score`.
    """
    unlearned = table.unfit if learn is None else ~learn
    state = start or estimator.start(table.num_slots)
    memory = np.zeros((estimator.memory_size, int(walk.seat.max()) + 1), dtype=np.float32)
    confidence = np.empty((table.num_slots, len(walk.rows)), dtype=np.float32)
    step = 0
    while step < walk.num_steps:
        stop = min(walk.num_steps, step + estimator.refit_interval - state.steps_since_refit)
        seen = _predict(estimator, table, walk, step, stop, state, memory, halves, unlearned)
        confidence[:, walk.step_starts[step] : walk.step_starts[stop]] = seen.confidence
        state = advance(estimator, state, seen, stop - step)
        step = stop
    return confidence, state


def fit_halves(
    estimator: Estimator, table: Table, walk: Walk, second: BoolArray
) -> tuple[EstimatorState, EstimatorState, BoolArray]:
    """Fit an offline estimator to each half of the requests, for `score` to predict the other half with.

    Args:
        second: whether a row belongs to the second half, bool `[rows]`.

    Returns:
        the fit on the second half (predicts the first), the fit on the first, and `second`.
    """
    one, other = (fit_walk(estimator, table, walk.restricted(half[walk.rows])) for half in (second, ~second))
    return one, other, second


def fit_walk(estimator: Estimator, table: Table, walk: Walk) -> EstimatorState:
    """Fit an offline estimator to the verified slots of a walk.

    Raises:
        InputError: the estimator cannot be fitted to them.
    """
    cold = estimator.start(table.num_slots)
    seen = _predict(estimator, table, walk, 0, walk.num_steps, cold, np.zeros((0, 0), np.float32), None, table.unfit)
    return EstimatorState(estimator.fit(table.num_slots, seen), cold.stats)


def _predict(
    estimator: Estimator,
    table: Table,
    walk: Walk,
    step: int,
    stop: int,
    state: EstimatorState,
    memory: F32Array,
    halves: tuple[EstimatorState, EstimatorState, BoolArray] | None,
    unlearned: BoolArray,
) -> Observations:
    """Predict the blocks of some steps between two refits, and grade them; `memory` moves on."""
    first = walk.step_starts[step]
    part = slice(first, walk.step_starts[stop])
    rows = walk.rows[part]
    features = {name: table.features[name][:, rows] for name in estimator.features}
    known = np.minimum(walk.num_admitted[part], table.num_known[rows])
    accepted, unfit = np.minimum(table.num_accepted[rows], known), unlearned[rows]
    starts = walk.step_starts[step : stop + 1] - first
    shape = (table.num_slots, len(rows))
    if halves is not None:
        one, other = (estimator.predict(fitted.params, features, shape) for fitted in halves[:2])
        confidence = np.where(halves[2][rows], other, one)
    elif not estimator.memory_size:
        confidence = estimator.predict(state.params, features, shape)
    else:
        confidence = np.empty(shape, dtype=np.float32)
        features[MEMORY] = kept = np.empty((len(memory), len(rows)), dtype=np.float32)
        seats, fresh = walk.seat[part], walk.fresh[part]
        # Labels do not depend on what is predicted, so they are graded once; confidences are filled in step by step.
        graded = Observations.grade(features, confidence, known, accepted, starts, unfit)
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            now, seat = slice(begin, end), seats[begin:end]
            kept[:, now] = np.where(fresh[now], np.float32(0), memory[:, seat])
            inputs = {name: column[:, now] for name, column in features.items()}
            confidence[:, now] = estimator.predict(state.params, inputs, (table.num_slots, end - begin))
            here = np.array([0, end - begin])
            labels = graded.observed[:, now], graded.accepted[:, now]
            seen = Observations(inputs, confidence[:, now], *labels, here, graded.num_admitted[now])
            memory[:, seat] = estimator.remember(state.params, seen)
        return graded
    return Observations.grade(features, confidence, known, accepted, starts, unfit)


def _add(
    found: Scores,
    table: Table,
    rows: IntArray,
    num_admitted: IntArray,
    step_of: IntArray,
    confidence: F32Array,
    unscored: BoolArray,
    detailed: bool,
) -> None:
    slots, n = table.num_slots, len(rows)
    slot = np.arange(slots, dtype=np.int16)[:, None]
    full, admitted = table.num_accepted[rows].astype(np.int16), num_admitted.astype(np.int16)
    known = np.where(unscored[rows], 0, table.num_known[rows]).astype(np.int16)
    accepted, reached = slot < full, (slot <= full) & (slot < known)
    cumulative = survival(confidence[:, None], np.full((1, n), slots))[:, 0]
    for kind, (p, scored) in enumerate(((confidence, reached), (cumulative, slot < np.minimum(known, admitted)))):
        if scored.all():  # the usual case of survivals at full admission: nothing to pick
            counts, block = np.full(slots, n), None
            values, label = p.ravel(), accepted.ravel()
        else:
            picked, counts = picked_slots(scored)
            block = picked - np.repeat(np.arange(slots) * n, counts)
            values, label = p.ravel().take(picked), accepted.ravel().take(picked)
        if kind == 1:
            loss = found.cumulative.add_picked(values, label, counts)
        elif detailed:
            category = table.category[rows]
            of_slot = np.tile(category, slots) if block is None else category[block]
            loss = _by_category(found.by_category, of_slot, values, label, counts)
        else:
            loss = found.conditional.add_picked(values, label, counts)
        whole = loss.reshape(slots, n).sum(axis=0) if block is None else np.bincount(block, loss, n)
        found.unit_loss[kind] += np.bincount(table.unit[rows], whole, table.num_units)
        stretch = step_of // BUCKET_STEPS
        for line, column in zip(found.loss_over_time[kind], (whole, scored.sum(axis=0, dtype=np.int16)), strict=True):
            line += np.bincount(stretch, column, len(line))
    trimmed = admitted < known
    if detailed and trimmed.any():
        found.band.add(confidence, accepted, reached & trimmed & ((slot == admitted - 1) | (slot == admitted)))


def _by_category(
    found: Sequence[Calibration], category: IntArray, p: F32Array, label: BoolArray, counts: IntArray
) -> F32Array:
    """Score slots that lie slot after slot, each for its category, and return the log-loss of each."""
    if len(found) == 1:
        return found[0].add_picked(p, label, counts)
    loss = np.empty(len(p), dtype=np.float32)
    slot = np.repeat(np.arange(len(counts)), counts)
    for number, calibration in enumerate(found):
        mine = np.flatnonzero(category == number)
        loss[mine] = calibration.add_picked(p[mine], label[mine], np.bincount(slot[mine], minlength=len(counts)))
    return loss


def block_losses(confidence: F32Array, accepted: BoolArray, scored: BoolArray) -> F64Array:
    """Return the summed log-loss of each block, nats, `[n]`."""
    picked = np.flatnonzero(scored)
    right = np.abs(confidence.ravel().take(picked) - ~accepted.ravel().take(picked))
    loss = -np.log(np.maximum(right, np.float32(LEAST_PROBABILITY), out=right), out=right)
    return np.bincount(picked % scored.shape[1], loss, scored.shape[1]).astype(np.float64)
