"""How confidences come true while an engine serves: counted on the device, copied to the host now and then.

Counting is one kernel per estimator and step; nothing waits for the device. The copy is ordered behind the steps that
it covers and is looked at in a later step, when it has arrived. So what is reported lags by up to one interval.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.types import F64Array, IntArray

__all__ = ["Counts", "HostCounts", "Ledger", "counts_document"]


@dataclass(slots=True)
class HostCounts:
    """What the host knows by itself.

    Attributes:
        steps: sampling steps, prompts included.
        scheduled_drafts: drafts of the steps that had a budget.
        budget: drafts that were granted in them.
        timed_steps, predicted_ms, measured_ms: steps between which the engine had work all along, what the cost
            tables in force say of them, and the time from one to the next.
    """

    steps: int = 0
    scheduled_drafts: int = 0
    budget: int = 0
    timed_steps: int = 0
    predicted_ms: float = 0.0
    measured_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Everything up to some step.

    Attributes:
        host: see `HostCounts`.
        sums: by estimator, float64 `[K, 5]`, columns as `avsim.kernels.ops.tally.SUMS`.
        cells: by estimator, labelled slots by label and p, int64 `[K, 2, cells]`.
    """

    host: HostCounts
    sums: Mapping[str, F64Array]
    cells: Mapping[str, IntArray]


@dataclass(slots=True, eq=False)
class _Table:
    """One estimator's counts: on the device, pinned on the host, and added up there without wrapping around."""

    predictions: Any
    cells: Any
    sums: Any
    pinned: tuple[Any, Any]
    seen: NDArray[np.uint32]
    total: IntArray


@dataclass(slots=True, eq=False)
class _Plan:
    """A step between its scheduling and its verdicts."""

    requests: frozenset[str]
    predicted_ms: float
    goes_on: bool


@dataclass(slots=True, eq=False)
class _Flight:
    event: Any
    host: HostCounts = field(repr=False)


