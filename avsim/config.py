"""What a replay run is: everything that decides its result, as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from avsim.errors import InputError

__all__ = ["ReplayConfig"]


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """The resolved arguments of `avsim replay`; two runs with equal configs on equal inputs give equal results.

    Attributes:
        trace: path of the trace folder.
        cost: preset name or file of the true cost model, the clock.
        belief: the same for the model that policies read; None for the truth.
        concurrency: loads of the closed loop; ignored by the open loop.
        policies: specs that get a verdict.
        baselines: specs to compare with; `fixed` alone stands for every depth from 1 to K.
        estimators: specs; each confidence-reading policy runs once with each.
        num_slots: truncate the trace's K; None keeps it.
        lag: age of the sizing confidences in records; 1 is vLLM.
        av_overhead_ms: AV's own cost per step, charged to confidence-reading policies; None if unknown.
        what_if: allow the step costs of another model than the trace's.
        vocab: the target's vocabulary, which limits the budget; None for that of the cost card or the trace.
        bootstrap: B, re-simulations on resampled source requests.
        warm_refits: refits that the estimator has seen before counting starts.
    """

    trace: str
    cost: str
    belief: str | None = None
    loop: Literal["closed", "open"] = "closed"
    concurrency: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    policies: tuple[str, ...] = ("adaptive",)
    baselines: tuple[str, ...] = ("none", "fixed", "oracle")
    estimators: tuple[str, ...] = ("online-logistic",)
    num_slots: int | None = None
    lag: int = 1
    av_overhead_ms: float | None = None
    what_if: bool = False
    vocab: int | None = None
    bootstrap: int = 60
    warm_refits: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loop not in ("closed", "open"):
            raise InputError(f"loop is {self.loop!r}; it must be 'closed' or 'open'")
        if not self.concurrency or any(load < 1 for load in self.concurrency):
            raise InputError(f"concurrency must be a list of numbers of at least 1, not {list(self.concurrency)}")
        if len(set(self.concurrency)) != len(self.concurrency):
            raise InputError(f"concurrency {list(self.concurrency)} names a load twice")
        if not self.policies:
            raise InputError("name at least one policy")
        if self.bootstrap < 20:
            raise InputError(f"bootstrap must be at least 20 for an interval, not {self.bootstrap}")
        if self.warm_refits < 0:
            raise InputError(f"warm_refits must be at least 0, not {self.warm_refits}")
        if self.num_slots is not None and self.num_slots < 1:
            raise InputError(f"k must be at least 1, not {self.num_slots}")
        if self.av_overhead_ms is not None and not 0 <= self.av_overhead_ms < float("inf"):
            raise InputError(f"av overhead must be finite and ≥ 0 ms, not {self.av_overhead_ms}")
        if self.lag < 0:
            raise InputError(f"lag must be at least 0, not {self.lag}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplayConfig:
        """Rebuild a config from `to_json`.

        Raises:
            InputError: an unknown or missing key, or a bad value.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(f"config: unknown key {unknown[0]!r}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise InputError(f"config: {error}") from None

    def to_toml(self) -> str:
        """Return the config as TOML; unset values are left out."""
        lines = []
        for key, value in self.to_json().items():
            if value is None:
                continue
            if isinstance(value, bool):
                text = str(value).lower()
            elif isinstance(value, list):
                text = "[" + ", ".join(_toml(item) for item in value) + "]"
            else:
                text = _toml(value)
            lines.append(f"{key} = {text}\n")
        return "".join(lines)


def _toml(value: str | int | float) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
