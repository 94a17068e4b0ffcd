"""A trace on disk, and reading it as draft blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from avsim.errors import InputError
from avsim.registry import suggest
from avsim.sources.card import TraceCard
from avsim.sources.checks import RowChecker, check_feature, check_requests, check_steps
from avsim.sources.parquet import Part, frames, parts, read_table, reading
from avsim.sources.schema import (
    BLOCKS,
    MASK,
    REQUESTS,
    REQUIRED_OF_REQUESTS,
    STEPS,
    check_table,
    features_of,
    slot_column,
)
from avsim.types import Blocks, F32Array, IntArray

__all__ = ["Trace", "TraceCard", "open_trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace folder, opened: the card and the request table are in memory, the blocks are read on demand.

    Attributes:
        path: the folder.
        card: what was recorded, and how.
        requests: `request` (id), `source` (requests of one source have the same content: one unit when resampling),
            `prompt_len`, `output_len`, `temperature`, `top_p`, `category`, `arrival_s`; the last three may be null.
        features: names of the recorded per-slot features.
    """

    path: Path
    card: TraceCard
    requests: pl.DataFrame = field(repr=False)
    features: tuple[str, ...]
    parts: tuple[Part, ...] = field(repr=False)
    has_mask: bool = field(repr=False)

    @property
    def num_blocks(self) -> int:
        """Draft blocks in the trace."""
        return sum(part.num_rows for part in self.parts)

    def blocks(self, features: Sequence[str] = (), *, num_slots: int | None = None) -> Blocks:
        """Read the whole trace into memory.

        Args:
            features: names of per-slot columns to read.
            num_slots: read only the first so many slots of each block; drafted, admitted and accepted are cut too.

        Returns:
            blocks sorted by (request row, position) if dense, by (step, request row) if on-policy; `request` is the
            row of the request table.

        Raises:
            InputError: a feature that was not recorded, more slots than recorded, or bad data.
        """
        return _join(self.chunks(features, num_slots), self.num_blocks)

    def iter_blocks(
        self, features: Sequence[str] = (), *, num_slots: int | None = None, min_rows: int = 1 << 19
    ) -> Iterator[Blocks]:
        """Stream an on-policy trace in pieces of at least `min_rows` blocks that hold whole steps.

        Memory does not grow with the trace. The last piece may be smaller. Arguments and errors as `blocks`.

        Raises:
            InputError: the trace is dense, so it has no steps.
        """
        if self.card.kind == "dense":
            raise InputError(f"{self.path}: a dense trace has no steps to stream; read it with blocks()")
        wanted = max(min_rows, 1)
        held: list[Blocks] = []
        num_held = 0
        for chunk in self.chunks(features, num_slots):
            assert chunk.step is not None
            start = 0
            if num_held >= wanted and held[-1].step is not None and held[-1].step[-1] < chunk.step[0]:
                yield _join(held, num_held)
                held, num_held = [], 0
            while num_held + len(chunk) - start >= wanted:
                last = chunk.step[max(start + wanted - num_held, 1) - 1]
                end = int(np.searchsorted(chunk.step, last, side="right"))
                if end == len(chunk):
                    break  # the next chunk may go on with this step
                held.append(_slice(chunk, start, end))
                yield _join(held, num_held + end - start)
                held, num_held, start = [], 0, end
            held.append(_slice(chunk, start, len(chunk)))
            num_held += len(chunk) - start
        yield _join(held, num_held)

    def steps(self) -> pl.DataFrame | None:
        """Read the step table, or None if the trace has none.

        Raises:
            InputError: it has missing or unknown columns, or bad values.
        """
        path = self.path / "steps.parquet"
        if not path.exists():
            return None
        table = read_table(path)
        check_table(table.schema, STEPS, ("step",), str(path))
        table = _cast(table, STEPS, path)
        check_steps(table, str(path))
        return table

    def chunks(self, features: Sequence[str], num_slots: int | None = None) -> Iterator[Blocks]:
        """Stream the checked blocks of any trace in pieces of no particular size."""
        for name in features:
            if name not in self.features:
                known = suggest(name, self.features) if self.features else "; it recorded none"
                raise InputError(f"{self.path}: the trace did not record {name!r}{known}")
        if num_slots is not None and not 1 <= num_slots <= self.card.num_speculative_tokens:
            raise InputError(
                f"{self.path}: {num_slots} slots asked for, but the trace recorded K = "
                f"{self.card.num_speculative_tokens}; what was not recorded cannot be replayed"
            )
        checker = RowChecker(self.card, self.requests["output_len"].to_numpy(), self.requests["request"].to_numpy())
        width = num_slots or self.card.num_speculative_tokens
        columns = [name for name in BLOCKS if name != "step" or self.card.kind == "on-policy"]
        columns += [MASK] if self.has_mask else []
        columns += [slot_column(name, slot) for name in features for slot in range(width)]
        for part in self.parts:
            start = 0
            for frame in frames(part, columns):
                yield _to_blocks(frame, features, width, checker, part.path, start)
                start += frame.height
        checker.finish(str(self.path))


