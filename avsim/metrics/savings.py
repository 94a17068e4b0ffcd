"""What one arm did at one load, in the terms of DESIGN §2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.metrics.calibration import Calibration
from avsim.policies import Oracle
from avsim.policies.base import StepBatch
from avsim.simulate import StepLog, Totals
from avsim.types import BoolArray, F64Array, IntArray
from avsim.workload import Pool

__all__ = ["Path", "acceptance", "flatten_log", "score_confidences", "step_regret_pct", "steps_frame", "tpot_ms"]

_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Path:
    """A logged run as arrays `[steps, reqs]`; `ms` is `[steps]`."""

    rows: IntArray
    admitted: IntArray
    active: BoolArray
    emitted: IntArray
    ms: F64Array

    @property
    def num_reqs(self) -> IntArray:
        return self.active.sum(axis=1)


def flatten_log(log: StepLog) -> Path:
    """Stack a step log."""
    active: BoolArray = np.stack(log.active)
    emitted: IntArray = np.stack(log.emitted)
    return Path(np.stack(log.rows), np.stack(log.admitted), active, emitted, np.array(log.ms))


def acceptance(totals: Totals, pool: Pool, path: Path | None, num_slots: int, run: int = 0) -> dict[str, Any]:
    """Return acceptance by each denominator: per drafted, per verified, and conditional per slot.

    Conditional is among slots whose predecessors were all accepted and that were verified. Slots beyond the end of
    an output that the trace lacks count as rejected in the first two and are left out of the third.
    """
    accepted, admitted, drafted = (int(x[run]) for x in (totals.accepted, totals.admitted, totals.drafted))
    conditional: list[float | None] = []
    counts: list[int] = []
    if path is not None and num_slots:
        rows, admitted_rows = path.rows[path.active], path.admitted[path.active]
        verdicts = np.minimum(admitted_rows, pool.num_recorded[rows])
        taken = np.minimum(pool.num_accepted[rows], admitted_rows)
        for slot in range(num_slots):
            reached = (taken >= slot) & (verdicts > slot)
            counts.append(int(reached.sum()))
            conditional.append(float((taken[reached] > slot).mean()) if counts[-1] else None)
    return {
        "per_drafted": accepted / drafted if drafted else None,
        "per_verified": accepted / admitted if admitted else None,
        "conditional": conditional,
        "conditional_count": counts,
    }


def tpot_ms(log: StepLog) -> dict[str, float] | None:
    """Return percentiles of time per output token over finished requests, ms."""
    if not log.tpot_ms:
        return None
    values = np.concatenate(log.tpot_ms)
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99)}


def score_confidences(log: StepLog, pool: Pool, path: Path, num_slots: int) -> Calibration:
    """Score confidences on every reached slot of the run's path, admitted or not: a dense trace knows them all."""
    calibration = Calibration(num_slots)
    slot = np.arange(num_slots)[:, None]
    for start in range(0, len(log.confidence), _CHUNK):
        active = path.active[start : start + _CHUNK]
        rows = path.rows[start : start + _CHUNK][active]
        confidence = np.stack(log.confidence[start : start + _CHUNK], axis=1)[:, active]
        accepted = pool.num_accepted[rows]
        reached = (slot <= accepted) & (slot < pool.num_recorded[rows])
        calibration.add(confidence, slot < accepted, reached)
    return calibration


def step_regret_pct(path: Path, pool: Pool, truth: CostModel, concurrency: int, num_slots: int) -> float | None:
    """Return by how much the `oracle` would have raised emitted tokens per ms, step by step in the same states, %.

    The mean over steps at full concurrency of 1 − rate / oracle's rate; never negative, since per step and state
    the oracle has the highest rate of all policies that draft.
    """
    full = path.num_reqs == concurrency
    if not full.any():
        return None
    tables = truth.tables(concurrency, concurrency * (num_slots + 1))
    rows, emitted, ms = path.rows[full], path.emitted[full], path.ms[full]
    remaining = _remaining(pool, rows)
    best = np.empty(len(rows))
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        best[part] = _oracle_rate(pool, rows[part], remaining[part], truth, tables, num_slots)
    return float((1 - emitted.sum(axis=1) / ms / best).mean() * 100)


def _oracle_rate(
    pool: Pool, rows: IntArray, remaining: IntArray, truth: CostModel, tables: CostTables, num_slots: int
) -> F64Array:
    steps, reqs = rows.shape
    accepted = pool.num_accepted[rows]
    unread = np.broadcast_to(np.float32(1), (num_slots, steps, reqs))
    size = np.full(steps, reqs)
    drafted = np.minimum(pool.num_drafted[rows], num_slots)
    step = StepBatch(unread, unread, drafted, size, size, size, tables, accepted, remaining)
    admitted = Oracle().admit(step)
    held = (pool.prompt_len[_request(pool, rows)] + rows - pool.start[_request(pool, rows)] + 1).sum(axis=1)
    shape = StepShape(size, reqs + admitted.sum(axis=1), held.astype(np.float64), np.zeros_like(size))
    emitted = np.minimum(np.minimum(accepted, admitted) + 1, remaining)
    return emitted.sum(axis=1) / truth.step_ms(shape, drafting=True)


def _request(pool: Pool, rows: IntArray) -> IntArray:
    return np.searchsorted(pool.start, rows, side="right") - 1


def _remaining(pool: Pool, rows: IntArray) -> IntArray:
    request = _request(pool, rows)
    return pool.output_len[request] - 1 - (rows - pool.start[request])


def steps_frame(path: Path, pool: Pool, policy: str, concurrency: int) -> pl.DataFrame:
    """Return one row per step: sizes, verified, accepted and emitted tokens, and time."""
    accepted = np.where(path.active, np.minimum(pool.num_accepted[path.rows], path.admitted), 0).sum(axis=1)
    verified = path.admitted.sum(axis=1)
    return pl.DataFrame(
        {
            "policy": pl.repeat(policy, len(path.ms), eager=True),
            "concurrency": np.full(len(path.ms), concurrency, dtype=np.int32),
            "step": np.arange(len(path.ms), dtype=np.int64),
            "num_reqs": path.num_reqs.astype(np.int32),
            "verified_drafts": verified.astype(np.int32),
            "accepted_drafts": accepted.astype(np.int32),
            "emitted_tokens": path.emitted.sum(axis=1).astype(np.int32),
            "step_ms": path.ms,
        }
    )
