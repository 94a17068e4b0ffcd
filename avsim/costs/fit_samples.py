"""What step costs are fitted to: timed engine steps of a trace or a CSV, or the samples of a start-up profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from avsim.errors import InputError
from avsim.sources import open_trace
from avsim.types import BoolArray, F64Array, IntArray

__all__ = ["Origin", "Samples", "Steps", "draft_samples", "join_steps", "read_trace", "verify_samples"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where timings come from: a file's or trace's name and content hash, and what its card says of the engine."""

    name: str
    content_hash: str
    num_rows: int
    model: str | None = None
    hardware: str | None = None
    num_speculative_tokens: int | None = None
    vocab_size: int | None = None
    drafter_kind: str | None = None
    synthetic: bool = False
    notes: str = ""


@dataclass(frozen=True, eq=False)
class Steps:
    """A table of engine steps in time order, `[n]`; what was not recorded is NaN (or an empty graph mode).

    Attributes:
        tokens: tokens of the target's forward pass, T + B.
        reqs, kv, prefill: requests, tokens in the KV cache, and prompt tokens among `tokens`.
        forward_ms, drafter_ms: times of the target's forward pass and of the drafter.
        graph: how the forward pass ran (`none`: outside any CUDA graph).
        series: which source a step is of; time runs within a source.
        row: the step's place in its source's table, which stands for time.
    """

    tokens: F64Array
    reqs: F64Array
    kv: F64Array
    prefill: F64Array
    forward_ms: F64Array
    drafter_ms: F64Array
    graph: NDArray[np.str_]
    series: IntArray
    row: IntArray

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Samples:
    """Timings of one kind, `[n]`: the target's by tokens (`verify`) or the drafter's by requests (`draft`).

    Attributes:
        size: tokens or requests.
        steps: the steps the samples are of; a profile has only sizes, in `tokens` or `reqs`.
        ordered: True for engine steps, where time order means something; False for a profile.
        medians: (size, ms) pairs that the source itself gives, else empty.
        left_out: rows not used, by reason.
    """

    label: str
    size: IntArray
    ms: F64Array
    steps: Steps
    ordered: bool
    medians: tuple[tuple[int, float], ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.size)

    @property
    def decode(self) -> BoolArray:
        """Samples without prompt tokens; unknown counts as none."""
        return ~(self.steps.prefill > 0)

    def take(self, rows: BoolArray | IntArray) -> Samples:
        """Return some of the samples."""
        return replace(self, size=self.size[rows], ms=self.ms[rows], steps=_take(self.steps, rows))


def read_trace(path: Path) -> tuple[Steps, Origin]:
    """Read the timed steps of a trace folder.

    Raises:
        InputError: no such trace, or one without a step table or without the columns that a fit needs.
    """
    trace = open_trace(path)
    table = trace.steps()
    if table is None:
        why = "a dense trace has no engine steps" if trace.card.kind == "dense" else "it has no steps.parquet"
        raise InputError(f"{path}: nothing to fit, {why}; take a trace that the capture plugin recorded, or a CSV")
    empty = [name for name in ("forward_ms", "num_target_tokens", "num_reqs") if table[name].null_count() == len(table)]
    if empty:
        raise InputError(
            f"{path}: nothing to fit, its steps do not say {', '.join(empty)} (derived and imported traces have no "
            f"timings); take a trace that the capture plugin recorded, or a CSV of step timings"
        )
    card = trace.card
    origin = Origin(
        f"trace {card.name}", card.content_hash, len(table), card.target, card.hardware, card.num_speculative_tokens,
        card.vocab_size, card.drafter_kind, card.synthetic, card.notes,
    )  # fmt: skip
    return to_steps(table), origin


def to_steps(table: pl.DataFrame) -> Steps:
    """Return the columns of a table that has all those of `avsim.sources.schema.STEPS` but `step`."""
    floats = {
        name: table[column].cast(pl.Float64).to_numpy().astype(np.float64)
        for name, column in (
            ("tokens", "num_target_tokens"), ("reqs", "num_reqs"), ("kv", "kv_tokens"),
            ("prefill", "num_prefill_tokens"), ("forward_ms", "forward_ms"), ("drafter_ms", "drafter_ms"),
        )
    }  # fmt: skip
    graph = np.asarray(table["graph_mode"].cast(pl.String).fill_null("").to_list(), dtype=np.str_)
    return Steps(**floats, graph=graph, series=np.zeros(len(table), np.int64), row=np.arange(len(table)))


def join_steps(tables: Sequence[Steps]) -> Steps:
    """Put the tables of several sources together; each keeps its own time."""
    numbered = [replace(table, series=np.full(len(table), index)) for index, table in enumerate(tables)]
    return Steps(**{name: np.concatenate([getattr(table, name) for table in numbered]) for name in _COLUMNS})


def profile_samples(
    label: str, size: IntArray, ms: F64Array, medians: Sequence[tuple[int, float]], row: IntArray
) -> Samples:
    """Return the samples of a start-up profile; `medians` are its own, if it gives them."""
    unknown = np.full(len(size), np.nan)
    sizes = size.astype(np.float64)
    verify = label == "verify"
    steps = Steps(
        tokens=sizes if verify else unknown, reqs=unknown if verify else sizes, kv=unknown, prefill=unknown,
        forward_ms=ms if verify else unknown, drafter_ms=unknown if verify else ms,
        graph=np.full(len(size), "", dtype=np.str_), series=np.zeros(len(size), np.int64), row=row,
    )  # fmt: skip
    return Samples(label, size, ms, steps, False, tuple(medians))


def verify_samples(steps: Steps, *, with_prefill: bool) -> Samples:
    """Return the target's timings by tokens; steps with prompt tokens are left out unless asked for."""
    timed = (steps.forward_ms > 0) & (steps.tokens >= 1)
    mixed = timed & (steps.prefill > 0)
    used = timed if with_prefill else timed & ~mixed
    left_out = {"without a forward time": int((~timed).sum())}
    if not with_prefill:
        left_out["with prompt tokens"] = int(mixed.sum())
    return _samples("verify", steps, used, steps.tokens, steps.forward_ms, left_out)


def draft_samples(steps: Steps) -> Samples:
    """Return the drafter's timings by requests; steps that drafted nothing or hold prompt tokens are left out."""
    drafted = (steps.drafter_ms > 0) & (steps.reqs >= 1)
    mixed = drafted & (steps.prefill > 0)
    left_out = {"without a drafter time": int((~drafted).sum()), "with prompt tokens": int(mixed.sum())}
    return _samples("draft", steps, drafted & ~mixed, steps.reqs, steps.drafter_ms, left_out)


def _samples(
    label: str, steps: Steps, used: BoolArray, size: F64Array, ms: F64Array, left_out: dict[str, int]
) -> Samples:
    counted = {reason: count for reason, count in left_out.items() if count}
    kept = _take(steps, used)
    return Samples(label, size[used].astype(np.int64), ms[used], kept, True, left_out=counted)


_COLUMNS = ("tokens", "reqs", "kv", "prefill", "forward_ms", "drafter_ms", "graph", "series", "row")


def _take(steps: Steps, rows: Any) -> Steps:
    return Steps(**{name: getattr(steps, name)[rows] for name in _COLUMNS})