class Ledger:
    """The counts of one engine.

    Args:
        predictions: by estimator, p as predicted at draft time, float32 `[max_num_reqs, K]` on the device.
        interval: steps from one copy to the next.
    """

    def __init__(self, predictions: Mapping[str, Any], interval: int) -> None:
        import torch

        from avsim.kernels.ops.tally import CELLS, SUMS, tally

        self._tally, self._interval, self.host = tally, interval, HostCounts()
        self._tables: dict[str, _Table] = {}
        for name, held in predictions.items():
            device, num_slots = held.device, held.shape[1]
            self._pinned = device.type != "cpu"
            cells = torch.zeros((num_slots, 2, CELLS), dtype=torch.int32, device=device)
            sums = torch.zeros((num_slots, len(SUMS)), dtype=torch.float64, device=device)
            pinned = tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=self._pinned) for t in (cells, sums))
            zero = np.zeros(cells.shape, dtype=np.int64)
            self._tables[name] = _Table(held, cells, sums, pinned, zero.astype(np.uint32), zero)
            # Compiled now, not while serving, on a request that has sampled nothing.
            slot = torch.zeros(1, dtype=torch.int64, device=device)
            tally(cells, sums, held, slot, slot.int(), slot.int())
        self._flight: _Flight | None = None
        self._plan: _Plan | None = None
        self._last: tuple[float, frozenset[str]] | None = None

    def plan(self, manager: Any, requests: Mapping[str, int]) -> None:
        """Note what the budget rule has just decided; `manager` is vLLM's `AdaptiveVerificationManager`."""
        num_drafts, num_other, budget = manager._batch_budget
        draft_ms, verify_ms = manager.cost_tables
        predicted = float(draft_ms[len(requests)] + verify_ms[sum(num_other.values()) + budget])
        self.host.scheduled_drafts += sum(num_drafts.values())
        self.host.budget += budget
        now = frozenset(requests)
        # A request of the step before that goes on kept the engine busy in between.
        goes_on = self._last is not None and bool(self._last[1] & now)
        self._plan = _Plan(now, predicted, goes_on)

    def grade(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Count one step's verdicts, before estimators learn from them and drafts are made anew."""
        now, plan = time.perf_counter(), self._plan
        self._plan = None
        if plan is not None and plan.goes_on and self._last is not None:
            self.host.timed_steps += 1
            self.host.predicted_ms += plan.predicted_ms
            self.host.measured_ms += (now - self._last[0]) * 1e3
        self._last = None if plan is None else (now, plan.requests)
        self.host.steps += 1
        for table in self._tables.values():
            self._tally(table.cells, table.sums, table.predictions, idx_mapping, num_sampled, num_rejected)

    def arrived(self) -> Counts | None:
        """Return the counts of a copy that has arrived, and send the next one on its way when it is due."""
        found = None
        if self._flight is not None and (self._flight.event is None or self._flight.event.query()):
            found = self._read(self._flight.host)
            self._flight = None
        if self._flight is None and self.host.steps % self._interval == 0:
            self._send()
        return found

    def now(self) -> Counts:
        """Return the counts up to this step; waits for the device."""
        self._send()
        assert self._flight is not None
        if self._flight.event is not None:
            self._flight.event.synchronize()
        found, self._flight = self._read(self._flight.host), None
        return found

    def clear(self) -> None:
        """Forget everything that was counted."""
        self.host, self._flight, self._plan, self._last = HostCounts(), None, None, None
        for table in self._tables.values():
            table.cells.zero_()
            table.sums.zero_()
            table.seen.fill(0)
            table.total.fill(0)

    def _send(self) -> None:
        import torch

        event = None
        for table in self._tables.values():
            for host, held in zip(table.pinned, (table.cells, table.sums), strict=True):
                host.copy_(held, non_blocking=self._pinned)
        if self._pinned:
            event = torch.cuda.Event()
            event.record()
        host = self.host
        self._flight = _Flight(event, HostCounts(*(getattr(host, name) for name in HostCounts.__slots__)))

    def _read(self, host: HostCounts) -> Counts:
        for table in self._tables.values():
            cells = table.pinned[0].numpy().view(np.uint32)
            # Modulo 2³², as the device counts.
            table.total += (cells - table.seen).astype(np.int64)
            table.seen = cells.copy()
        return Counts(
            host,
            {name: table.pinned[1].numpy().copy() for name, table in self._tables.items()},
            {name: table.total.copy() for name, table in self._tables.items()},
        )


def counts_document(counts: Counts, before: Counts | None) -> dict[str, Any]:
    """Return counts as a JSON-ready dict; the window is what came after `before`, everything if that is None.

    Labels are the same for every estimator; `confidence_sum` is Σ p over the labelled slots of each draft slot, to be
    held against `accepted`, and `expected_accepted` is Σ S_k over the verified ones. A slope is None where a finite
    one does not exist.
    """
    from avsim.metrics.calibration import calibration_line

    first = next(iter(counts.sums.values()))
    verified, _, observed, accepted, _ = first.T
    host, old = counts.host, None if before is None else next(iter(before.sums.values()))
    recent = observed if old is None else observed - old[:, 2]
    found: dict[str, Any] = {
        "steps": host.steps,
        "drafts": {
            "scheduled": host.scheduled_drafts,
            "budget": host.budget,
            "verified": int(verified.sum()),
            "accepted": int(accepted.sum()),
        },
        "slots": {
            "verified": verified.astype(int).tolist(),
            "labelled": observed.astype(int).tolist(),
            "accepted": accepted.astype(int).tolist(),
        },
        "window": {
            "steps": host.steps - (0 if before is None else before.host.steps),
            "labelled": recent.astype(int).tolist(),
            "starved": np.flatnonzero(recent == 0).tolist(),
        },
        "step_time": {
            "steps": host.timed_steps,
            "predicted_ms": host.predicted_ms,
            "measured_ms": host.measured_ms,
        },
        "estimators": {},
    }
    for name, sums in counts.sums.items():
        cells = counts.cells[name]
        slope, intercept = calibration_line(cells.sum(axis=0))
        new = cells.sum(axis=0) - (0 if before is None else before.cells[name].sum(axis=0))
        found["estimators"][name] = {
            "confidence_sum": sums[:, 4].tolist(),
            "expected_accepted": sums[:, 1].tolist(),
            "unscored": int(sums[:, 2].sum()) - int(cells.sum()),
            "calibration_slope": slope,
            "calibration_intercept": intercept,
            "window_calibration_slope": calibration_line(new)[0],
        }
    return found
