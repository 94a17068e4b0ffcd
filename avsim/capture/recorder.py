"""The engine's side of a capture: takes what the hooks report and hands it to the writer, never raising or waiting."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec

import numpy as np
from numpy.typing import NDArray

from avsim.capture.batch import Figures
from avsim.capture.config import CaptureConfig
from avsim.capture.events import Finish, Proposals, Start, Verdicts
from avsim.capture.files import LogFiles
from avsim.capture.log import LOG_VERSION
from avsim.capture.outbox import Outbox
from avsim.capture.writer import FLUSH_SECONDS, FLUSH_STEPS, Writer, logger

__all__ = ["Recorder"]

CLOSE_SECONDS = 10.0

_P = ParamSpec("_P")
_Integers = Sequence[int] | NDArray[np.integer[Any]]


def _guarded(method: Callable[Concatenate[Recorder, _P], None]) -> Callable[Concatenate[Recorder, _P], None]:
    """Let a method do nothing once capture is off, and switch capture off where it fails."""

    @functools.wraps(method)
    def call(self: Recorder, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not self.active:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._fail(error)

    return call


class Recorder:
    """Records one engine process. Every method returns at once and raises nothing.

    Sequences and arrays are handed over, not copied: the caller must not change them afterwards.

    The calls of one step come from one thread and end with `end_step`; within a step their order is free, except that
    a request starts before it is proposed for, and finishes after its last verdict. A verdict grades the newest
    proposal that was made in an *earlier* step. Anything that fails (a full disk, a bad argument) logs one line to
    `avsim.capture` and switches capture off.

    Args:
        config: where and how much.
        facts: for the trace's card, ready for JSON; `num_speculative_tokens` (K) is needed.
        rank: of this process in a group that computes the same thing; only rank 0 records.
        clock: seconds, rising.
        salt: of the hashed request ids and of the choice of requests; random by default, and never stored.
    """

    def __init__(
        self,
        config: CaptureConfig,
        facts: Mapping[str, Any],
        *,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
        salt: str | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._salt = secrets.token_hex(16) if salt is None else salt
        self._pid = os.getpid()
        self._on = False
        self._outbox: Outbox | None = None
        self._numbers: dict[str, int | None] = {}  # None: not in the sample
        self._details: dict[str, tuple[Any, ...]] = {}
        self._counts = {"steps": 0, "dropped_steps": 0, "requests": 0, "skipped_requests": 0}
        if rank != 0:
            return
        try:
            num_slots = int(facts["num_speculative_tokens"])
            if num_slots < 1:
                raise ValueError(f"num_speculative_tokens is {num_slots}")
            self._start = clock()
            limit = None if config.max_mib is None else config.max_mib << 20
            files = LogFiles(config.directory, self._about(facts), config.rotate_mib << 20)
            self.folder = files.folder
            writer = Writer(files, num_slots, self._counts, limit, with_ids=config.record_token_ids)
            self._outbox = Outbox(writer, self._counts, config.queue_steps)
            self._on = True
            atexit.register(self.close)
        except Exception as error:
            self._fail(error)

    @property
    def active(self) -> bool:
        """Whether calls are recorded: not after a failure, a limit or `close`, and not in a forked child."""
        return self._on and self._outbox is not None and self._outbox.writer.running and self._pid == os.getpid()

    @property
    def counters(self) -> dict[str, Any]:
        """What was recorded and dropped; exact after `close`.

        Every verdict on a recorded request is one of `blocks` or counted in `dropped_blocks`, by reason (see
        `avsim.capture.pairing.REASONS`).
        """
        if self._outbox is not None:
            return self._outbox.counters()
        return {**self._counts, "written_steps": 0, "blocks": 0, "unverified_proposals": 0, "dropped_blocks": {}}

    @_guarded
    def start_request(
        self,
        key: str,
        *,
        prompt_len: int,
        temperature: float,
        top_p: float | None,
        category: str | None = None,
        arrival_s: float | None = None,
    ) -> None:
        """Announce a request before its first proposal.

        Announcing a running request again means that it was preempted and goes on: its ungraded proposal is
        forgotten. If its values differ it is another request under the same key, and the old one is left as cut.

        Args:
            arrival_s: seconds since the start of the engine; by default, the time since this recorder's.
        """
        if arrival_s is None:
            arrival_s = max(self._clock() - self._start, 0.0)
        fixed = (
            int(prompt_len),
            float(temperature),
            None if top_p is None else float(top_p),
            category and str(category),
        )
        if key in self._numbers and self._details[key] == fixed:
            number = self._numbers[key]
        else:
            digest = hashlib.sha256(f"{self._salt}/{key}".encode()).digest()
            sampled = int.from_bytes(digest[:8], "little") < self._config.sample_rate * 2.0**64
            number = self._counts["requests"] if sampled else None
            self._counts["requests" if sampled else "skipped_requests"] += 1
            self._numbers[key], self._details[key] = number, fixed
        if number is not None:
            name = key if self._config.record_request_ids else hashlib.sha256(f"id/{self._salt}/{key}".encode())
            text = name if isinstance(name, str) else name.hexdigest()[:16]
            self._send(Start(key, number, (text, *fixed, float(arrival_s))))

    @_guarded
    def propose(
        self,
        keys: Sequence[str],
        num_drafted: _Integers,
        features: Mapping[str, NDArray[Any]],
        draft_ids: NDArray[Any] | None = None,
        positions: _Integers | None = None,
    ) -> None:
        """Report the drafts made in this step; they are graded in a later one.

        Args:
            keys: B requests.
            num_drafted: `[B]`, 0 … the width of the features.
            features: name to `[B, W]` with W ≤ K; slots at or beyond `num_drafted` may hold anything.
            draft_ids: `[B, W]`, to be compared with what is verified.
            positions: `[B]`, index of the last output token emitted so far. Without it, a proposal is known to be
                stale only if a verdict came in the same step, or if token ids are given to both calls.
        """
        keys, rows = self._sampled(keys)
        if rows is not None:
            features = {name: values[rows] for name, values in features.items()}
        counts, ids, at = (_rows(values, rows) for values in (num_drafted, draft_ids, positions))
        self._send(Proposals(keys, counts, features, ids, at))

    @_guarded
    def verify(
        self,
        keys: Sequence[str],
        positions: _Integers,
        num_admitted: _Integers,
        num_accepted: _Integers,
        scheduled_ids: NDArray[Any] | None = None,
        mask: Sequence[str | None] | None = None,
    ) -> None:
        """Report the verdicts of this step on drafts of earlier ones.

        Args:
            keys: B requests.
            positions: `[B]`, index of the last output token that was emitted before this step.
            num_admitted: `[B]`, leading slots that were verified.
            num_accepted: `[B]`, leading admitted slots that were accepted, the bonus token not counted.
            scheduled_ids: `[B, W]`, the draft tokens that were verified.
            mask: why a block's labels are unfit to learn from (`grammar`, `penalty`, …); None where they are fit.
        """
        keys, rows = self._sampled(keys)
        if rows is not None and mask is not None:
            mask = [mask[row] for row in rows]
        at, admitted, accepted = (_rows(values, rows) for values in (positions, num_admitted, num_accepted))
        self._send(Verdicts(keys, at, admitted, accepted, _rows(scheduled_ids, rows), mask))

    @_guarded
    def end_step(
        self,
        *,
        num_reqs: int,
        num_target_tokens: int,
        num_prefill_tokens: int,
        kv_tokens: int | None,
        forward_ms: float | None,
        drafter_ms: float | None,
        graph_mode: str | None,
    ) -> None:
        """Close the step and hand it to the writer, or drop it whole if the queue is full."""
        assert self._outbox is not None
        self._outbox.end_step(
            Figures(num_reqs, num_target_tokens, num_prefill_tokens, kv_tokens, forward_ms, drafter_ms, graph_mode)
        )
        if self._config.max_seconds is not None and self._clock() - self._start >= self._config.max_seconds:
            self._off("max_seconds")

    @_guarded
    def finish_request(self, key: str, output_len: int, aborted: bool) -> None:
        """Report that a request has ended with so many emitted tokens; its ungraded proposal is forgotten."""
        self._details.pop(key, None)
        number = self._numbers.pop(key, None)
        if number is not None:
            self._send(Finish(key, number, int(output_len), bool(aborted)))

    @_guarded
    def close(self) -> None:
        """Write what is held and end the log; waits for the writer, at most ten seconds. Idempotent."""
        assert self._outbox is not None
        self._outbox.close_step()
        self._off("closed")
        if not self._outbox.writer.join(CLOSE_SECONDS):
            logger.warning("capture: the writer is still busy, so the end of the log may be missing")

    def _about(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        config = self._config
        return {
            "log_version": LOG_VERSION,
            "facts": dict(facts),
            "started": datetime.now(UTC).isoformat(timespec="microseconds"),
            "pid": self._pid,
            "sample_rate": config.sample_rate,
            "max_mib": config.max_mib,
            "max_seconds": config.max_seconds,
            "most_steps_lost_if_killed": config.queue_steps + FLUSH_STEPS,
            "flush_seconds": FLUSH_SECONDS,
        }

    def _sampled(self, keys: Sequence[str]) -> tuple[Sequence[str], list[int] | None]:
        if self._config.sample_rate >= 1:
            return keys, None
        # A request that was never announced is kept, for the writer to count.
        rows = [row for row, key in enumerate(keys) if self._numbers.get(key, -1) is not None]
        return [keys[row] for row in rows], rows

    def _send(self, event: Start | Proposals | Verdicts | Finish) -> None:
        assert self._outbox is not None
        self._outbox.add(event)

    def _off(self, reason: str) -> None:
        self._on = False
        self._numbers, self._details = {}, {}
        if self._outbox is not None:
            self._outbox.stop(reason)
            atexit.unregister(self.close)

    def _fail(self, error: Exception) -> None:
        logger.warning("capture: off (%s: %s)", type(error).__name__, error)
        self._off(f"{type(error).__name__}: {error}")


def _rows(values: Any, rows: list[int] | None) -> Any:
    return values if values is None or rows is None else np.asarray(values)[rows]
