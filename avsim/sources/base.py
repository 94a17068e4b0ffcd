"""A trace on disk, and reading it as draft blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

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
        return _join(list(self.chunks(features, num_slots)))

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
        held: list[Blocks] = []
        num_held = 0
        for chunk in self.chunks(features, num_slots):
            held.append(chunk)
            num_held += len(chunk)
            if num_held < min_rows:
                continue
            rest = _join(held)
            assert rest.step is not None
            start = 0
            while num_held - start >= max(min_rows, 1):
                end = int(np.searchsorted(rest.step, rest.step[start + max(min_rows, 1) - 1], side="right"))
                if end == num_held:
                    break  # the next chunk may go on with this step
                yield _slice(rest, start, end)
                start = end
            held = [_slice(rest, start, num_held)]
            num_held -= start
        if num_held:
            yield _join(held)

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


def _join(pieces: list[Blocks]) -> Blocks:
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    return Blocks(
        joined("request"),
        joined("position"),
        None if first.step is None else joined("step"),
        joined("num_drafted"),
        joined("num_admitted"),
        joined("num_accepted"),
        {name: np.concatenate([piece.features[name] for piece in pieces], axis=1) for name in first.features},
        None if first.unfit is None else joined("unfit"),
    )


def _slice(blocks: Blocks, start: int, end: int) -> Blocks:
    return Blocks(
        blocks.request[start:end],
        blocks.position[start:end],
        None if blocks.step is None else blocks.step[start:end],
        blocks.num_drafted[start:end],
        blocks.num_admitted[start:end],
        blocks.num_accepted[start:end],
        {name: np.ascontiguousarray(values[:, start:end]) for name, values in blocks.features.items()},
        None if blocks.unfit is None else blocks.unfit[start:end],
    )
