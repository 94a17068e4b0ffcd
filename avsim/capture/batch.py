"""Steps that wait to be written together, and the record that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.capture.events import Finish, Rows, Start
from avsim.capture.log import encode
from avsim.types import F32Array

__all__ = ["FIGURES", "Batch", "Figures"]

FIGURES = ("num_reqs", "num_target_tokens", "num_prefill_tokens", "kv_tokens")
"""The whole-number columns of a step; −1 stands for an unknown one."""


@dataclass(slots=True)
class Figures:
    """What is known of a step as a whole; times in milliseconds."""

    num_reqs: int
    num_target_tokens: int
    num_prefill_tokens: int
    kv_tokens: int | None
    forward_ms: float | None
    drafter_ms: float | None
    graph_mode: str | None


@dataclass(slots=True)
class Batch:
    """Steps, blocks, and beginnings and ends of requests since the last record; `num_bytes` is of the features."""

    rows: list[tuple[int, Rows]] = field(default_factory=list)
    figures: list[tuple[int, Figures]] = field(default_factory=list)
    starts: list[list[Any]] = field(default_factory=list)
    finishes: list[list[Any]] = field(default_factory=list)
    num_bytes: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the batch."""
        return sum(len(rows) for _, rows in self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows or self.figures or self.starts or self.finishes)

    def add(self, step: int, events: list[Any], done: list[Rows], figures: Figures | None) -> None:
        """Add a step: what was reported of it, and the blocks that it completed."""
        for event in events:
            if isinstance(event, Start):
                self.starts.append([event.number, *event.details])
            elif isinstance(event, Finish):
                self.finishes.append([event.number, event.output_len, event.aborted])
        self.rows += [(step, rows) for rows in done]
        self.num_bytes += sum(rows.features.nbytes for rows in done)
        if figures is not None:
            self.figures.append((step, figures))

    def encode(self, names: tuple[str, ...], counters: Mapping[str, Any], *, with_ids: bool) -> bytes:
        """Return the record: blocks as `[n]` arrays and `features` float32 `[F, n, K]`, steps as `[s]` arrays."""
        masks, graphs = _Codes(), _Codes()
        arrays: dict[str, NDArray[Any]] = {"steps.step": np.array([step for step, _ in self.figures], dtype=np.int64)}
        for name in FIGURES:
            values = [getattr(figures, name) for _, figures in self.figures]
            arrays[f"steps.{name}"] = np.array([-1 if value is None else value for value in values], dtype=np.int64)
        for name in ("forward_ms", "drafter_ms"):
            values = [getattr(figures, name) for _, figures in self.figures]
            arrays[f"steps.{name}"] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        arrays["steps.graph_mode"] = graphs.encode([figures.graph_mode for _, figures in self.figures])
        if self.rows:
            pieces = [rows for _, rows in self.rows]
            arrays["step"] = np.repeat([step for step, _ in self.rows], [len(rows) for rows in pieces])
            for name, dtype in (("request", "i8"), ("position", "i4")):
                arrays[name] = np.concatenate([getattr(rows, name) for rows in pieces]).astype(f"<{dtype}")
            for name in ("num_drafted", "num_admitted", "num_accepted"):
                arrays[name] = np.concatenate([getattr(rows, name) for rows in pieces]).astype("<i2")
            arrays["mask"] = masks.encode([reason for rows in pieces for reason in rows.mask])
            arrays["features"] = np.concatenate([_widen(rows.features, len(names)) for rows in pieces], axis=1)
            if with_ids:
                arrays["draft_ids"] = np.concatenate([_known_ids(rows) for rows in pieces]).astype("<i4")
        meta = {
            "features": list(names),
            "masks": masks.texts,
            "graph_modes": graphs.texts,
            "starts": self.starts,
            "finishes": self.finishes,
            "counters": counters,
        }
        return encode(meta, arrays, len(self.figures))


def _widen(features: F32Array, num_features: int) -> F32Array:
    """Blocks from before the first drafted slot have no features yet: nothing was drafted in them."""
    if len(features) == num_features:
        return features
    return np.full((num_features, *features.shape[1:]), np.nan, dtype=np.float32)


def _known_ids(rows: Rows) -> NDArray[np.int64]:
    if rows.draft_ids is not None:
        return rows.draft_ids
    return np.full((len(rows), rows.features.shape[2]), -1, dtype=np.int64)


class _Codes:
    """Texts as small numbers: −1 for None."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def encode(self, values: list[str | None]) -> NDArray[np.int16]:
        codes = [-1 if value is None else self._code(str(value)) for value in values]
        return np.array(codes, dtype=np.int16)

    def _code(self, text: str) -> int:
        if text not in self._codes:
            self._codes[text] = len(self.texts)
            self.texts.append(text)
        return self._codes[text]
