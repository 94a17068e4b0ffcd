"""Reading the Parquet files of a trace; every failure becomes one `InputError`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from avsim.errors import InputError

__all__ = ["Part", "frames", "parts", "read_table", "reading"]

CHUNK_ROWS = 1 << 17
READ_BYTES = 1 << 26
"""Read at once, in 4-byte values: more than a chunk, since each read parses the file's footer again."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of blocks."""

    path: Path
    num_rows: int


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever Polars or the system raises while reading a file into one line that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; the trace is incomplete") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({reason}); copy or write the trace again") from None


def read_table(path: Path) -> pl.DataFrame:
    """Read a whole small table."""
    with reading(path):
        return pl.read_parquet(path, glob=False)


def parts(folder: Path) -> tuple[tuple[Part, ...], pl.Schema]:
    """List a trace's block files in order, with their common schema, from the files' footers alone.

    Raises:
        InputError: no file, a file that cannot be read, or files that differ in their columns.
    """
    paths = sorted(folder.glob("blocks*.parquet"))
    if not paths:
        raise InputError(f"{folder}: no blocks*.parquet file; the trace is incomplete")
    found: list[Part] = []
    schema = pl.Schema()
    for path in paths:
        with reading(path):
            lazy = pl.scan_parquet(path, glob=False)
            own = lazy.collect_schema()
            found.append(Part(path, int(lazy.select(pl.len()).collect().item())))
        if len(found) == 1:
            schema = own
        elif own != schema:
            differ = sorted({name for name, _ in set(own.items()) ^ set(schema.items())})
            raise InputError(
                f"{path}: its columns differ from those of {paths[0].name} ({', '.join(differ) or 'in order'}); "
                f"one trace has one schema"
            )
    return tuple(found), schema


def frames(part: Part, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Stream the chosen columns of a file in order, in slices of at most `CHUNK_ROWS` rows."""
    at_once = max(READ_BYTES // (4 * len(columns)), CHUNK_ROWS)
    for start in range(0, part.num_rows, at_once):
        with reading(part.path):
            frame = pl.scan_parquet(part.path, glob=False).select(columns).slice(start, at_once).collect()
        if frame.height != min(at_once, part.num_rows - start):
            raise InputError(f"{part.path}: its rows changed while it was read; read it again")
        yield from frame.iter_slices(CHUNK_ROWS)
