"""Published throughput tables: one row for each policy, depth and load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from avsim.errors import InputError
from avsim.manifest import read_text

__all__ = ["Point", "read_points"]

_COLUMNS = "policy, num_speculative_tokens, concurrency, throughput_tok_s"


@dataclass(frozen=True, slots=True)
class Point:
    """One measured cell.

    Attributes:
        workload: what was served; cells of one workload share their acceptance, all cells share the step cost.
        policy: `none`, `fixed` or `adaptive`.
        depth: K drafted per request; 0 for `none`.
        concurrency: requests in flight as configured.
        num_reqs: requests decoding at once on average: throughput × TPOT where that was given, else the concurrency.
        throughput_tok_s: emitted tokens per second of the whole engine.
        acceptance_length: tokens per request and step, bonus included; None where it was not given.
        noise_pct: repeat noise of the throughput as published, %.
    """

    workload: str
    policy: str
    depth: int
    concurrency: int
    num_reqs: float
    throughput_tok_s: float
    acceptance_length: float | None = None
    noise_pct: float = 0.0


def read_points(path: str | Path) -> list[Point]:
    """Read a CSV with the columns policy, num_speculative_tokens, concurrency and throughput_tok_s.

    Optional: workload, acceptance_length, noise_pct, and interactivity_tok_s_user or tpot_ms.

    Raises:
        InputError: a column is missing, a number is malformed or not positive, or a cell stands twice.
    """
    text = read_text(Path(path))
    try:
        frame = pl.read_csv(text.encode(), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: not a CSV table: {str(error).splitlines()[0]}") from None
    missing = [name for name in _COLUMNS.split(", ") if name not in frame.columns]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; a throughput table has {_COLUMNS}")
    points = list(_points(frame, str(path)))
    if not points:
        raise InputError(f"{path}: no rows")
    seen: dict[tuple[str, str, int, int], int] = {}
    for row, point in enumerate(points, 2):
        key = (point.workload, point.policy, point.depth, point.concurrency)
        if key in seen:
            raise InputError(f"{path}: row {row} repeats the cell of row {seen[key]}: {key}")
        seen[key] = row
    return points


def _points(frame: pl.DataFrame, path: str) -> Iterable[Point]:
    for row, line in enumerate(frame.iter_rows(named=True), 2):
        where = f"{path}: row {row}"
        policy = str(line["policy"]).strip()
        if policy not in ("none", "fixed", "adaptive"):
            raise InputError(f"{where}: policy is {policy!r}; it must be none, fixed or adaptive")
        depth = int(_number(line, "num_speculative_tokens", where, least=0, whole=True))
        if (depth == 0) != (policy == "none"):
            raise InputError(f"{where}: num_speculative_tokens is {depth} for policy {policy}")
        concurrency = int(_number(line, "concurrency", where, least=1, whole=True))
        rate = _number(line, "throughput_tok_s", where)
        reqs = float(concurrency)
        if line.get("interactivity_tok_s_user"):
            reqs = rate / _number(line, "interactivity_tok_s_user", where)
        elif line.get("tpot_ms"):
            reqs = rate * _number(line, "tpot_ms", where) * 1e-3
        length = _number(line, "acceptance_length", where, least=1) if line.get("acceptance_length") else None
        noise = _number(line, "noise_pct", where, least=0) if line.get("noise_pct") else 0.0
        yield Point(str(line.get("workload") or ""), policy, depth, concurrency, reqs, rate, length, noise)


def _number(line: dict[str, str | None], column: str, where: str, *, least: float = 0.0, whole: bool = False) -> float:
    text = (line[column] or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (value >= least and value < float("inf")) or (least == 0.0 and not whole and value == 0):
        raise InputError(f"{where}: {column} is {text!r}; it must be a number {'≥ ' + str(least) if least else '> 0'}")
    if whole and value != int(value):
        raise InputError(f"{where}: {column} is {text!r}; it must be a whole number")
    return value
