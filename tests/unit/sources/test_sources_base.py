from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from avsim.sources import Trace, open_trace, write_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.types import Blocks


def assert_same(left: Blocks, right: Blocks) -> None:
    for field in dataclasses.fields(Blocks):
        if field.name != "features":
            np.testing.assert_array_equal(getattr(left, field.name), getattr(right, field.name), strict=True)
    assert left.features.keys() == right.features.keys()
    for name, values in left.features.items():
        np.testing.assert_array_equal(values, right.features[name], strict=True)


def joined(pieces: list[Blocks]) -> Blocks:
    arrays = {
        field.name: np.concatenate([getattr(piece, field.name) for piece in pieces])
        for field in dataclasses.fields(Blocks)
        if field.name not in ("features", "unfit")
    }
    features = {name: np.concatenate([piece.features[name] for piece in pieces], axis=1) for name in pieces[0].features}
    return Blocks(**arrays, features=features)


def test_dtypes_and_shapes(on_policy: Trace) -> None:
    blocks = on_policy.blocks(("log_odds",))
    assert blocks.features["log_odds"].shape == (3, len(blocks))
    assert blocks.features["log_odds"].dtype == np.float32
    assert blocks.unfit is None
    assert blocks.step is not None
    for array in (blocks.request, blocks.position, blocks.step, blocks.num_drafted, blocks.num_accepted):
        assert array.dtype == np.int64


def test_num_slots_cuts_counts_and_features(dense: Trace) -> None:
    whole, cut = dense.blocks(("log_odds",)), dense.blocks(("log_odds",), num_slots=2)
    np.testing.assert_array_equal(cut.features["log_odds"], whole.features["log_odds"][:2])
    for name in ("num_drafted", "num_admitted", "num_accepted"):
        np.testing.assert_array_equal(getattr(cut, name), np.minimum(getattr(whole, name), 2))
    assert whole.num_accepted.max() == 3, "the cut must have something to cut"


