"""What a replay run is: everything that decides its result, as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from avsim import arrivals
from avsim.errors import InputError

__all__ = ["DEFAULT_MAX_NUM_SEQS", "DEFAULT_TOKEN_BUDGET", "ReplayConfig"]

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_TOKEN_BUDGET = 8192
"""vLLM 0.33's max_num_batched_tokens of an API server on H100-class GPUs."""

_SERVING = ("arrivals", "num_requests", "max_num_seqs", "prompts", "max_num_batched_tokens")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """The resolved arguments of `avsim replay`; two runs with equal configs on equal inputs give equal results.

    Attributes:
        trace: path of the trace folder.
        cost: preset name or file of the true cost model, the clock.
        belief: the same for the model that policies read; None for the truth.
        concurrency: loads of the closed loop; ignored where requests arrive by themselves.
        arrivals: specs of arrival processes, one load each; none for a closed loop.
        num_requests: requests to serve at least, of each load with arrivals; None for a number that fits the load.
        max_num_seqs: requests that run at once at most; others wait. None: as many as there are in a closed loop, 256
            otherwise.
        prompts: `free` charges nothing for prompts, `scheduled` runs them beside decoding requests. None: free in a
            closed loop, scheduled otherwise.
        max_num_batched_tokens: tokens of a step at most, drafts as scheduled included. None: 8192 where prompts are
            scheduled, else no limit.
        chunked_prefill: whether a scheduled prompt may be split over steps.
        policies: specs that get a verdict.
        baselines: specs to compare with; `fixed` alone stands for every depth from 1 to K.
        estimators: specs; each confidence-reading policy runs once with each.
        num_slots: truncate the trace's K; None keeps it.
        lag: age of the sizing confidences in records; 1 is vLLM.
        av_overhead_ms, av_overhead_us_per_req: AV's own cost per step, and per request and step, charged to
            confidence-reading policies; None if unknown, both None if nothing is known.
        price_per_gpu_hour: what a GPU costs, for a cost per token; None to leave it out.
        gpus: GPUs of the engine; None for those of the cost card.
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
    arrivals: tuple[str, ...] = ()
    num_requests: int | None = None
    max_num_seqs: int | None = None
    prompts: Literal["free", "scheduled"] | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool = True
    policies: tuple[str, ...] = ("adaptive",)
    baselines: tuple[str, ...] = ("none", "fixed", "oracle")
    estimators: tuple[str, ...] = ("online-logistic",)
    num_slots: int | None = None
    lag: int = 1
    av_overhead_ms: float | None = None
    av_overhead_us_per_req: float | None = None
    price_per_gpu_hour: float | None = None
    gpus: int | None = None
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
        for name, unit in (("av_overhead_ms", "ms"), ("av_overhead_us_per_req", "µs per request")):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"av overhead must be finite and ≥ 0 {unit}, not {value}")
        for name in ("num_requests", "max_num_seqs", "max_num_batched_tokens", "gpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name.replace('_', '-')} must be at least 1, not {value}")
        if self.price_per_gpu_hour is not None and not 0 < self.price_per_gpu_hour < float("inf"):
            raise InputError(f"price must be finite and above 0 per GPU-hour, not {self.price_per_gpu_hour}")
        if self.prompts not in (None, "free", "scheduled"):
            raise InputError(f"prompts is {self.prompts!r}; it must be 'free' or 'scheduled'")
        self._check_serving()
        if self.lag < 0:
            raise InputError(f"lag must be at least 0, not {self.lag}")

    def _check_serving(self) -> None:
        processes = [arrivals.make(spec) for spec in self.arrivals]
        if len(set(processes)) != len(processes):
            raise InputError(f"arrivals {list(self.arrivals)} names a load twice")
        if self.num_requests is not None and not self.arrivals:
            raise InputError("num-requests is for loads with arrivals; a closed loop serves 8 per place, or the trace")
        if not self.chunked_prefill and self.prompt_mode != "scheduled":
            raise InputError("no-chunked-prefill is for scheduled prompts: pass --prompts scheduled as well")
        asked = [name for name in _SERVING if getattr(self, name) not in (None, (), True)]
        asked += [] if self.chunked_prefill else ["no_chunked_prefill"]
        if self.loop == "open" and asked:
            raise InputError(
                f"{asked[0].replace('_', '-')} is for the simulated engine; loop open keeps the batches that a trace "
                "recorded (replay a dense trace, without --loop open)"
            )

    @property
    def prompt_mode(self) -> Literal["free", "scheduled"]:
        """What becomes of prompts, resolved."""
        return self.prompts or ("scheduled" if self.arrivals else "free")

    @property
    def token_budget(self) -> int | None:
        """Tokens of a step at most, resolved; None for no limit."""
        return self.max_num_batched_tokens or (DEFAULT_TOKEN_BUDGET if self.prompt_mode == "scheduled" else None)

    @property
    def overhead_is_known(self) -> bool:
        """Whether anything was said about AV's own cost."""
        return self.av_overhead_ms is not None or self.av_overhead_us_per_req is not None

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
