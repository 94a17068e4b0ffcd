"""Reading the Parquet files of a trace; every failure becomes one `InputError`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from avsim.errors import InputError

__all__ = ["Part", "frames", "parts", "read_table", "reading"]

CHUNK_ROWS = 1 << 18


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


def frames(part: Part, columns: Sequence[str], rows: int = CHUNK_ROWS) -> Iterator[pl.DataFrame]:
    """Stream the chosen columns of a file in slices of at most `rows` rows."""
    for start in range(0, part.num_rows, rows):
        with reading(part.path):
            frame = pl.scan_parquet(part.path, glob=False).select(columns).slice(start, rows).collect()
        if frame.height != min(rows, part.num_rows - start):
            raise InputError(f"{part.path}: its rows changed while it was read; read it again")
        yield frame
