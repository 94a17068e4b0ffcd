from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, open_trace, validate_trace, write_trace


def blocks_of(trace: Trace) -> pl.DataFrame:
    return pl.read_parquet(trace.path / "blocks-00000.parquet")


def test_what_is_written_is_valid_and_counted(dense: Trace) -> None:
    assert dense.card.num_blocks == 40
    assert dense.card.num_requests == 5
    assert dense.card.recorded == ("log_odds",)
    assert validate_trace(dense.path) == ["the trace is synthetic: results hold for its law only"]


def test_refuses_to_overwrite_unless_asked(dense: Trace) -> None:
    before = dense.card.content_hash
    frame = blocks_of(dense).with_columns(pl.lit(0.5, pl.Float32).alias("log_odds_0"))
    with pytest.raises(InputError, match="the trace exists"):
        write_trace(dense.path, dense.card, dense.requests, [frame])
    assert open_trace(dense.path).card.content_hash == before
    write_trace(dense.path, dense.card, dense.requests, [frame], overwrite=True)
    assert open_trace(dense.path).card.content_hash != before
    assert validate_trace(dense.path)
    assert [path.name for path in dense.path.parent.iterdir()] == ["dense"]


def test_never_replaces_what_is_no_trace(dense: Trace, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not a trace"):
        write_trace(tmp_path / "thesis", dense.card, dense.requests, [blocks_of(dense)], overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_crash_leaves_nothing_half_written(
    error: type[BaseException], overwrite: bool, dense: Trace, tmp_path: Path
) -> None:
    frame = blocks_of(dense)

    def crashing() -> Iterator[pl.DataFrame]:
        yield frame[:24]
        raise error

    path = dense.path if overwrite else tmp_path / "new"
    with pytest.raises(error):
        write_trace(path, dense.card, dense.requests, crashing(), overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]
    assert validate_trace(dense.path)


def test_bad_data_is_refused_and_named_by_the_path_asked_for(dense: Trace, tmp_path: Path) -> None:
    frame = blocks_of(dense).with_columns(pl.lit(99.0, pl.Float32).alias("log_odds_0"))
    with pytest.raises(InputError, match=r"^\S*/new/blocks-00000.parquet row 0, column log_odds_0: 99.0"):
        write_trace(tmp_path / "new", dense.card, dense.requests, [frame])
    assert not (tmp_path / "new").exists()


def test_values_of_slots_that_were_not_drafted_are_dropped(dense: Trace, tmp_path: Path) -> None:
    frame = blocks_of(dense).with_columns(
        pl.lit(2).alias("num_drafted"), pl.lit(2).alias("num_admitted"), pl.col("num_accepted").clip(0, 2)
    )
    short = write_trace(tmp_path / "short", dense.card, dense.requests, [frame])
    assert blocks_of(short)["log_odds_2"].is_nan().all()
    assert not blocks_of(short)["log_odds_1"].is_nan().any()


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "no blocks to write"),
        (["empty"], "no blocks to write"),
        (["whole", "without"], "pieces differ in their columns: log_odds_"),
        (["text"], "cannot be written"),
        (["big"], "cannot be written"),
    ],
)
def test_refuses_bad_pieces(frames: list[str], message: str, dense: Trace, tmp_path: Path) -> None:
    frame = blocks_of(dense)
    pieces = {
        "whole": frame[:24],
        "empty": frame[:0],
        "without": frame[24:].drop("log_odds_0", "log_odds_1", "log_odds_2"),
        "text": frame.with_columns(pl.lit("x").alias("mask").cast(pl.Categorical), pl.lit(1 << 40).alias("position")),
        "big": frame.with_columns(pl.lit(1 << 20).alias("num_drafted")),
    }
    with pytest.raises(InputError, match=message):
        write_trace(tmp_path / "new", dense.card, dense.requests, [pieces[name] for name in frames])
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_an_unwritable_place_is_one_line(dense: Trace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(tmp_path / "file" / "new", dense.card, dense.requests, [blocks_of(dense)])
