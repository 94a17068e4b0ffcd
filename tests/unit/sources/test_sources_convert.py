"""A trace as text, read back with Polars."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, TraceCard, write_trace
from avsim.sources.convert import convert_trace

READ = {"csv": pl.read_csv, "jsonl": pl.read_ndjson}
WIDE = {pl.Int16: pl.Int64, pl.Int32: pl.Int64}
"""Polars reads no narrow integers from JSON lines."""


@pytest.fixture
def awkward(tmp_path: Path) -> Trace:
    """Values that text formats like to spoil: subnormals, quotes, empty texts, nulls, undrafted slots, big numbers."""
    floats = np.array([1e-45, np.float32(0.1), -40.0, 3.3333333e-7, 39.999996], dtype=np.float32)
    blocks = pl.DataFrame(
        {
            "step": [2**53 + 1 + number for number in range(5)],
            "request": [7, 7, -3, 7, -3],
            "position": [0, 2, 0, 4, 9],
            "num_drafted": [2, 1, 0, 2, 2],
            "num_admitted": [2, 1, 0, 1, 2],
            "num_accepted": [1, 0, 0, 1, 2],
            "mask": ['say "a, b"', None, "", "grün\nzwei", "NaN"],
            "log_odds_0": floats,
            "log_odds_1": floats[::-1],
            "alpha_0": [0.25, None, None, float("nan"), 1.0],
            "alpha_1": [None, None, None, None, 1.0],
        }
    )
    requests = pl.DataFrame(
        {
            "request": [7, -3],
            "source": [1, 1],
            "prompt_len": [3, 4],
            "output_len": [20, 30],
            "temperature": [0.1, 1 / 3],
            "top_p": [None, 0.95],
            "category": ["", None],
        }
    )
    steps = pl.DataFrame({"step": blocks["step"], "forward_ms": [0.1, None, 1e-300, 2.0, 3.0]})
    card = TraceCard(
        name="awkward",
        kind="on-policy",
        target="none",
        drafter="none",
        drafter_kind="unknown",
        num_speculative_tokens=2,
        draft_sampling="greedy",
        acceptance_rule="standard",
        temperature=None,
    )
    return write_trace(tmp_path / "awkward", card, requests, [blocks], steps)


def same(found: pl.DataFrame, wanted: pl.DataFrame) -> bool:
    """Compare bit for bit, NaN being null: the format reads them alike."""
    floats = pl.col(pl.Float32, pl.Float64).fill_nan(None)
    return found.with_columns(floats).equals(wanted.with_columns(floats), null_equal=True)


@pytest.mark.parametrize("to", ["csv", "jsonl"])
@pytest.mark.parametrize("name", ["awkward", "greedy"])
def test_values_read_back_exactly(name: str, to: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    trace: Trace = request.getfixturevalue(name)
    files = convert_trace(trace.path, tmp_path / "text", "csv" if to == "csv" else "jsonl")
    tables = {file.stem.partition("-")[0] for file in trace.path.glob("*.parquet")}
    assert files == sorted([f"{table}.{to}" for table in tables] + ["card.json", "manifest.json"])
    for table in tables:
        wanted = pl.concat([pl.read_parquet(file) for file in sorted(trace.path.glob(f"{table}*.parquet"))])
        if table != "blocks":
            wanted = trace.requests if table == "requests" else trace.steps()
        schema = {name: WIDE.get(type(dtype), dtype) for name, dtype in wanted.schema.items()}
        found = READ[to](tmp_path / "text" / f"{table}.{to}", schema=schema)
        assert same(found.cast(dict(wanted.schema)), wanted)
    assert TraceCard.from_text((tmp_path / "text/card.json").read_text(), "card") == trace.card
    manifest = json.loads((tmp_path / "text/manifest.json").read_text())
    assert manifest["inputs"] == {"trace": trace.card.content_hash}


def test_one_header_over_several_files_and_chunks(
    awkward: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avsim.sources.parquet.CHUNK_ROWS", 2)
    convert_trace(awkward.path, tmp_path / "text", "csv")
    text = (tmp_path / "text/blocks.csv").read_text()
    assert text.count("num_accepted") == 1
    assert text.startswith("step,request,position,num_drafted,num_admitted,num_accepted,mask,log_odds_0,log_odds_1")
    assert pl.read_csv(tmp_path / "text/blocks.csv").height == 5


def test_json_lines_are_json(awkward: Trace, tmp_path: Path) -> None:
    convert_trace(awkward.path, tmp_path / "text", "jsonl")
    lines = (tmp_path / "text/blocks.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in lines]
    assert rows[0]["step"] == 2**53 + 1
    assert (rows[2]["log_odds_0"], rows[2]["mask"]) == (None, "")


def test_nothing_is_half_written_or_overwritten(awkward: Trace, tmp_path: Path) -> None:
    out = tmp_path / "text"
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        convert_trace(awkward.path, awkward.path, "csv", overwrite=True)
    convert_trace(awkward.path, out, "csv")
    with pytest.raises(InputError, match="exists"):
        convert_trace(awkward.path, out, "jsonl")
    assert (out / "blocks.csv").exists()
    convert_trace(awkward.path, out, "jsonl", overwrite=True)
    assert not (out / "blocks.csv").exists()
    with pytest.raises(InputError, match="format is 'xml'; it is csv or jsonl"):
        convert_trace(awkward.path, tmp_path / "new", "xml")  # type: ignore[arg-type]
    path = awkward.parts[0].path
    pl.read_parquet(path).with_columns(num_accepted=pl.lit(0)).write_parquet(path)
    with pytest.raises(InputError, match="content hash"):
        convert_trace(awkward.path, tmp_path / "new", "csv")
    assert not [*tmp_path.glob(".new*"), *tmp_path.glob("new*")]
