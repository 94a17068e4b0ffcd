"""What one arm did at one load, in the terms of DESIGN §2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from avsim.costs.base import CostModel, StepShape
from avsim.metrics.calibration import Calibration
from avsim.simulate import StepLog, Totals
from avsim.types import BoolArray, F64Array, IntArray
from avsim.workload import Pool

__all__ = [
    "Path",
    "acceptance",
    "flatten_log",
    "score_confidences",
    "step_regret_pct",
    "step_regrets_pct",
    "steps_frame",
    "tpot_ms",
]

_CHUNK = 1024
_CELLS = 1 << 18  # steps times budgets that hindsight looks at in one piece


@dataclass(frozen=True, slots=True)
class Path:
    """A logged run as arrays `[steps, reqs]`; `first` marks a request's first block; `ms` is `[steps]`."""

    rows: IntArray
    admitted: IntArray
    active: BoolArray
    emitted: IntArray
    ms: F64Array
    first: BoolArray

    @property
    def num_reqs(self) -> IntArray:
        return self.active.sum(axis=1)


def flatten_log(log: StepLog) -> Path:
    """Stack a step log."""
    active: BoolArray = np.stack(log.active)
    emitted: IntArray = np.stack(log.emitted)
    return Path(np.stack(log.rows), np.stack(log.admitted), active, emitted, np.array(log.ms), np.stack(log.first))


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
    _, best = _hindsight(path, pool, truth, concurrency, num_slots, full)
    return float((1 - path.emitted[full].sum(axis=1) / path.ms[full] / best).mean() * 100)


def step_regrets_pct(path: Path, pool: Pool, truth: CostModel, concurrency: int) -> tuple[float | None, float | None]:
    """Split the step regret of an arm that drafts all K into budget and allocation, %; None if never at full load.

    Step by step in the same states: how much rate the oracle's budget gains over this one, both spent on the slots
    that will be accepted; and how much spending this budget on them gains over what the arm did. Both are means of
    1 − rate / better rate, in hindsight: no score could have avoided all of it.
    """
    full = path.num_reqs == concurrency
    if not full.any():
        return None, None
    spent, best = _hindsight(path, pool, truth, concurrency, pool.num_slots, full)
    rate = path.emitted[full].sum(axis=1) / path.ms[full]
    return float((1 - spent / best).mean() * 100), float((1 - rate / spent).mean() * 100)


def _hindsight(
    path: Path, pool: Pool, truth: CostModel, concurrency: int, num_slots: int, full: BoolArray
) -> tuple[F64Array, F64Array]:
    """Return the best rates in hindsight of some steps: with the budget that was spent, and with the best budget."""
    rows, budget = path.rows[full], path.admitted[full].sum(axis=1)
    spent, best = np.empty(len(rows)), np.empty(len(rows))
    at_once = max(1, _CELLS // (concurrency * num_slots + 1))
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        spent[part], best[part] = _rates(pool, rows[part], budget[part], truth, num_slots)
    return spent, best


def _rates(pool: Pool, rows: IntArray, budget: IntArray, truth: CostModel, num_slots: int) -> tuple[F64Array, F64Array]:
    """Return emitted tokens per ms where a budget goes to slots that will be accepted: the one spent, and the best."""
    reqs, request = rows.shape[1], _request(pool, rows)
    held = (pool.prompt_len[request] + rows - pool.start[request] + 1).sum(axis=1)
    # The bonus token ends an output as well as its last draft would.
    useful = np.minimum(np.minimum(pool.num_accepted[rows], num_slots), _remaining(pool, rows) - 1).sum(axis=1)

    def rate(budgets: IntArray) -> F64Array:
        size = np.full(budgets.size, reqs)
        kv = np.broadcast_to(held, budgets.shape).ravel().astype(np.float64)
        shape = StepShape(
            size, (reqs + budgets).ravel(), kv, np.zeros_like(size), draft_depth=np.full(budgets.size, num_slots)
        )
        tokens = reqs + np.minimum(budgets, useful)
        return tokens / truth.step_ms(shape, drafting=True).reshape(budgets.shape)

    # No step gets cheaper by verifying more, so more than what is useful is never best.
    every = np.broadcast_to(np.arange(useful.max() + 1)[:, None], (useful.max() + 1, len(rows)))
    return rate(budget), rate(every).max(axis=0)


def _request(pool: Pool, rows: IntArray) -> IntArray:
    return np.searchsorted(pool.start, rows, side="right") - 1


def _remaining(pool: Pool, rows: IntArray) -> IntArray:
    request = _request(pool, rows)
    return pool.output_len[request] - 1 - (rows - pool.start[request])


def steps_frame(log: StepLog, path: Path, pool: Pool, policy: str, load: str, concurrency: int | None) -> pl.DataFrame:
    """Return one row per step: sizes, verified, accepted and emitted tokens, and time.

    `num_reqs` counts those with a block verified; `emitted_tokens` leaves first tokens out, which come with prompts.
    """
    accepted = np.where(path.active, np.minimum(pool.num_accepted[path.rows], path.admitted), 0).sum(axis=1)
    verified = path.admitted.sum(axis=1)
    return pl.DataFrame(
        {
            "policy": pl.repeat(policy, len(path.ms), eager=True),
            "load": pl.repeat(load, len(path.ms), eager=True),
            "concurrency": pl.repeat(concurrency, len(path.ms), eager=True, dtype=pl.Int32),
            "step": np.arange(len(path.ms), dtype=np.int64),
            "num_reqs": path.num_reqs.astype(np.int32),
            "prompt_tokens": np.stack(log.prompt_tokens).sum(axis=1).astype(np.int32),
            "verified_drafts": verified.astype(np.int32),
            "accepted_drafts": accepted.astype(np.int32),
            "emitted_tokens": path.emitted.sum(axis=1).astype(np.int32),
            "start_ms": np.array(log.start_ms),
            "step_ms": path.ms,
        }
    )
