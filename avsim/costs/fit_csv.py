"""Step timings and start-up profiles in CSV files."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from avsim.costs.fit_samples import Origin, Samples, Steps, profile_samples, to_steps
from avsim.errors import InputError
from avsim.sources.schema import STEPS
from avsim.types import F64Array

__all__ = ["read_profile", "read_steps_csv"]

_ALIASES = {"num_tokens": "num_target_tokens"}
_KINDS = ("sample", "median")
_SIZES = {"verify": "num_target_tokens", "draft": "num_reqs"}


def read_steps_csv(path: Path) -> tuple[Steps, Origin, tuple[str, ...]]:
    """Read a CSV with one row per engine step, in time order, and columns as in a trace's step table.

    `num_target_tokens` (or `num_tokens`), `num_reqs` and `forward_ms` are needed; `drafter_ms`, `kv_tokens`,
    `num_prefill_tokens`, `graph_mode` and `step` are read where they are there; an empty cell is a value not known.

    Returns:
        the steps, where they come from, and the names of the columns that were not read.

    Raises:
        InputError: not such a file, a needed column is missing, a column's name is nearly that of a known one, or a
            cell is not a number of its kind (named by line).
    """
    table, digest = _read(path)
    if "ms" in table.columns and "forward_ms" not in table.columns:
        raise InputError(f"{path}: this is a start-up profile; pass it as --verify FILE or --draft FILE")
    needed = ("num_target_tokens", "num_reqs", "forward_ms")
    _need(table, needed, path, "a CSV of step timings")
    unread = _unread(table, tuple(STEPS), path)
    columns: dict[str, pl.Series] = {}
    for name, dtype in STEPS.items():
        if name not in table.columns:
            columns[name] = pl.Series(name, [None] * len(table), dtype=dtype)
        elif name == "graph_mode":
            columns[name] = table[name]
        else:
            whole = dtype.is_integer()
            low = (
                0.0
                if name not in ("forward_ms", "num_target_tokens", "num_reqs")
                else 1.0
                if whole
                else np.nextafter(0.0, 1.0)
            )
            columns[name] = pl.Series(name, _numbers(table, name, path, whole=whole, low=low))
    if "step" in table.columns:
        step = columns["step"].to_numpy()
        falls = np.flatnonzero(~(np.diff(step) > 0))
        if len(falls) or not np.isfinite(step).all():
            row = int(falls[0]) + 1 if len(falls) else int((~np.isfinite(step)).argmax())
            raise InputError(f"{path} line {row + 2}, column step: must rise from row to row; sort the file by time")
    return to_steps(pl.DataFrame(columns)), Origin(f"CSV {path.name}", digest, len(table)), unread


def read_profile(path: Path, label: Literal["verify", "draft"]) -> tuple[Samples, Origin, tuple[str, ...]]:
    """Read a start-up profile: `num_target_tokens,ms[,kind]` for the target, `num_reqs,ms[,kind]` for the drafter.

    `kind` is `sample` (one timed run; the default) or `median` (the median that the engine took); where a file has
    medians, they are the curve, and its samples give outliers and errors.

    Raises:
        InputError: not such a file, or a bad cell (named by line).
    """
    table, digest = _read(path)
    size_column = _SIZES[label]
    if "forward_ms" in table.columns and "ms" not in table.columns:
        raise InputError(f"{path}: these are step timings, not a profile; pass the file without --{label}")
    _need(table, (size_column, "ms"), path, f"a {label} profile")
    unread = _unread(table, (size_column, "ms", "kind"), path)
    size = _numbers(table, size_column, path, whole=True, low=1.0, empty=False)
    ms = _numbers(table, "ms", path, whole=False, low=np.nextafter(0.0, 1.0), empty=False)
    kind = table["kind"].fill_null("").to_list() if "kind" in table.columns else ["sample"] * len(table)
    for row, value in enumerate(kind):
        if value not in _KINDS:
            raise InputError(f"{path} line {row + 2}, column kind: {value!r}; it is {' or '.join(_KINDS)}")
    median = np.asarray(kind) == "median"
    sizes, counts = np.unique(size[median], return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{path}: size {int(sizes[counts.argmax()])} has {counts.max()} medians; it may have one")
    medians = sorted(zip(size[median].astype(np.int64).tolist(), ms[median].tolist(), strict=True))
    used = ~median if (~median).any() else median
    samples = profile_samples(label, size[used].astype(np.int64), ms[used], medians, np.flatnonzero(used))
    return samples, Origin(f"CSV {path.name}", digest, len(table)), unread


def _read(path: Path) -> tuple[pl.DataFrame, str]:
    try:
        data = path.read_bytes()
        data.decode("utf-8")
        table = pl.read_csv(data, infer_schema=False)
    except IsADirectoryError:
        raise InputError(f"{path}: it is a folder; a CSV file or a trace folder is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file; a CSV in UTF-8 is needed") from None
    except pl.exceptions.NoDataError:
        raise InputError(f"{path}: the file is empty; it needs a header line and a row for each timing") from None
    except pl.exceptions.PolarsError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a CSV file ({reason})") from None
    table = table.rename({name: name.strip().removeprefix("\ufeff") for name in table.columns})
    renames = {old: new for old, new in _ALIASES.items() if old in table.columns and new not in table.columns}
    table = table.rename(renames)
    if not len(table):
        raise InputError(f"{path}: no rows after the header; it needs a row for each timing")
    return table.with_columns(
        pl.all().str.strip_chars().replace("", None)
    ), f"sha256:{hashlib.sha256(data).hexdigest()}"


def _need(table: pl.DataFrame, needed: Sequence[str], path: Path, what: str) -> None:
    missing = [name for name in needed if name not in table.columns]
    if missing:
        close = [found for name in missing for found in difflib.get_close_matches(name, table.columns, n=1, cutoff=0.8)]
        hint = f" (is {close[0]!r} meant for it?)" if close else ""
        raise InputError(
            f"{path}: column {', '.join(map(repr, missing))} is missing{hint}; {what} needs {', '.join(needed)}, "
            f"and it has {', '.join(table.columns)}"
        )


def _unread(table: pl.DataFrame, known: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the columns that are not known; one that looks like a slip of the pen is refused."""
    others = tuple(name for name in table.columns if name not in known)
    for name in others:
        close = difflib.get_close_matches(name, [item for item in known if item not in table.columns], n=1, cutoff=0.8)
        if close:
            raise InputError(f"{path}: unknown column {name!r}; did you mean {close[0]!r}? Rename it, or take it out")
    return others


def _numbers(table: pl.DataFrame, name: str, path: Path, *, whole: bool, low: float, empty: bool = True) -> F64Array:
    """Return a column as numbers ≥ `low`, NaN where a cell is empty."""
    text = table[name]
    values = text.cast(pl.Float64, strict=False).to_numpy().astype(np.float64)
    filled = text.is_not_null().to_numpy()
    rule = f"a {'whole ' if whole else ''}number {'≥' if low in (0.0, 1.0) else '>'} {low if low >= 1 else 0:.0f}"
    bad = filled & ~(np.isfinite(values) & (values >= low) & (values < 2.0**53))
    if whole:
        bad |= filled & (values != np.floor(values))
    if not empty:
        bad |= ~filled
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"{path} line {row + 2}, column {name}: {text[row]!r} is not {rule}")
    return values
