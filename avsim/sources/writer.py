"""Writing a trace, all or nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from avsim.errors import InputError
from avsim.sources.base import Trace, load, open_trace
from avsim.sources.card import TraceCard
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
from avsim.sources.validate import check_blocks, content_hash

__all__ = ["write_trace"]

PART_ROWS = 1 << 20
ROW_GROUP_ROWS = 1 << 17


def write_trace(
    path: str | Path,
    card: TraceCard,
    requests: pl.DataFrame,
    frames: Iterable[pl.DataFrame],
    steps: pl.DataFrame | None = None,
    overwrite: bool = False,
) -> Trace:
    """Write a trace folder; it appears whole, or not at all.

    The files are written to a hidden folder beside `path`, read back through every check, flushed to disk, and
    moved into place. The counts, the recorded features and the content hash of the card are filled in.

    Args:
        path: the folder to make.
        card: its card.
        requests: the request table; `top_p`, `category` and `arrival_s` may be left out.
        frames: the blocks in pieces, each with whole requests (dense) or whole steps (on-policy), in order; rows
            within a piece may come in any order. Values in slots that were not drafted are dropped.
        steps: the step table.
        overwrite: replace a trace that is already there.

    Raises:
        InputError: something other than a trace is in the way, a trace is and `overwrite` is off, or bad data.
    """
    path = Path(path)
    _check_free(path, overwrite)
    check_table(requests.schema, REQUESTS, REQUIRED_OF_REQUESTS, "requests")
    temporary = _sibling(path)
    try:
        temporary.mkdir(parents=True)
        _write_tables(temporary, card, requests, frames, steps)
        trace = load(temporary, dataclasses.replace(card, recorded=()))
        check_blocks(trace)
        card = dataclasses.replace(
            card,
            recorded=trace.features,
            num_requests=len(trace.requests),
            num_blocks=trace.num_blocks,
            content_hash=content_hash(trace),
        )
        text = json.dumps(card.to_json(), indent=2, ensure_ascii=False) + "\n"
        (temporary / "trace.json").write_text(text, encoding="utf-8")
        _finish(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from None
    except InputError as error:
        raise InputError(str(error).replace(str(temporary), str(path))) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_trace(path)


def _sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _check_free(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not (path / "trace.json").is_file():
        raise InputError(f"{path}: exists and is not a trace; choose another path")
    if not overwrite:
        raise InputError(f"{path}: the trace exists; choose another path or ask to overwrite it")


def _write_tables(
    folder: Path, card: TraceCard, requests: pl.DataFrame, frames: Iterable[pl.DataFrame], steps: pl.DataFrame | None
) -> None:
    known = [name for name in REQUESTS if name in requests.columns]
    requests = requests.select(pl.col(name).cast(REQUESTS[name]) for name in known)
    requests.write_parquet(folder / "requests.parquet", compression="zstd")
    if steps is not None:
        check_table(steps.schema, STEPS, ("step",), "steps")
        steps.write_parquet(folder / "steps.parquet", compression="zstd")
    rank = requests.select("request", pl.int_range(pl.len()).alias("_rank"))
    number = 0
    for frame in _regroup(_prepared(frames, card, rank)):
        frame.write_parquet(folder / f"blocks-{number:05d}.parquet", compression="zstd", row_group_size=ROW_GROUP_ROWS)
        number += 1
    if not number:
        raise InputError(f"{card.name}: no blocks to write; a trace needs at least one")


def _prepared(frames: Iterable[pl.DataFrame], card: TraceCard, rank: pl.DataFrame) -> Iterator[pl.DataFrame]:
    nan = pl.lit(float("nan"), dtype=pl.Float32)
    columns: list[str] | None = None
    for frame in frames:
        features = features_of(frame.schema, card.num_speculative_tokens, "blocks")
        own = sorted(frame.columns)
        if columns is not None and own != columns:
            raise InputError(f"blocks: pieces differ in their columns: {', '.join(sorted({*own} ^ {*columns}))}")
        columns = own
        slots = [
            pl.when(pl.col("num_drafted") > slot)
            .then(pl.col(slot_column(name, slot)).cast(pl.Float32).fill_null(nan))
            .otherwise(nan)
            .alias(slot_column(name, slot))
            for name in features
            for slot in range(card.num_speculative_tokens)
        ]
        plain = [pl.col(name).cast(dtype) for name, dtype in BLOCKS.items() if name in frame.columns]
        mask = [pl.col(MASK).cast(pl.String)] if MASK in frame.columns else []
        order = ("step", "_rank") if "step" in frame.columns else ("_rank", "position")
        with_rank = frame.join(rank.with_columns(pl.col("request").cast(frame.schema["request"])), "request", "left")
        yield with_rank.sort(order, nulls_last=True, maintain_order=True).select(plain + mask + slots)


def _regroup(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    held: list[pl.DataFrame] = []
    rows = 0
    for frame in frames:
        held.append(frame)
        rows += frame.height
        if rows >= PART_ROWS:
            whole = pl.concat(held)
            while whole.height >= PART_ROWS:
                yield whole[:PART_ROWS]
                whole = whole[PART_ROWS:]
            held, rows = [whole], whole.height
    if rows:
        yield pl.concat(held)


def _finish(temporary: Path, path: Path) -> None:
    for file in (*temporary.iterdir(), temporary):
        _flush(file)
    if path.exists():
        replaced = _sibling(path)
        path.rename(replaced)
        try:
            temporary.rename(path)
        except OSError:
            replaced.rename(path)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        temporary.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
