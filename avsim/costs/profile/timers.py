"""Timing one step: with the processor's clock, or between two CUDA events, captured in a graph up to a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from avsim.costs.profile.runner import Step, require
from avsim.errors import InputError

__all__ = ["CpuTimer", "CudaTimer", "Timer", "cuda_event_ms", "graphed", "timer_for"]


class Timer(Protocol):
    """Times steps; `capture_limit` is the largest size that runs in a graph, 0 where none does."""

    capture_limit: int

    def ready(self, step: Step, size: int) -> tuple[Step, str]:
        """Return what is to be timed for a step of some size, and its graph mode in a step table's words."""
        ...

    def ms(self, step: Step) -> float:
        """Run a step once and return its time."""
        ...

    def describe(self) -> dict[str, str]:
        """Say how time is taken, for the provenance card."""
        ...


class CpuTimer:
    """Wall time of a call, Python included."""

    capture_limit = 0

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock

    def ready(self, step: Step, size: int) -> tuple[Step, str]:
        return step, "none"

    def ms(self, step: Step) -> float:
        start = self.clock()
        step()
        return 1e3 * (self.clock() - start)

    def describe(self) -> dict[str, str]:
        return {"timer": "wall clock around each call, Python overhead included"}


class CudaTimer:
    """Time between two CUDA events; steps up to the capture limit are replayed from a CUDA graph.

    Past the limit a step is launched by PyTorch, so that its time holds the gaps between kernels where launching is
    slower than running, and the Python that launches it. All graphs share one memory pool, as none of their outputs
    are read.

    Attributes:
        flush_l2: overwrite twice the L2 cache before each timing.
        failed: sizes whose capture failed, with the reason; they ran without a graph.
    """

    def __init__(self, capture_limit: int, *, flush_l2: bool = False, device: str = "cuda"):
        torch = require("torch")
        if not torch.cuda.is_available():
            raise InputError("--device cuda: torch finds no CUDA device here; run it where there is one, or on cpu")
        self.capture_limit, self.flush_l2, self.failed = capture_limit, flush_l2, dict[int, str]()
        self._pool = torch.cuda.graph_pool_handle()
        l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=device) if flush_l2 else None

    def ready(self, step: Step, size: int) -> tuple[Step, str]:
        if size > self.capture_limit:
            return step, "none"
        try:
            return graphed(step, self._pool), "full"
        except RuntimeError as error:
            self.failed[size] = str(error).splitlines()[0]
            with suppress(RuntimeError):
                require("torch").cuda.synchronize()
            return step, "none"

    def ms(self, step: Step) -> float:
        if self._flush is not None:
            self._flush.zero_()
        return cuda_event_ms(step)

    def describe(self) -> dict[str, str]:
        how = f"replayed from a CUDA graph up to {self.capture_limit}, launched by PyTorch beyond" if (
            self.capture_limit
        ) else "launched by PyTorch, no CUDA graphs"  # fmt: skip
        flushed = (
            "overwritten before each timing" if self.flush_l2 else "not flushed: as the untimed call before left it"
        )
        found = {"timer": f"CUDA events; steps {how}", "l2_cache": flushed}
        if self.failed:
            failed = "; ".join(f"{size}: {reason}" for size, reason in sorted(self.failed.items()))
            found["capture_failed"] = f"these sizes ran without a graph ({failed})"
        return found


def graphed(step: Step, pool: Any = None) -> Step:
    """Record a step in a CUDA graph and return its replay; `pool` is memory shared with other graphs."""
    torch = require("torch")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    replay: Step = graph.replay
    return replay


def cuda_event_ms(step: Step) -> float:
    """Return the time of a step between two CUDA events."""
    torch = require("torch")
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    step()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def timer_for(device: str, capture_limit: int = 0, *, flush_l2: bool = False) -> CpuTimer | CudaTimer:
    """Return the timer of a device.

    Raises:
        InputError: no such device here, or an option that it has no use for.
    """
    if device.startswith("cuda"):
        return CudaTimer(capture_limit, flush_l2=flush_l2, device=device)
    if device != "cpu":
        raise InputError(f"--device is {device!r}; it is cpu or cuda")
    if flush_l2:
        raise InputError("--flush-l2 is for --device cuda; a CPU's caches cannot be flushed from here")
    return CpuTimer()