def open_trace(path: str | Path) -> Trace:
    """Open a trace folder: read its card and request table, and check its columns and sizes.

    Row values are checked when they are read; `validate_trace` checks them all, and the content hash.

    Raises:
        InputError: it is not a trace, or its card, columns or sizes are wrong.
    """
    folder = Path(path)
    card_path = folder / "trace.json"
    if not folder.is_dir():
        raise InputError(f"no trace folder {str(folder)!r}; a trace is a folder with trace.json and Parquet files")
    if not card_path.is_file():
        raise InputError(f"{folder}: not a trace, it has no trace.json")
    with reading(card_path):
        text = card_path.read_text(encoding="utf-8")
    card = TraceCard.from_text(text, str(card_path))
    trace = load(folder, card)
    for what, found, stated in (
        ("requests", len(trace.requests), card.num_requests),
        ("blocks", trace.num_blocks, card.num_blocks),
    ):
        if found != stated:
            raise InputError(
                f"{folder}: {found} {what}, but trace.json says {stated}; files are missing or were changed"
            )
    return trace


def load(folder: Path, card: TraceCard) -> Trace:
    """Open the tables of a trace whose card is already known; checks columns, not counts."""
    path = folder / "requests.parquet"
    requests = read_table(path)
    check_table(requests.schema, REQUESTS, REQUIRED_OF_REQUESTS, str(path))
    requests = _cast(requests, REQUESTS, path)
    check_requests(requests, str(path))
    found, schema = parts(folder)
    where = str(found[0].path)
    features = features_of(schema, card.num_speculative_tokens, where)
    if ("step" in schema) != (card.kind == "on-policy"):
        rule = "an on-policy trace needs one" if card.kind == "on-policy" else "a dense trace has none"
        raise InputError(f"{where}: column 'step' is {'there' if 'step' in schema else 'missing'}, but {rule}")
    if card.recorded and set(card.recorded) != set(features):
        raise InputError(
            f"{where}: it holds the features {', '.join(features) or '(none)'}, but trace.json says "
            f"{', '.join(card.recorded)}"
        )
    if not sum(part.num_rows for part in found):
        raise InputError(f"{folder}: the trace has no blocks")
    return Trace(folder, card, requests, features, found, MASK in schema)


def _cast(table: pl.DataFrame, schema: Any, path: Path) -> pl.DataFrame:
    columns = [
        (pl.col(name) if name in table.columns else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in schema.items()
    ]
    with reading(path):
        return table.select(columns)


def _to_blocks(
    frame: pl.DataFrame, features: Sequence[str], num_slots: int, checker: RowChecker, path: Path, start: int
) -> Blocks:
    def locate(row: int) -> str:
        return f"{path} row {start + row}"

    def integers(name: str) -> IntArray:
        column = frame[name]
        if column.null_count():
            row = int(column.is_null().arg_max() or 0)
            raise InputError(f"{locate(row)}, column {name}: null; every block needs a value")
        with reading(path):
            return column.cast(pl.Int64).to_numpy()

    rows = checker.request_rows(integers("request"), locate)
    position = integers("position")
    step = integers("step") if "step" in frame.columns else None
    drafted, admitted, accepted = (integers(name) for name in ("num_drafted", "num_admitted", "num_accepted"))
    checker.counts(drafted, admitted, accepted, locate)
    checker.order(rows, position, step, locate)
    arrays: dict[str, F32Array] = {}
    for name in features:
        values = arrays[name] = np.empty((num_slots, frame.height), dtype=np.float32)
        for slot in range(num_slots):
            values[slot] = frame[slot_column(name, slot)].cast(pl.Float32).to_numpy()
            check_feature(values[slot], drafted, name, slot, locate)
    if num_slots < checker.card.num_speculative_tokens:
        drafted, admitted, accepted = (np.minimum(count, num_slots) for count in (drafted, admitted, accepted))
    unfit = frame[MASK].is_not_null().to_numpy() if MASK in frame.columns else None
    return Blocks(rows, position, step, drafted, admitted, accepted, arrays, unfit)


def _join(pieces: Iterable[Blocks], num_rows: int) -> Blocks:
    """Put pieces together, copying each as it comes, so that they need not all be in memory at once."""
    whole: Blocks | None = None
    start = 0
    for piece in pieces:
        if len(piece) == num_rows:
            whole = piece  # nothing to copy; still let the source run to its end, where it makes its last checks
            continue
        if whole is None:
            whole = _map(lambda array: np.empty((*array.shape[:-1], num_rows), dtype=array.dtype), piece)
        for target, source in zip(_arrays(whole), _arrays(piece), strict=True):
            target[..., start : start + len(piece)] = source
        start += len(piece)
    assert whole is not None
    return whole


def _slice(blocks: Blocks, start: int, end: int) -> Blocks:
    return _map(lambda array: array[..., start:end], blocks)


def _arrays(blocks: Blocks) -> list[NDArray[Any]]:
    plain = (blocks.request, blocks.position, blocks.step, blocks.unfit)
    counts = (blocks.num_drafted, blocks.num_admitted, blocks.num_accepted)
    return [array for array in (*plain, *counts, *blocks.features.values()) if array is not None]


def _map(function: Callable[[Any], Any], blocks: Blocks) -> Blocks:
    return Blocks(
        function(blocks.request),
        function(blocks.position),
        None if blocks.step is None else function(blocks.step),
        function(blocks.num_drafted),
        function(blocks.num_admitted),
        function(blocks.num_accepted),
        {name: function(values) for name, values in blocks.features.items()},
        None if blocks.unfit is None else function(blocks.unfit),
    )
