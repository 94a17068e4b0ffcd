"""The writer thread: takes steps from the queue, pairs proposals with verdicts, and appends records to the log."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from avsim.capture.batch import Batch, Figures
from avsim.capture.events import Verdicts
from avsim.capture.files import LogFiles
from avsim.capture.log import encode
from avsim.capture.pairing import Pairing

__all__ = ["FLUSH_SECONDS", "FLUSH_STEPS", "Message", "Stop", "Writer"]

FLUSH_STEPS = 64
FLUSH_SECONDS = 1.0
FLUSH_BYTES = 1 << 18  # encoding holds the interpreter's lock, so a record must stay small
_END_BYTES = 4096  # kept free below the size limit for the record that closes the log

logger = logging.getLogger("avsim.capture")


@dataclass(slots=True, eq=False)
class Message:
    """A step's events in the order reported; `figures` is None where only requests began or ended between steps.

    `after_gap` says that steps were dropped just before this one.
    """

    step: int
    events: list[Any]
    figures: Figures | None
    after_gap: bool = False

    @property
    def num_verdicts(self) -> int:
        """Verdicts in the step, each of which becomes a block or a counted drop."""
        return sum(len(event.keys) for event in self.events if isinstance(event, Verdicts))


@dataclass(frozen=True, slots=True)
class Stop:
    """The last message: write what is held, then a closing record with this reason."""

    reason: str


class Writer:
    """Owns the log files, the pairing state and a daemon thread.

    The engine's thread puts messages into `queue`, reads `running`, and counts in `lost` the verdicts, by reason, that
    it did not put.

    Args:
        files: where to write.
        num_slots: K.
        engine_counts: counters kept by the engine's side; read, never written.
        max_bytes: recording stops before the folder is larger than this.
        with_ids: keep drafted token ids.
    """

    def __init__(
        self,
        files: LogFiles,
        num_slots: int,
        engine_counts: Mapping[str, int],
        max_bytes: int | None,
        *,
        with_ids: bool,
    ) -> None:
        self.queue: queue.SimpleQueue[Message | Stop] = queue.SimpleQueue()
        self.running = True
        self.pairing = Pairing(num_slots)
        self.num_blocks = 0
        self.num_steps = 0
        self.lost = dict.fromkeys(("overflow", "unclosed_step", "stopped"), 0)
        self._dropped = Counter({"stopped": 0})
        self._files = files
        self._engine_counts = engine_counts
        self._max_bytes = max_bytes
        self._with_ids = with_ids
        self._batch = Batch()
        self._thread = threading.Thread(target=self._run, name="avsim-capture", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; return whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def counters(self) -> dict[str, Any]:
        """Return what was recorded and dropped so far; exact once the thread has ended."""
        return {
            **self._engine_counts,
            "written_steps": self.num_steps,
            "blocks": self.num_blocks,
            "unverified_proposals": self.pairing.unverified,
            "dropped_blocks": dict(self.pairing.dropped + self._dropped + Counter(self.lost)),
            "bytes": self._files.num_bytes,
        }

    def _run(self) -> None:
        try:
            reason = self._consume()
            self._files.append(encode({"end": reason, "counters": self.counters()}, {}, 0))
            self._files.close()
            logger.info("capture: ended (%s), %d blocks in %s", reason, self.num_blocks, self._files.folder)
        except Exception as error:
            logger.warning("capture: off, the writer failed (%s: %s)", type(error).__name__, error)
        finally:
            self.running = False
            self._dropped["stopped"] += self._batch.num_blocks
            self._batch = Batch()
            self.drain()

    def drain(self) -> None:
        """Count and forget whatever still waits in the queue."""
        while True:
            try:
                message = self.queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, Message):
                self._dropped["stopped"] += message.num_verdicts

    def _consume(self) -> str:
        due = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                message = self.queue.get(timeout=max(due - time.monotonic(), 0) if self._batch else None)
            except queue.Empty:
                message = None
            if isinstance(message, Stop):
                self.pairing.forget_proposals()
            elif isinstance(message, Message):
                if not self._batch:
                    due = time.monotonic() + FLUSH_SECONDS
                self._take(message)
            full = len(self._batch.figures) >= FLUSH_STEPS or self._batch.num_bytes >= FLUSH_BYTES
            full |= time.monotonic() >= due
            if self._batch and (full or isinstance(message, Stop)) and not self._flush():
                return "max_mib"
            if isinstance(message, Stop):
                return message.reason

    def _take(self, message: Message) -> None:
        if message.after_gap:
            self.pairing.forget_proposals()
        done = self.pairing.play(message.step, message.events)
        self._batch.add(message.step, message.events, done, message.figures)

    def _flush(self) -> bool:
        batch = self._batch
        counters = self.counters()
        counters["blocks"] += batch.num_blocks
        counters["written_steps"] += len(batch.figures)
        record = batch.encode(self.pairing.names or (), counters, with_ids=self._with_ids)
        if self._max_bytes is not None and self._files.num_bytes + len(record) + _END_BYTES > self._max_bytes:
            return False
        self._files.append(record)
        self.num_blocks += batch.num_blocks
        self.num_steps += len(batch.figures)
        self._batch = Batch()
        return True
