"""What a step of Model Runner V2 leaves on the device: feature tables that graphs write, and copies to the host.

Drafting runs inside CUDA graphs, where Python runs only while a graph is captured. So the features are computed with
static shapes by what becomes part of the graph, and go to a table with a row per persistent slot: by avsim's kernels,
which read the logits once, on a GPU with Triton, and by torch operations elsewhere.
After the step its tensors are gathered on the engine's stream and copied on another one into pinned memory; an event
tells when they have arrived, and nothing ever waits for it but `HostStep.wait`. On a CPU the same code runs without
streams, events and pinning. In an engine it has been run on a CPU only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.capture.reduce import reduce_logits
from avsim.types import F32Array

__all__ = ["CONFIDENCE", "DeviceTables", "HostStep", "has_kernels"]

CONFIDENCE = "confidence"
_SLACK = 1e-2  # a log-probability above this comes of logits that are not those the draft was drawn from


@dataclass(slots=True, eq=False)
class _Buffers:
    numbers: Any
    features: Any
    event: Any


@dataclass(slots=True, eq=False)
class HostStep:
    """A step's tensors on their way to the host: `numbers` int64 `[B, …]`, `features` float32 `[B, K, F]`."""

    buffers: _Buffers
    numbers: Any
    features: Any
    widths: tuple[int, ...]

    def ready(self) -> bool:
        """Whether the copy is complete."""
        return self.buffers.event is None or bool(self.buffers.event.query())

    def wait(self) -> None:
        """Wait for the copy; only for when the engine has ended."""
        if self.buffers.event is not None:
            self.buffers.event.synchronize()

    def columns(self) -> list[NDArray[np.int64]]:
        """Return the tensors that `DeviceTables.copy` was given, each `[B, width]`."""
        pieces = np.split(self.numbers.numpy(), np.cumsum(self.widths)[:-1], axis=1)
        return [piece.copy() for piece in pieces]

    def feature(self, at: int) -> F32Array:
        """Return one feature, `[B, K]`."""
        values: F32Array = self.features[:, :, at].numpy().copy()
        return values


def has_kernels(device: Any) -> bool:
    """Whether features are computed by `avsim.kernels` on a device, and not by torch operations."""
    return device.type == "cuda" and find_spec("triton") is not None


