"""The card of a trace: what was recorded, where, with what, and what may be done with it."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from avsim.errors import InputError
from avsim.registry import suggest
from avsim.sources.schema import FEATURES, SCHEMA_VERSION

__all__ = ["TraceCard"]

MAX_SPECULATIVE_TOKENS = 255


@dataclass(frozen=True, kw_only=True)
class TraceCard:
    """Where a trace comes from; saved as `trace.json`.

    Attributes:
        name: letters, digits, `.`, `_` and `-`; a synthetic trace's name starts with `synthetic-`.
        kind: `dense` (a block at every output position) or `on-policy` (only the blocks an engine ran).
        num_speculative_tokens: K, slots per block.
        temperature: of all requests; None if they differ or it is unknown.
        adaptive_verification: whether the recorded engine trimmed drafts, so that labels are censored.
        recorded: names of the per-slot features; `write_trace` fills it in.
        vocab_size: of the target.
        derived_from: the trace that this one was computed from.
        complete_blocks: False where slots past the end of an output are absent; an engine would draft and verify
            them.
        past_end_blocks: True where a block may also start at the last output token, from where no request goes on.
        content_hash, num_requests, num_blocks: of the tables; `write_trace` fills them in.

    Raises:
        InputError: a field is of the wrong type or outside its allowed values.
    """

    name: str
    kind: Literal["dense", "on-policy"]
    target: str
    drafter: str
    drafter_kind: Literal["eagle", "mtp", "dflash", "dspark", "draft-model", "ngram", "medusa", "unknown", "synthetic"]
    num_speculative_tokens: int
    draft_sampling: Literal["greedy", "probabilistic"]
    acceptance_rule: Literal["standard", "block", "greedy-match"]
    temperature: float | None
    schema_version: int = SCHEMA_VERSION
    engine: str = "unknown"
    engine_version: str | None = None
    hardware: str = "unknown"
    adaptive_verification: bool = False
    recorded: tuple[str, ...] = ()
    vocab_size: int | None = None
    prompts: str = "unknown"
    licence: str = "unknown"
    seed: int | None = None
    date: str | None = None
    synthetic: bool = False
    derived_from: str | None = None
    complete_blocks: bool = False
    past_end_blocks: bool = False
    notes: str = ""
    content_hash: str = ""
    num_requests: int = 0
    num_blocks: int = 0

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        if self.schema_version != SCHEMA_VERSION:
            newer = "; update avsim to read it" if self.schema_version > SCHEMA_VERSION else ""
            raise InputError(f"schema_version is {self.schema_version}, but this avsim reads {SCHEMA_VERSION}{newer}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise InputError(f"name is {self.name!r}; use letters, digits, '.', '_' and '-'")
        if self.synthetic and not self.name.startswith("synthetic-"):
            raise InputError(f"name is {self.name!r}; the name of a synthetic trace starts with 'synthetic-'")
        if not 1 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise InputError(
                f"num_speculative_tokens is {self.num_speculative_tokens}; it must be 1 to {MAX_SPECULATIVE_TOKENS}"
            )
        for name in self.recorded:
            if name not in FEATURES:
                raise InputError(f"recorded has the unknown feature {name!r}{suggest(name, FEATURES)}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict, `schema_version` first."""
        data = asdict(self) | {"recorded": list(self.recorded)}
        return {"schema_version": data.pop("schema_version")} | data

    @classmethod
    def from_json(cls, data: Any) -> TraceCard:
        """Rebuild a card from `to_json`; keys that this version does not know are ignored.

        Raises:
            InputError: a key is missing, or a value is wrong; a newer schema version is refused.
        """
        if not isinstance(data, Mapping):
            raise InputError("a trace card is a JSON object")
        version = data.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise InputError(
                f"schema_version is {version}, but this avsim reads up to {SCHEMA_VERSION}; update avsim to read it"
            )
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        missing = [name for name in ("schema_version", *_required(cls)) if name not in known]
        if missing:
            raise InputError(f"the key {missing[0]!r} is missing; see docs/trace-format.md")
        if isinstance(known.get("recorded"), list):
            known["recorded"] = tuple(known["recorded"])
        return cls(**known)

    @classmethod
    def from_text(cls, text: str, where: str) -> TraceCard:
        """Parse a card's JSON text; `where` names the file in errors."""
        try:
            return cls.from_json(json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not valid JSON (line {error.lineno}: {error.msg})") from None
        except RecursionError:
            raise InputError(f"{where}: not valid JSON (nested too deeply)") from None
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def _required(cls: type[TraceCard]) -> list[str]:
    return [field.name for field in fields(cls) if field.default is field.default_factory]  # both are MISSING


def _check_type(name: str, value: Any, hint: Any) -> None:
    allowed = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
    for one in allowed:
        if typing.get_origin(one) is Literal:
            if isinstance(value, str) and value in typing.get_args(one):
                return
            raise InputError(f"{name} is {value!r}{suggest(str(value), typing.get_args(one))}")
        if typing.get_origin(one) is tuple:
            if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
                return
        elif isinstance(value, bool):
            if one is bool:
                return
        elif isinstance(value, (int, float) if one is float else one):
            return
    raise InputError(f"{name} is {value!r}; it must be {getattr(hint, '__name__', hint)}")
