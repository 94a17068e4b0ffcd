from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace
from avsim.sources.parquet import frames, parts, reading


@pytest.mark.parametrize(
    "error",
    [
        pl.exceptions.ComputeError("bad page\nsecond line"),
        pl.exceptions.PanicException("bad page"),
        OSError("bad page"),
    ],
)
def test_every_reading_error_is_one_line(error: BaseException) -> None:
    with (
        pytest.raises(InputError, match=r"^file: cannot be read \(bad page\); copy or write") as found,
        reading(Path("file")),
    ):
        raise error
    assert "\n" not in str(found.value)


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), reading(Path("file")):
        raise KeyError


def test_files_must_agree_in_their_columns(dense: Trace) -> None:
    file = dense.path / "blocks-00000.parquet"
    pl.read_parquet(file).drop("log_odds_2").write_parquet(dense.path / "blocks-00001.parquet")
    with pytest.raises(InputError, match=r"blocks-00001.parquet: its columns differ .* \(log_odds_2\)"):
        parts(dense.path)


@pytest.mark.parametrize(("read_bytes", "chunk_rows"), [(1, 3), (4 * 7, 1), (1 << 26, 40), (1 << 26, 1000)])
def test_slices_are_the_file(read_bytes: int, chunk_rows: int, dense: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avsim.sources.parquet.READ_BYTES", read_bytes)
    monkeypatch.setattr("avsim.sources.parquet.CHUNK_ROWS", chunk_rows)
    pieces = list(frames(dense.parts[0], ["position"]))
    assert max(piece.height for piece in pieces) <= chunk_rows
    assert pl.concat(pieces).equals(pl.read_parquet(dense.parts[0].path, columns=["position"]))
