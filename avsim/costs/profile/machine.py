"""The machine under a profile: its name, its threads, and whether what is wanted fits into its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from avsim.capture.vllm_facts import hardware
from avsim.costs.profile.runner import require
from avsim.errors import InputError

__all__ = ["check_memory", "describe_machine", "free_bytes"]

_ROOM = 0.9
"""Share of the free memory that may be taken."""


def free_bytes(device: str) -> int | None:
    """Return the memory that can still be taken on a device, in bytes; None where that cannot be found out."""
    if device.startswith("cuda"):
        free, _ = require("torch").cuda.mem_get_info(device)
        return int(free)
    return _least([_meminfo(), _cgroup()])


def check_memory(parts: dict[str, int], device: str) -> None:
    """Refuse to allocate what does not fit.

    Args:
        parts: bytes by what they are for.

    Raises:
        InputError: the parts take more than 90 % of the free memory.
    """
    free, wanted = free_bytes(device), sum(parts.values())
    if free is None or wanted <= _ROOM * free:
        return
    named = ", ".join(f"{name} {size / 2**30:.3g}" for name, size in parts.items() if size)
    raise InputError(
        f"not enough memory on {device}: {wanted / 2**30:.3g} GiB wanted ({named}), {free / 2**30:.3g} GiB free, of "
        f"which {_ROOM:.0%} may be taken; use fewer layers, fewer or smaller sizes, less context, or another --dtype"
    )


def describe_machine(device: str) -> dict[str, str]:
    """Return hardware, threads and versions of a torch runner, for the provenance card."""
    torch = require("torch")
    name = hardware(torch.device(device))
    found = {"hardware": name, "torch": str(torch.__version__)}
    if device == "cpu":
        threads = torch.get_num_threads()
        found |= {"hardware": f"CPU {name}, {threads} threads used", "threads": str(threads)}
        for variable in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            found[variable] = os.environ.get(variable, "not set")
    else:
        found["cuda"] = str(torch.version.cuda)
    return found


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text(encoding="utf-8").strip()
        used = int((folder / "memory.current").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return None if most == "max" else max(int(most) - used, 0)
