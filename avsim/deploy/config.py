"""What to deploy and how, from the environment of the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["DeployConfig", "Mode"]

PREFIX = "AVSIM_DEPLOY"
Mode = Literal["on", "shadow", "off"]
_MODES = ("on", "shadow", "off")
_KNOWN = ("", "_MODE", "_ALLOCATE", "_REPORT", "_REPORT_SECONDS")


@dataclass(frozen=True, kw_only=True)
class DeployConfig:
    """How an engine takes a bundle.

    Attributes:
        bundle: the file.
        mode: `on`: avsim's estimator decides; `shadow`: vLLM's does, and avsim's predicts and learns beside it;
            `off`: nothing is changed.
        allocate: whose rule gives the budget to requests while avsim's estimator decides: `vllm`, or `avsim`, which
            ranks alike and settles ties the same way on every rank.
        report: JSON file to keep the counters in; None for none.
        report_seconds: how often it is written, at most.
    """

    bundle: Path
    mode: Mode = "shadow"
    allocate: Literal["vllm", "avsim"] = "vllm"
    report: Path | None = None
    report_seconds: float = 10.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> DeployConfig | None:
        """Read `AVSIM_DEPLOY`, `_MODE`, `_ALLOCATE`, `_REPORT` and `_REPORT_SECONDS`; None unless the first is set.

        Raises:
            InputError: a bad value, or an unknown variable that starts so; the message names it.

        >>> DeployConfig.from_env({}) is None
        True
        >>> DeployConfig.from_env({"AVSIM_DEPLOY": "bundle.json"}).mode
        'shadow'
        """
        bundle = environ.get(PREFIX, "").strip()
        if not bundle:
            return None
        names = [PREFIX + end for end in _KNOWN]
        for name in environ:
            if name.startswith(PREFIX) and name not in names:
                raise InputError(f"unknown variable {name}{suggest(name, names)}")
        mode = environ.get(f"{PREFIX}_MODE", "").strip().lower() or "shadow"
        if mode not in _MODES:
            raise InputError(f"{PREFIX}_MODE is {mode!r}; it must be on, shadow or off")
        allocate = environ.get(f"{PREFIX}_ALLOCATE", "").strip().lower() or "vllm"
        if allocate not in ("vllm", "avsim"):
            raise InputError(f"{PREFIX}_ALLOCATE is {allocate!r}; it must be vllm or avsim")
        report = environ.get(f"{PREFIX}_REPORT", "").strip()
        seconds = environ.get(f"{PREFIX}_REPORT_SECONDS", "").strip() or "10"
        try:
            every = float(seconds)
        except ValueError:
            every = math.nan
        if not 0 < every < math.inf:
            raise InputError(f"{PREFIX}_REPORT_SECONDS is {seconds!r}; it must be a number of seconds above 0")
        return cls(
            bundle=Path(bundle),
            mode=cast(Mode, mode),
            allocate=cast(Literal["vllm", "avsim"], allocate),
            report=Path(report) if report else None,
            report_seconds=every,
        )
