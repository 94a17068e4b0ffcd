"""What to record and how much of it, from the environment of the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from avsim.errors import InputError

__all__ = ["CaptureConfig"]

PREFIX = "AVSIM_TRACE_"
_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, kw_only=True)
class CaptureConfig:
    """How a running engine is recorded.

    Attributes:
        directory: where each engine process makes a `capture-…` folder of its own.
        max_mib: recording stops before a process has written more than this; None for no limit.
        max_seconds: recording stops after this; None for no limit.
        rotate_mib: a log file is closed and the next one begun at about this size.
        sample_rate: share of the requests, 0 < rate ≤ 1; a request is recorded whole or not at all.
        record_token_ids: keep drafted token ids in the log; they are user content.
        record_request_ids: keep the engine's request ids; otherwise they are hashed with a salt that is never stored.
        queue_steps: steps that may wait for the writer; more are dropped whole, and counted.
        top_m: largest drafter logits to record per slot, 0 … 16.

    Raises:
        InputError: a value outside its range.
    """

    directory: Path
    max_mib: int | None = None
    max_seconds: float | None = None
    rotate_mib: int = 64
    sample_rate: float = 1.0
    record_token_ids: bool = False
    record_request_ids: bool = False
    queue_steps: int = 256
    top_m: int = 0

    def __post_init__(self) -> None:
        for name in _RANGES:
            _check_range(name, getattr(self, name), name)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> CaptureConfig | None:
        """Read `AVSIM_TRACE_DIR` and its companions; None, so no capture, unless that one is set.

        The others are `AVSIM_TRACE_` and MAX_MIB, MAX_SECONDS, ROTATE_MIB, SAMPLE_RATE, TOKEN_IDS, REQUEST_IDS,
        QUEUE_STEPS, TOP_M. An empty value means the default.

        Raises:
            InputError: a bad value; the message names the variable.

        >>> CaptureConfig.from_env({}) is None
        True
        >>> CaptureConfig.from_env({"AVSIM_TRACE_DIR": "/tmp/t", "AVSIM_TRACE_MAX_MIB": "512"}).max_mib
        512
        """
        directory = environ.get(f"{PREFIX}DIR", "").strip()
        if not directory:
            return None
        values: dict[str, Any] = {"directory": Path(directory)}
        for field in fields(cls):
            variable = PREFIX + field.name.removeprefix("record_").upper()
            text = environ.get(variable, "").strip()
            if field.name != "directory" and text:
                values[field.name] = _parse(field.name, text, variable)
        return cls(**values)


_RANGES: Mapping[str, tuple[type, float, float]] = {
    "max_mib": (int, 1, math.inf),
    "max_seconds": (float, 0, math.inf),
    "rotate_mib": (int, 1, math.inf),
    "sample_rate": (float, 0, 1),
    "queue_steps": (int, 1, 1 << 20),
    "top_m": (int, 0, 16),
}


def _parse(name: str, text: str, variable: str) -> int | float | bool:
    if name not in _RANGES:
        if text.lower() not in _SWITCHES:
            raise InputError(f"{variable} is {text!r}; write 1 or 0")
        return _SWITCHES[text.lower()]
    kind = _RANGES[name][0]
    try:
        value: int | float = kind(text)
    except ValueError:
        raise InputError(f"{variable} is {text!r}; it must be a {'whole ' if kind is int else ''}number") from None
    _check_range(name, value, variable)
    return value


def _check_range(name: str, value: int | float | None, label: str) -> None:
    if value is None:
        return
    kind, low, high = _RANGES[name]
    # A share or a time limit of 0 would record nothing, which is a mistake rather than a wish.
    inside = low < value <= high if kind is float else low <= value <= high
    if not inside or math.isinf(value):
        start = f"more than {low:g}" if kind is float else f"at least {low:g}"
        end = f" and at most {high:g}" if math.isfinite(high) else ""
        raise InputError(f"{label} is {value:g}; it must be {start}{end}")
