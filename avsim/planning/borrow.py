"""Confidence spread and quality, measured on a real trace to be used with other acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logit
from sklearn.metrics import roc_auc_score

from avsim import estimators
from avsim.costs.linear import step_counter
from avsim.errors import InputError
from avsim.planning.acceptance import Acceptance
from avsim.policies import FixedDepth
from avsim.simulate import Arm, simulate
from avsim.sources.base import Trace
from avsim.types import F64Array, IntArray
from avsim.workload import Pool, request_sequences

__all__ = ["Borrowed", "borrow"]

_REQS = 8


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What an estimator's confidences are worth on a trace, on the walk at full depth.

    Attributes:
        trace, estimator: of what.
        acceptance: conditional acceptance of the trace by slot.
        auc: area under the ROC curve by slot, over reached slots, float64 `[K]`.
        request_share: correlation of a slot's logit with that of the request's block before, mean over slots.
    """

    trace: str
    estimator: str
    acceptance: Acceptance
    auc: F64Array
    request_share: float


def borrow(trace: Trace, estimator: str = "online-logistic") -> Borrowed:
    """Measure an estimator's confidences, learned on the same walk in another order.

    Raises:
        InputError: the trace is not dense, lacks a feature, or has a slot that is always decided alike.
    """
    reader = estimators.make_online(estimator)
    pool = Pool.from_trace(trace, reader.features)
    slots = pool.num_slots
    everyone = np.arange(len(pool.start))
    arm = Arm(_Learner(slots), reader)
    learned = simulate(pool, arm, request_sequences([everyone], 1, [[1]]), _REQS, step_counter()).states
    order = request_sequences([everyone], 1, [[2]])
    log = simulate(pool, arm, order, _REQS, step_counter(), states=learned, log=True).log
    assert log is not None
    active = np.stack(log.active)
    rows, request = np.stack(log.rows)[active], np.stack(log.request)[active]
    confidence = np.stack(log.confidence, axis=1)[:, active].astype(np.float64)
    accepted, auc = [], []
    for slot in range(slots):
        reached = (pool.num_accepted[rows] >= slot) & (pool.num_recorded[rows] > slot)
        label = pool.num_accepted[rows][reached] > slot
        if not label.any() or label.all():
            raise InputError(
                f"{trace.path}: slot {slot} has no accepted or no rejected draft among {len(label)} reached"
            )
        accepted.append(float(label.mean()))
        auc.append(float(roc_auc_score(label, confidence[slot, reached])))
    share = _lag_correlation(logit(np.clip(confidence, 1e-6, 1 - 1e-6)), request)
    return Borrowed(trace.card.name, estimator, Acceptance.from_conditional(accepted), np.array(auc), share)


class _Learner(FixedDepth):
    """Full depth, with the confidences read along."""

    uses_confidence = True


def _lag_correlation(logits: F64Array, request: IntArray) -> float:
    """Correlate each slot's logit with that of the request's block before, `[K, n]`; the mean over slots."""
    order = np.argsort(request, kind="stable")
    same = request[order][1:] == request[order][:-1]
    before, after = logits[:, order[:-1][same]], logits[:, order[1:][same]]
    found = [np.corrcoef(a, b)[0, 1] for a, b in zip(before, after, strict=True)]
    return float(np.clip(np.nanmean(found), 0.0, 0.95))
