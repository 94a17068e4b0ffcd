"""The parts of an unfinished dense run."""

from __future__ import annotations

import polars as pl
import pytest

from avsim.capture.dense.parts import Parts
from avsim.errors import InputError

REQUESTS, BLOCKS = pl.DataFrame({"request": [0]}), pl.DataFrame({"position": [0, 1]})


def about(**asked):
    return {"asked": {"seed": 0} | asked, "date": "2026-01-01"}


def test_a_group_counts_once_its_request_table_is_there(tmp_path):
    parts = Parts(tmp_path / "trace")
    parts.begin(about(), resume=False)
    parts.add(0, REQUESTS, BLOCKS)
    parts.add(1, REQUESTS, pl.DataFrame())
    assert parts.done(0)
    assert parts.done(1)
    assert not parts.done(2)
    assert parts.requests(range(2)).height == 2
    assert [frame.height for frame in parts.blocks(range(2))] == [2]
    (parts.folder / "group-00000.requests.parquet").unlink()
    assert not parts.done(0)
    parts.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_only_if_asked_for_in_the_same_words(tmp_path):
    parts = Parts(tmp_path / "trace")
    parts.begin(about(), resume=True)
    with pytest.raises(InputError, match=r"trace.partial: an unfinished run is there; pass --resume"):
        parts.begin(about(), resume=False)
    with pytest.raises(InputError, match="has seed 0, not 1"):
        parts.begin(about(seed=1), resume=True)
    assert parts.begin(about() | {"date": "2027-01-01"}, resume=True)["date"] == "2026-01-01"


def test_a_broken_run_file_is_named(tmp_path):
    parts = Parts(tmp_path / "trace")
    parts.begin(about(), resume=False)
    (parts.folder / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run.json: cannot be used"):
        parts.begin(about(), resume=True)
