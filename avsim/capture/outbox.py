"""Between the engine's thread and the writer's: the open step, and what happens when the queue is full."""

from __future__ import annotations

from typing import Any

from avsim.capture.batch import Figures
from avsim.capture.events import Finish, Proposals, Start, Verdicts
from avsim.capture.writer import Message, Stop, Writer

__all__ = ["Outbox"]

MAX_CARRIED = 1 << 16


class Outbox:
    """Collects the events of the open step and hands it over whole, or drops it whole and counts it.

    Beginnings and ends of requests are never dropped: they travel with the next step that fits.

    Args:
        counts: `steps` and `dropped_steps` are kept here; the writer reads them.
        queue_steps: steps that may wait.
    """

    def __init__(self, writer: Writer, counts: dict[str, int], queue_steps: int) -> None:
        self.writer = writer
        self._counts = counts
        self._queue_steps = queue_steps
        self._open: list[Any] = []
        self._step = 0
        self._in_step = False
        self._gap = False
        self._dropping = False

    def add(self, event: Start | Proposals | Verdicts | Finish) -> None:
        """Add an event to the open step.

        Raises:
            RuntimeError: the writer has been stuck for very long.
        """
        if isinstance(event, Proposals | Verdicts):
            if len(event.keys):
                self._open.append(event)
                self._in_step = True
            return
        self._open.append(event)
        # Between two steps it need not wait for the next, which an idle engine may never run.
        if not self._in_step and not self._full():
            self._put(None)
        elif len(self._open) > MAX_CARRIED:
            raise RuntimeError("the writer is stuck, and the requests that came and went no longer fit in memory")

    def end_step(self, figures: Figures) -> None:
        """Close the open step."""
        self._counts["steps"] += 1
        if self._full():
            self._counts["dropped_steps"] += 1
            self._drop("overflow")
            self._gap = True
        else:
            self._put(figures)
        self._step += 1
        self._in_step = False

    def close_step(self) -> None:
        """Hand over only the requests of a step that will not be closed."""
        self._drop("unclosed_step")
        if self._open:
            self._put(None)

    def stop(self, reason: str) -> None:
        """Tell the writer to end; what it already has is written first."""
        self._drop("stopped")
        self._open = []
        self.writer.queue.put(Stop(reason))

    def counters(self) -> dict[str, Any]:
        """Return all counters; exact once the writer has ended."""
        if not self.writer.running and self.writer.join(1.0):
            self.writer.drain()  # a step may have been put just as the writer ended
        return self.writer.counters()

    def _put(self, figures: Figures | None) -> None:
        self.writer.queue.put(Message(self._step, self._open, figures, self._gap))
        self._open, self._gap = [], False

    def _drop(self, reason: str) -> None:
        for event in self._open:
            if isinstance(event, Verdicts):
                self.writer.lost[reason] += len(event.keys)
        self._open = [event for event in self._open if isinstance(event, Start | Finish)]

    def _full(self) -> bool:
        """From a full queue until it is half empty: each gap costs the step after it too, so gaps should be few."""
        waiting = self.writer.queue.qsize()
        self._dropping = waiting > self._queue_steps // 2 if self._dropping else waiting >= self._queue_steps
        return self._dropping
