"""The table of a sweep: one row per configuration, load and verdict."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from avsim.errors import InputError
from avsim.experiments.sweep import Configuration
from avsim.manifest import json_text, write_file

__all__ = ["table", "tally", "write_table"]

_ARM = ("estimator", "throughput_tok_s", "acceptance_length", "verified_share", "step_ms", "unattainable")
_RUN = ("what_if", "synthetic")


def table(finished: Sequence[tuple[Configuration, dict[str, Any]]]) -> pl.DataFrame:
    """Return the table, in the order of the grid; an arm without a verdict has one row without.

    Columns: the grid's keys, then `load`, `policy`, what the arm did, the verdict, and what kind of run it was.
    """
    rows = [row for item, summary in finished for row in _rows(item, summary)]
    return pl.DataFrame(rows, infer_schema_length=None)


def _rows(item: Configuration, summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    point = {name: ",".join(map(str, v)) if isinstance(v, list) else v for name, v in item.point.items()}
    for load in summary["loads"]:
        for arm in load["arms"]:
            if not arm["judged"]:
                continue
            head = point | {"load": load.get("load"), "policy": arm["policy"]}
            head |= {name: arm.get(name) for name in _ARM if name not in head}
            verdicts = [verdict for verdict in load["verdicts"] if verdict["policy"] == arm["policy"]]
            for verdict in verdicts or [{}]:
                yield head | verdict | {name: summary[name] for name in _RUN}


def tally(frame: pl.DataFrame) -> str:
    """Return how often each verdict was given, against what.

    >>> tally(pl.DataFrame({"word": ["gain", "loss", "gain"], "against": ["none"] * 3}))
    'against none: 2 gain, 1 loss'
    """
    counts = frame.drop_nulls("word").group_by("against", "word").len().sort("against", "len", descending=[False, True])
    found: dict[str, list[str]] = {}
    for against, word, count in counts.iter_rows():
        found.setdefault(against, []).append(f"{count} {word}")
    return "; ".join(f"against {against}: {', '.join(words)}" for against, words in found.items())


def write_table(frame: pl.DataFrame, out: Path) -> None:
    """Write table.csv, table.json and table.parquet, each as a whole; the same rows give the same bytes."""
    write_file(out / "table.csv", frame.write_csv())
    write_file(out / "table.json", json_text(frame.to_dicts()))
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    _write_bytes(out / "table.parquet", buffer.getvalue())


def _write_bytes(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot write it: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
