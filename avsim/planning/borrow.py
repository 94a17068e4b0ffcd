"""Confidence spread, quality and calibration, measured on a real trace to be used with other acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from avsim import estimators
from avsim.costs.linear import step_counter
from avsim.errors import InputError
from avsim.estimators.base import Estimator
from avsim.planning.acceptance import Acceptance
from avsim.policies import FixedDepth
from avsim.simulate import Arm, simulate
from avsim.sources.base import Trace
from avsim.types import BoolArray, F64Array, IntArray
from avsim.workload import Pool, request_sequences, requests_for, split_units

__all__ = ["Borrowed", "borrow"]

_REQS = 8
_WARM_REFITS = 3


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What an estimator's confidences are worth on a trace, on the walk at full depth.

    Attributes:
        trace, estimator: of what.
        acceptance: conditional acceptance of the trace by slot.
        auc: area under the ROC curve by slot, over reached slots, float64 `[K]`.
        request_share: correlation of a slot's logit with that of the request's block before, mean over slots.
        slope, offset: in the words of `Spread`: confidence = σ(slope · logit p + offset), p the best guess of a
            logistic regression on the confidence's logit.
        num_requests: that were scored.
    """

    trace: str
    estimator: str
    acceptance: Acceptance
    auc: F64Array
    request_share: float
    slope: float
    offset: float
    num_requests: int


def borrow(trace: Trace, estimator: str = "online-logistic") -> Borrowed:
    """Measure an estimator's confidences: learned on one half of the requests, scored on the other, both ways round.

    Requests with the same content stand in the same half. The estimator keeps learning while it is scored, as it
    would while serving; a block is always scored before its labels are learned.

    Raises:
        InputError: the trace is not dense, lacks a feature, holds fewer than two distinct requests, or has a slot
            that is always decided alike.
    """
    reader = estimators.make_online(estimator)
    pool = Pool.from_trace(trace, reader.features)
    halves = split_units(pool.unit, 0)
    if not (len(halves[0]) and len(halves[1])):
        raise InputError(f"{trace.path}: {pool.num_units} distinct request; borrowing needs one to learn on and others")
    walks = [_walk(pool, reader, learn, score) for learn, score in (halves, halves[::-1])]
    rows, request = (np.concatenate([walk[i] for walk in walks]) for i in (0, 1))
    confidence = np.concatenate([walk[2] for walk in walks], axis=1)
    reached, label = _graded(pool, rows)
    accepted, auc = [], []
    for slot in range(pool.num_slots):
        here = label[slot, reached[slot]]
        if not here.any() or here.all():
            raise InputError(
                f"{trace.path}: slot {slot} has no accepted or no rejected draft among {len(here)} reached"
            )
        accepted.append(float(here.mean()))
        auc.append(float(roc_auc_score(here, confidence[slot, reached[slot]])))
    logits = logit(np.clip(confidence, 1e-6, 1 - 1e-6))
    slope, offset = _calibration(logits[reached], label[reached])
    return Borrowed(
        trace.card.name,
        estimator,
        Acceptance.from_conditional(accepted),
        np.array(auc),
        _lag_correlation(logits, request),
        slope,
        offset,
        len(pool.start),
    )


class _Learner(FixedDepth):
    """Full depth, with the confidences read along."""

    uses_confidence = True


def _walk(pool: Pool, reader: Estimator, learn: IntArray, score: IntArray) -> tuple[IntArray, IntArray, F64Array]:
    """Return rows, requests and confidences `[K, n]` of a walk over some requests, learned on others."""
    arm = Arm(_Learner(pool.num_slots), reader)
    least = requests_for(pool, _REQS, _WARM_REFITS * reader.refit_interval)
    learned = simulate(pool, arm, request_sequences([learn], least, [[1]]), _REQS, step_counter()).states
    log = simulate(pool, arm, request_sequences([score], 1, [[2]]), _REQS, step_counter(), states=learned, log=True).log
    assert log is not None
    active = np.stack(log.active)
    confidence = np.stack(log.confidence, axis=1)[:, active].astype(np.float64)
    return np.stack(log.rows)[active], np.stack(log.request)[active], confidence


def _graded(pool: Pool, rows: IntArray) -> tuple[BoolArray, BoolArray]:
    """Return which slots of some blocks a verdict reaches, and which were accepted, `[K, n]`."""
    slot = np.arange(pool.num_slots)[:, None]
    accepted = pool.num_accepted[rows]
    reached = (accepted >= slot) & (pool.num_recorded[rows] > slot) & ~pool.unfit[rows]
    return reached, accepted > slot


def _calibration(logits: F64Array, label: BoolArray) -> tuple[float, float]:
    """Fit label ~ σ(a + b · logit of the confidence); return slope 1/b and offset −a/b.

    b is kept between 0.1 and 10: confidences that say nothing have no calibration.
    """
    fit = LogisticRegression(C=1e6).fit(logits[:, None], label)
    b = float(np.clip(fit.coef_[0, 0], 0.1, 10.0))
    return 1 / b, float(np.clip(-fit.intercept_[0] / b, -5.0, 5.0))


def _lag_correlation(logits: F64Array, request: IntArray) -> float:
    """Correlate each slot's logit with that of the request's block before, `[K, n]`; the mean over slots.

    0 where an estimator tells no block from another.
    """
    order = np.argsort(request, kind="stable")
    same = request[order][1:] == request[order][:-1]
    before, after = logits[:, order[:-1][same]], logits[:, order[1:][same]]
    varies = (np.ptp(before, axis=1) > 0) & (np.ptp(after, axis=1) > 0)
    if not varies.any():
        return 0.0
    found = [np.corrcoef(a, b)[0, 1] for a, b in zip(before[varies], after[varies], strict=True)]
    return float(np.clip(np.mean(found), 0.0, 0.95))
