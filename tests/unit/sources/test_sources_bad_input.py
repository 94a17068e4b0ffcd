"""Every way in which a trace can be broken gives one line that names the file and the column."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, open_trace, validate_trace

BLOCKS = "blocks-00000.parquet"
Change = Callable[[Path], None]


def edit(file: str, function: Callable[[pl.DataFrame], pl.DataFrame]) -> Change:
    def change(folder: Path) -> None:
        function(pl.read_parquet(folder / file)).write_parquet(folder / file)

    return change


def put(column: str, row: int, value: Any, file: str = BLOCKS) -> Change:
    """Set one cell."""

    def function(frame: pl.DataFrame) -> pl.DataFrame:
        values = frame[column].to_list()
        values[row] = value
        return frame.with_columns(pl.Series(column, values, dtype=frame.schema[column]))

    return edit(file, function)


def card(**values: Any) -> Change:
    def change(folder: Path) -> None:
        data = json.loads((folder / "trace.json").read_text())
        (folder / "trace.json").write_text(json.dumps(data | values))

    return change


def both(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


def swap_rows(first: int, second: int) -> Change:
    def function(frame: pl.DataFrame) -> pl.DataFrame:
        order = list(range(len(frame)))
        order[first], order[second] = order[second], order[first]
        return frame[order]

    return edit(BLOCKS, function)


def cut(file: str, keep: float) -> Change:
    def change(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: int(len(data) * keep)])

    return change


def remove(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


def text(file: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return change


NAN, INF = float("nan"), float("inf")

# The dense trace has 5 requests × 8 blocks, K = 3, every slot drafted.
OPENING: dict[str, tuple[Change, str]] = {
    "no card": (remove("trace.json"), "not a trace, it has no trace.json"),
    "card cut": (cut("trace.json", 0.5), "trace.json: not valid JSON"),
    "card is no text": (text("trace.json", b"\xff\xfe\x00"), "trace.json: cannot be read"),
    "newer schema": (card(schema_version=99), "schema_version is 99.*update avsim"),
    "no blocks file": (remove(BLOCKS), r"no blocks\*.parquet"),
    "no requests file": (remove("requests.parquet"), "requests.parquet: no such file"),
    "blocks cut": (cut(BLOCKS, 0.5), f"{BLOCKS}: cannot be read"),
    "requests cut": (cut("requests.parquet", 0.5), "requests.parquet: cannot be read"),
    "blocks empty file": (text(BLOCKS, b""), f"{BLOCKS}: cannot be read"),
    "blocks garbage": (text(BLOCKS, b"PAR1" * 100), f"{BLOCKS}: cannot be read"),
    "no position": (edit(BLOCKS, lambda f: f.drop("position")), f"{BLOCKS}: column 'position' is missing"),
    "no slot 2": (edit(BLOCKS, lambda f: f.drop("log_odds_2")), f"{BLOCKS}: column 'log_odds_2' is missing"),
    "slot 3 of 3": (
        edit(BLOCKS, lambda f: f.with_columns(log_odds_3=pl.col("log_odds_0"))),
        f"{BLOCKS}: unknown column 'log_odds_3'",
    ),
    "unknown column": (edit(BLOCKS, lambda f: f.with_columns(mood=1)), f"{BLOCKS}: unknown column 'mood'"),
    "unknown feature": (
        edit(BLOCKS, lambda f: f.rename({f"log_odds_{k}": f"mood_{k}" for k in range(3)})),
        f"{BLOCKS}: unknown column 'mood_0'",
    ),
    "position is text": (
        edit(BLOCKS, lambda f: f.with_columns(pl.col("position").cast(pl.String))),
        f"{BLOCKS}: column 'position' is String, not Int32",
    ),
    "position is float": (
        edit(BLOCKS, lambda f: f.with_columns(pl.col("position").cast(pl.Float64))),
        f"{BLOCKS}: column 'position' is Float64",
    ),
    "feature is text": (
        edit(BLOCKS, lambda f: f.with_columns(pl.col("log_odds_1").cast(pl.String))),
        f"{BLOCKS}: column 'log_odds_1' is String, not Float32",
    ),
    "feature is array": (
        edit(BLOCKS, lambda f: f.with_columns(log_odds=pl.concat_arr("log_odds_0", "log_odds_1"))),
        f"{BLOCKS}: unknown column 'log_odds'",
    ),
    "a step in a dense trace": (edit(BLOCKS, lambda f: f.with_columns(step=0)), "a dense trace has none"),
    "no step in an on-policy one": (card(kind="on-policy"), "an on-policy trace needs one"),
    "recorded is wrong": (card(recorded=["entropy"]), "holds the features log_odds, but trace.json says entropy"),
    "a block less": (edit(BLOCKS, lambda f: f[:-1]), "39 blocks, but trace.json says 40"),
    "a request less": (edit("requests.parquet", lambda f: f[:-1]), "4 requests, but trace.json says 5"),
    "no blocks": (edit(BLOCKS, lambda f: f[:0]), "the trace has no blocks"),
    "no requests": (edit("requests.parquet", lambda f: f[:0]), "requests.parquet: no requests"),
    "no source": (edit("requests.parquet", lambda f: f.drop("source")), "column 'source' is missing"),
    "output_len 0": (put("output_len", 2, 0, "requests.parquet"), "requests.parquet row 2, column output_len: 0"),
    "prompt_len -1": (put("prompt_len", 1, -1, "requests.parquet"), "row 1, column prompt_len: -1"),
    "temperature nan": (put("temperature", 1, NAN, "requests.parquet"), "row 1, column temperature: nan"),
    "temperature null": (put("temperature", 1, None, "requests.parquet"), "row 1, column temperature: None"),
    "top_p 2": (edit("requests.parquet", lambda f: f.with_columns(top_p=2.0)), "row 0, column top_p: 2.0"),
    "request twice": (put("request", 1, 0, "requests.parquet"), "column request: 0 is a duplicate id"),
}

DENSE: dict[str, tuple[Change, str]] = {
    "nan": (put("log_odds_1", 7, NAN), f"{BLOCKS} row 7, column log_odds_1: nan in a drafted slot"),
    "null": (put("log_odds_1", 7, None), f"{BLOCKS} row 7, column log_odds_1: nan in a drafted slot"),
    "inf": (put("log_odds_2", 0, INF), f"{BLOCKS} row 0, column log_odds_2: inf in a drafted slot"),
    "-inf": (put("log_odds_0", 39, -INF), f"{BLOCKS} row 39, column log_odds_0: -inf in a drafted slot"),
    "40.5": (put("log_odds_0", 3, 40.5), "row 3, column log_odds_0: 40.5 .* log_odds lies in -40 … 40"),
    "accepted > admitted": (put("num_accepted", 4, 4), "row 4, columns num_accepted.*: 4, 3, 3"),
    "accepted < 0": (put("num_accepted", 4, -1), "row 4, columns num_accepted.*: -1, 3, 3"),
    "admitted > drafted": (put("num_drafted", 4, 2), "row 4, columns num_accepted.*, 3, 2"),
    "drafted > K": (both(put("num_drafted", 4, 4), put("num_admitted", 4, 4)), "row 4, .*≤ K = 3"),
    "null count": (put("num_drafted", 4, None), "row 4, column num_drafted: null"),
    "trimmed": (both(put("num_admitted", 4, 2), put("num_accepted", 4, 0)), "row 4, column num_admitted: 2 of 3"),
    "unknown request": (put("request", 9, 77), "row 9, column request: id 77 is not in requests.parquet"),
    "negative request": (put("request", 9, -1), "row 9, column request: id -1 is not in"),
    "position -1": (put("position", 0, -1), "row 0, column position: -1 is outside 0 … 7"),
    "position at the end": (put("position", 15, 8), "row 15, column position: 8 is outside 0 … 7 for request 1"),
    "duplicate block": (put("position", 5, 4), "row 5, .*request 0, position 4 is a duplicate block"),
    "out of order": (swap_rows(5, 6), "row 5, column position: request 0, position 5 is missing"),
    "back to the front": (put("position", 5, 0), "row 5, .*position 0 is a duplicate or out of order"),
    "hole": (
        both(edit(BLOCKS, lambda f: pl.concat([f[:20], f[21:]])), card(num_blocks=39)),
        "row 20, column position: request 2, position 4 is missing",
    ),
    "cut tail": (
        both(edit(BLOCKS, lambda f: f[:38]), card(num_blocks=38)),
        "the blocks end before request 4, position 6",
    ),
    "cut request": (
        both(edit(BLOCKS, lambda f: f[8:]), card(num_blocks=32)),
        "row 0, column position: request 0, position 0 is missing",
    ),
}

# The on-policy trace has 9 requests, 4 in a step: rows 0–3 are step 0, rows 4–7 step 1.
ON_POLICY: dict[str, tuple[Change, str]] = {
    "negative step": (put("step", 0, -1), "row 0, column step: -1 is negative"),
    "falling step": (put("step", 8, 0), "row 8, column step: 0 comes after 1"),
    "request twice in a step": (put("request", 5, 0), "row 5, column request: request 0 is a duplicate"),
    "position again": (put("position", 4, 0), "row 4, .*request 0 is at position 0 again"),
    "out of order": (swap_rows(1, 2), "row 2, column request: request 1 is a duplicate or out of order in step 0"),
    "null step": (put("step", 3, None), "row 3, column step: null"),
    "nan": (put("log_odds_1", 2, NAN), "row 2, column log_odds_1: nan"),
}


@pytest.mark.parametrize(("change", "message"), OPENING.values(), ids=OPENING.keys())
def test_opening_refuses(change: Change, message: str, dense: Trace) -> None:
    change(dense.path)
    with pytest.raises(InputError, match=message) as error:
        open_trace(dense.path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", [lambda trace: trace.blocks(trace.features), lambda trace: validate_trace(trace.path)])
@pytest.mark.parametrize(("change", "message"), DENSE.values(), ids=DENSE.keys())
def test_reading_a_dense_trace_refuses(
    read: Callable[[Trace], Any], change: Change, message: str, dense: Trace
) -> None:
    change(dense.path)
    trace = open_trace(dense.path)
    with pytest.raises(InputError, match=message) as error:
        read(trace)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("chunk_rows", [1, 3, 1 << 17])
@pytest.mark.parametrize(("change", "message"), ON_POLICY.values(), ids=ON_POLICY.keys())
def test_streaming_refuses(
    change: Change, message: str, chunk_rows: int, on_policy: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avsim.sources.parquet.CHUNK_ROWS", chunk_rows)
    change(on_policy.path)
    with pytest.raises(InputError, match=message):
        list(open_trace(on_policy.path).iter_blocks(("log_odds",)))


@pytest.mark.parametrize("chunk_rows", [1, 2, 5])
@pytest.mark.parametrize(("change", "message"), DENSE.values(), ids=DENSE.keys())
def test_chunks_change_no_verdict(
    change: Change, message: str, chunk_rows: int, dense: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avsim.sources.parquet.CHUNK_ROWS", chunk_rows)
    change(dense.path)
    with pytest.raises(InputError, match=message):
        open_trace(dense.path).blocks(("log_odds",))


def test_validate_sees_a_changed_value_by_the_hash(dense: Trace) -> None:
    put("log_odds_1", 7, 0.25)(dense.path)
    with pytest.raises(InputError, match=r"the content hash is sha256.*copy it again"):
        validate_trace(dense.path)


def test_a_flipped_byte_never_ends_in_a_traceback(dense: Trace) -> None:
    data = (dense.path / BLOCKS).read_bytes()
    refused = 0
    for at in range(0, len(data), 37):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        (dense.path / BLOCKS).write_bytes(changed)
        try:
            validate_trace(dense.path)
        except InputError:
            refused += 1
    assert refused > len(range(0, len(data), 37)) // 2


def test_a_file_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace folder"):
        open_trace(tmp_path / "missing")


def test_asking_for_what_was_not_recorded(dense: Trace) -> None:
    with pytest.raises(InputError, match="did not record 'log_ods'; did you mean 'log_odds'"):
        dense.blocks(("log_ods",))
    with pytest.raises(InputError, match="4 slots asked for, but the trace recorded K = 3"):
        dense.blocks(num_slots=4)
    with pytest.raises(InputError, match="dense trace has no steps to stream"):
        next(dense.iter_blocks())