@pytest.mark.parametrize("chunk_rows", [1, 4, 7, 1 << 17])
@pytest.mark.parametrize("min_rows", [0, 1, 2, 5, 16, 33, 1 << 19])
def test_pieces_hold_whole_steps_and_lose_nothing(
    chunk_rows: int, min_rows: int, on_policy: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = on_policy.blocks(("log_odds",))
    monkeypatch.setattr("avsim.sources.parquet.CHUNK_ROWS", chunk_rows)
    pieces = list(on_policy.iter_blocks(("log_odds",), min_rows=min_rows))
    assert_same(joined(pieces), whole)
    assert all(len(piece) >= max(min_rows, 1) for piece in pieces[:-1])
    for before, after in itertools.pairwise(pieces):
        assert before.step is not None
        assert after.step is not None
        assert before.step[-1] < after.step[0]
    if min_rows <= 5:
        assert len(pieces) > 4


def test_many_files_read_as_one(on_policy: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = on_policy.blocks(("log_odds",))
    monkeypatch.setattr("avsim.sources.writer.PART_ROWS", 10)
    frames = [pl.read_parquet(on_policy.path / "blocks-00000.parquet")]
    split = write_trace(tmp_path / "split", on_policy.card, on_policy.requests, frames)
    assert len(split.parts) == -(-len(whole) // 10)
    assert split.card.content_hash == on_policy.card.content_hash
    assert_same(split.blocks(("log_odds",)), whole)
    assert_same(joined(list(split.iter_blocks(("log_odds",), min_rows=4))), whole)


def test_request_is_the_row_of_the_table_whatever_the_ids(dense: Trace, tmp_path: Path) -> None:
    ids = [40, 7, 1000, -3, 5]
    requests = dense.requests.with_columns(request=pl.Series(ids))
    frame = pl.read_parquet(dense.path / "blocks-00000.parquet")
    frame = frame.with_columns(request=pl.Series(np.array(ids)[frame["request"].to_numpy()]))
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=1)
    renamed = write_trace(tmp_path / "renamed", dense.card, requests, [shuffled])
    assert_same(renamed.blocks(("log_odds",)), dense.blocks(("log_odds",)))


@pytest.mark.parametrize("left", [7.0, None, float("inf")])
def test_slots_that_were_not_drafted_read_as_nan(left: float | None, dense: Trace) -> None:
    file = dense.path / "blocks-00000.parquet"
    frame = pl.read_parquet(file).with_columns(
        pl.lit(2).alias("num_drafted"),
        pl.lit(2).alias("num_admitted"),
        pl.col("num_accepted").clip(0, 2),
        pl.lit(left, pl.Float32).alias("log_odds_2"),
    )
    frame.write_parquet(file)
    values = open_trace(dense.path).blocks(("log_odds",)).features["log_odds"]
    assert np.isnan(values[2]).all()
    assert not np.isnan(values[:2]).any()


def test_mask_marks_unfit_blocks(dense: Trace, tmp_path: Path) -> None:
    frame = pl.read_parquet(dense.path / "blocks-00000.parquet")
    reasons = pl.Series("mask", [None] * 39 + ["grammar"], dtype=pl.Categorical)
    masked = write_trace(tmp_path / "masked", dense.card, dense.requests, [frame.with_columns(reasons)])
    unfit = masked.blocks().unfit
    assert unfit is not None
    assert unfit.tolist() == [False] * 39 + [True]


def test_steps_table(on_policy: Trace, tmp_path: Path) -> None:
    assert on_policy.steps() is None
    frame = pl.read_parquet(on_policy.path / "blocks-00000.parquet")
    steps = frame.group_by("step").len("num_reqs").sort("step").with_columns(forward_ms=pl.lit(2.5))
    timed = write_trace(tmp_path / "timed", on_policy.card, on_policy.requests, [frame], steps)
    found = timed.steps()
    assert found is not None
    assert found["num_reqs"].to_list() == steps["num_reqs"].to_list()
    assert found["drafter_ms"].null_count() == len(steps)


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_write_then_read_gives_back_every_value(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    num_slots = data.draw(st.integers(1, 4), label="K")
    lengths = data.draw(
        st.lists(st.integers(1, 6), min_size=1, max_size=5).filter(lambda v: max(v) > 1), label="lengths"
    )
    request = [r for r, length in enumerate(lengths) for _ in range(length - 1)]
    drafted = [data.draw(st.integers(0, num_slots)) for _ in request]
    accepted = [data.draw(st.integers(0, count)) for count in drafted]
    odds = st.floats(-40, 40, width=32)
    values = [[data.draw(odds) if slot < count else None for slot in range(num_slots)] for count in drafted]
    frame = pl.DataFrame(
        {
            "request": request,
            "position": [p for length in lengths for p in range(length - 1)],
            "num_drafted": drafted,
            "num_admitted": drafted,
            "num_accepted": accepted,
        }
        | {f"log_odds_{k}": pl.Series([row[k] for row in values], dtype=pl.Float32) for k in range(num_slots)}
    )
    law = SyntheticLaw(num_requests=len(lengths), num_speculative_tokens=num_slots)
    requests = law.requests().with_columns(output_len=pl.Series(lengths))
    path = tmp_path_factory.mktemp("round") / "trip"
    write_trace(path, law.card(), requests, [frame])
    blocks = open_trace(path).blocks(("log_odds",))
    assert blocks.request.tolist() == request
    assert blocks.position.tolist() == frame["position"].to_list()
    assert blocks.num_drafted.tolist() == drafted
    assert blocks.num_accepted.tolist() == accepted
    expected = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=np.float32).T
    np.testing.assert_array_equal(blocks.features["log_odds"], expected)


@given(
    requests=st.integers(1, 12),
    output_len=st.integers(2, 30),
    num_reqs=st.integers(1, 12),
    chunk_rows=st.integers(1, 40),
    min_rows=st.integers(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_streamed_is_whole(
    requests: int,
    output_len: int,
    num_reqs: int,
    chunk_rows: int,
    min_rows: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    law = SyntheticLaw(
        kind="on-policy", num_requests=requests, output_len=output_len, num_reqs=min(num_reqs, requests), request_sd=1.0
    )
    trace = write_synthetic(tmp_path_factory.mktemp("stream") / "trace", law)
    whole = trace.blocks(("log_odds",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("avsim.sources.parquet.CHUNK_ROWS", chunk_rows)
        assert_same(joined(list(trace.iter_blocks(("log_odds",), min_rows=min_rows))), whole)