class DeviceTables:
    """The features of the newest drafts by slot, and spare buffers for copies.

    Args:
        max_num_reqs: slots of the engine.
        num_slots: K.
        names: of the features; none where the drafter has no logits.
        num_top: largest logits among them.
        device: of the engine.
        with_confidence: whether steps come with the engine's own confidences, a feature of their own.
    """

    def __init__(
        self,
        max_num_reqs: int,
        num_slots: int,
        names: Sequence[str],
        num_top: int,
        device: Any,
        *,
        with_confidence: bool = False,
    ) -> None:
        import torch

        self._reduced = list(names)
        self.names = [*names, *([CONFIDENCE] if with_confidence else [])]
        self.seen = False  # whether any logits have come by
        self._num_top = num_top
        self._shape = (max_num_reqs, num_slots, len(self.names))
        self._device = device
        # One row more than slots: row −1 takes what the padded rows of a graph write by torch.
        shape = (max_num_reqs + 1, num_slots, len(self._reduced))
        self.table = torch.full(shape, torch.nan, dtype=torch.float32, device=device)
        self._reducer: Any = None
        if self._reduced and has_kernels(device):
            from avsim.kernels.ops.reduce import Reducer

            self._reducer = Reducer(self._reduced, num_top, max_num_reqs * num_slots, device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._free = [self._make() for _ in range(3)]

    def write(self, logits: Any, slots: Any, steps: Any, temperature: Any) -> None:
        """Write the features of drafter logits `[rows, vocab]`; runs while a graph is captured, so shapes are static.

        Args:
            slots: `[rows]`, −1 for padding.
            steps: which of the K drafts a row is for: one for all rows, or `[rows]`.
            temperature: by slot.
        """
        if not self._reduced:
            return
        if self._reducer is None:
            self._write_by_torch(logits, slots, steps, temperature)
        else:
            self._reducer(self.table, logits, slots, steps, temperature)
        self.seen = True

    def copy(
        self, slots: Any, numbers: Sequence[Any], drawn: tuple[Any, Any, Any] | None, confidence: Any | None = None
    ) -> HostStep:
        """Start copying a step to the host: the features of its slots and whole numbers `[B, …]`.

        Args:
            slots: `[B]`, none of them negative.
            drawn: draft logits by slot `[slots, K, vocab]`, drawn ids `[B, K]` and temperature by slot, where drafts
                are sampled; then `draft_logprob` becomes that of the drawn token.
            confidence: `[B, K]`, the engine's own, if `with_confidence`.
        """
        import torch

        pieces = [tensor.reshape(len(slots), -1).long() for tensor in numbers]
        joined = torch.cat(pieces, dim=1)
        features = self.table[slots]
        if drawn is not None and self._reduced:
            self._put_drawn(features, slots, *drawn)
        if confidence is not None:
            features = torch.cat([features, confidence[:, :, None].float()], dim=2)
        buffers = self._free.pop() if self._free else self._make()
        host = buffers.numbers[: joined.numel()].view(joined.shape)
        host_features = buffers.features[: len(slots)]
        if self._stream is None:
            host.copy_(joined)
            host_features.copy_(features)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                host.copy_(joined, non_blocking=True)
                host_features.copy_(features, non_blocking=True)
                buffers.event.record(self._stream)
            for tensor in (joined, features):
                tensor.record_stream(self._stream)  # its memory must not be reused before the copy has been made
        return HostStep(buffers, host, host_features, tuple(piece.shape[1] for piece in pieces))

    def release(self, step: HostStep) -> None:
        """Take back the buffers of a step that has been read."""
        self._free.append(step.buffers)

    def now(self) -> Any:
        """Mark this moment of the engine's stream, or of the clock on a CPU."""
        if self._stream is None:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(self, start: Any, end: Any) -> float | None:
        """Return the milliseconds between two marks that both have passed."""
        if start is None or end is None:
            return None
        return float((end - start) * 1e3) if self._stream is None else float(start.elapsed_time(end))

    def _write_by_torch(self, logits: Any, slots: Any, steps: Any, temperature: Any) -> None:
        import torch

        rows = logits.shape[0]
        slots = slots[:rows].long()
        features = reduce_logits(logits, temperature[slots.clamp(min=0)], self._num_top)
        steps = steps.reshape(-1)[:rows].long().expand(rows)
        self.table[slots, steps] = torch.stack([features[name] for name in self._reduced], dim=1)

    def _put_drawn(self, features: Any, slots: Any, draft_logits: Any, ids: Any, temperature: Any) -> None:
        import torch

        columns = torch.arange(self._shape[1], device=slots.device)
        logits = draft_logits[slots[:, None], columns, ids.long().clamp(min=0)].float()
        scale = temperature[slots].float()
        logits = logits / torch.where(scale > 0, scale, torch.ones_like(scale))[:, None]
        drawn = logits - features[:, :, self.names.index("logsumexp")]
        known = torch.where(drawn > _SLACK, torch.full_like(drawn, torch.nan), drawn.clamp(max=0))
        features[:, :, self.names.index("draft_logprob")] = known

    def _make(self) -> _Buffers:
        import torch

        rows, num_slots, num_features = self._shape
        pinned = self._stream is not None
        return _Buffers(
            numbers=torch.empty(rows * (3 * num_slots + 3), dtype=torch.int64, pin_memory=pinned),
            features=torch.empty((rows, num_slots, num_features), dtype=torch.float32, pin_memory=pinned),
            event=torch.cuda.Event() if pinned else None,
        )
