"""A trace as text tables, for tools that do not read Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import polars as pl

from avsim.errors import InputError
from avsim.manifest import json_text, make_manifest, write_folder
from avsim.sources.base import Trace, open_trace
from avsim.sources.parquet import frames
from avsim.sources.schema import BLOCKS, MASK, slot_column
from avsim.sources.validate import validate_trace

__all__ = ["FORMATS", "convert_trace"]

FORMATS = ("csv", "jsonl")


def convert_trace(
    trace: str | Path, path: str | Path, to: Literal["csv", "jsonl"], *, overwrite: bool = False
) -> list[str]:
    """Write a trace's blocks, requests, steps and card as CSV or JSON lines, and a manifest.

    Columns and their names are those of the Parquet tables, values are written so that they read back exactly. A
    slot that was not drafted, or whose value is not known, is empty (CSV) or null (JSON lines), as NaN is no JSON.
    The trace is validated first; blocks are streamed; the folder appears whole or not at all.

    Args:
        trace: the trace folder.
        path: the folder to make: `blocks`, `requests` and, if the trace has steps, `steps`, with the ending `to`;
            `card.json`, the card (not `trace.json`: the folder is no trace); `manifest.json`.
        to: `csv` (with a header, UTF-8, an empty text in quotes) or `jsonl`.
        overwrite: replace such a folder that is already there.

    Returns:
        the names of the files.

    Raises:
        InputError: another format, a bad trace, or a folder in the way.
    """
    if to not in FORMATS:
        raise InputError(f"format is {to!r}; it is {' or '.join(FORMATS)}")
    validate_trace(trace)
    opened = open_trace(trace)
    names: list[str] = []

    def fill(folder: Path) -> None:
        try:
            _write(folder / f"requests.{to}", [opened.requests], to)
            _write(folder / f"blocks.{to}", _blocks(opened), to)
            if (steps := opened.steps()) is not None:
                _write(folder / f"steps.{to}", [steps], to)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from None
        card = json.dumps(opened.card.to_json(), indent=2, ensure_ascii=False) + "\n"
        (folder / "card.json").write_text(card, encoding="utf-8")
        manifest = make_manifest("trace convert", {"to": to}, {"trace": opened.card.content_hash})
        (folder / "manifest.json").write_text(json_text(manifest), encoding="utf-8")
        names.extend(sorted(file.name for file in folder.iterdir()))

    write_folder(Path(path), fill, overwrite=overwrite)
    return names


def _blocks(trace: Trace) -> Iterable[pl.DataFrame]:
    plain = [name for name in BLOCKS if name != "step" or trace.card.kind == "on-policy"]
    plain += [MASK] if trace.has_mask else []
    slots = [slot_column(name, k) for name in trace.features for k in range(trace.card.num_speculative_tokens)]
    for part in trace.parts:
        yield from frames(part, plain + slots)


def _write(path: Path, tables: Iterable[pl.DataFrame], to: str) -> None:
    with path.open("wb") as file:
        for number, table in enumerate(tables):
            table = table.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None))
            if to == "csv":
                table.write_csv(file, include_header=number == 0)
            else:
                table.write_ndjson(file)
