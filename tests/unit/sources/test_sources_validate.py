from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, validate_trace, write_trace


def rewritten(trace: Trace, path: Path, frame: pl.DataFrame, **card: object) -> list[str]:
    changed = dataclasses.replace(trace.card, name="real", synthetic=False, **card)  # type: ignore[arg-type]
    write_trace(path, changed, trace.requests, [frame])
    return validate_trace(path)


def test_findings(dense: Trace, on_policy: Trace, tmp_path: Path) -> None:
    frame = pl.read_parquet(dense.path / "blocks-00000.parquet")
    masked = frame.with_columns(pl.when(pl.col("position") == 3).then(pl.lit("grammar")).alias("mask"))
    assert rewritten(dense, tmp_path / "a", frame) == []
    assert rewritten(dense, tmp_path / "b", masked) == ["5 of 40 blocks are masked: their labels are not learned from"]
    assert rewritten(dense, tmp_path / "c", frame, complete_blocks=False) == [
        "slots past the end of an output are absent: replay charges them as rejected"
    ]
    ran = pl.read_parquet(on_policy.path / "blocks-00000.parquet")
    assert rewritten(on_policy, tmp_path / "d", ran) == []
    assert rewritten(on_policy, tmp_path / "e", ran.filter(pl.col("step") != 1)) == [
        "4 blocks start after the end of their request's block before: some are missing"
    ]
    assert rewritten(on_policy, tmp_path / "f", ran.filter(pl.col("request") != 8)) == ["1 requests have no block"]
    trimmed = ran.with_columns(num_admitted=pl.lit(2), num_accepted=pl.col("num_accepted").clip(0, 2))
    assert f"{len(ran)} blocks were trimmed although" in rewritten(on_policy, tmp_path / "g", trimmed)[-1]
    assert "trimmed" not in "".join(rewritten(on_policy, tmp_path / "h", trimmed, adaptive_verification=True))


def test_step_table_must_cover_the_blocks(on_policy: Trace, tmp_path: Path) -> None:
    frame = pl.read_parquet(on_policy.path / "blocks-00000.parquet")
    steps = frame.select(pl.col("step").unique()).sort("step")
    with pytest.raises(InputError, match=r"new/steps.parquet: step 1 of the blocks is missing"):
        write_trace(tmp_path / "new", on_policy.card, on_policy.requests, [frame], steps.filter(pl.col("step") != 1))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"step": [0, 0]}, "row 1, column step: 0 must rise"),
        ({"step": [-1, 0]}, "row 0, column step: -1 must be ≥ 0"),
        ({"step": [0, None]}, "row 1, column step: None must not be null"),
        ({"step": [0], "forward_ms": [float("nan")]}, "row 0, column forward_ms: nan must be finite"),
        ({"step": [0], "num_reqs": [-4]}, "row 0, column num_reqs: -4"),
        ({"step": [0], "mood": [1]}, "unknown column 'mood'"),
        ({"num_reqs": [1]}, "column 'step' is missing"),
    ],
)
def test_bad_step_tables(steps: dict[str, list[object]], message: str, on_policy: Trace) -> None:
    pl.DataFrame(steps).write_parquet(on_policy.path / "steps.parquet")
    with pytest.raises(InputError, match=f"steps.parquet.*{message}"):
        on_policy.steps()
