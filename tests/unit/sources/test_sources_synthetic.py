from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avsim.errors import InputError
from avsim.features import sigmoid
from avsim.sources import validate_trace
from avsim.sources.summary import summarise
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.types import observe


def test_labels_follow_the_stated_law(tmp_path: Path) -> None:
    law = SyntheticLaw(num_requests=400, output_len=129, intercept=0.3, intercept_step=-0.2, slope=0.7, seed=4)
    trace = write_synthetic(tmp_path / "trace", law)
    blocks = trace.blocks(("log_odds",))
    observed, label = observe(blocks.num_admitted, blocks.num_accepted, 7)
    feature = blocks.features["log_odds"]
    expected = sigmoid(0.7 * feature + 0.3 - 0.2 * np.arange(7)[:, None])
    for slot in range(7):
        rows = observed[slot]
        for low, high in ((-40, 0), (0, 2), (2, 40)):
            band = rows & (feature[slot] >= low) & (feature[slot] < high)
            p = expected[slot][band]
            error = (label[slot][band].mean() - p.mean()) / np.sqrt((p * (1 - p)).sum() / len(p) ** 2)
            assert abs(error) < 4, (slot, low)


def test_drift_switch_and_requests_shift_acceptance(tmp_path: Path) -> None:
    base = SyntheticLaw(num_requests=200, output_len=65, feature_sd=0.0, feature_mean=0.0, intercept=0.0)
    for number, (law, early, late) in enumerate(
        [
            (base, 0.5, 0.5),
            (dataclasses.replace(base, drift=2.0), sigmoid(np.array([0.25])), sigmoid(np.array([1.75]))),
            (dataclasses.replace(base, switch_at=0.5, switch_shift=-2.0), 0.5, sigmoid(np.array([-2.0]))),
        ]
    ):
        blocks = write_synthetic(tmp_path / f"trace{number}", law).blocks()
        first = blocks.num_accepted >= 1
        assert abs(first[blocks.request < 50].mean() - early) < 0.03
        assert abs(first[blocks.request >= 150].mean() - late) < 0.03
    blocks = write_synthetic(tmp_path / "mixed", dataclasses.replace(base, request_sd=2.0)).blocks()
    rates = np.bincount(blocks.request, blocks.num_accepted >= 1) / 64
    assert rates.std() > 0.25


def test_on_policy_is_the_walk_of_the_dense_trace_in_full_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avsim.sources.synthetic.BLOCK_ROWS", 100)  # several draws, so that requests span pieces
    law = SyntheticLaw(num_requests=40, output_len=33, num_reqs=8, request_sd=1.0, seed=2)
    dense = summarise(write_synthetic(tmp_path / "dense", law))
    trace = write_synthetic(tmp_path / "on-policy", dataclasses.replace(law, kind="on-policy"))
    on_policy = summarise(trace)
    assert dense.path is not None
    assert on_policy.path is None
    np.testing.assert_array_equal(on_policy.rows.accepted, dense.path.accepted)
    assert on_policy.rows.num_blocks == dense.path.num_blocks
    steps = pl.Series(trace.blocks().step).value_counts(sort=False).sort("").get_column("count").to_list()
    full = [count for count in steps if count == 8]
    assert steps[: len(full)] == full, "every step is full until requests run out"
    assert len(full) > len(steps) // 2


def test_the_same_law_gives_the_same_trace(tmp_path: Path) -> None:
    law = SyntheticLaw(num_requests=4, output_len=10)
    first, second, other = (
        write_synthetic(tmp_path / name, dataclasses.replace(law, seed=seed)).card.content_hash
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second
    assert first != other


def test_is_always_labelled_synthetic(tmp_path: Path) -> None:
    trace = write_synthetic(tmp_path / "real-traffic", SyntheticLaw(num_requests=2))
    assert trace.card.synthetic
    assert trace.card.name.startswith("synthetic-")
    assert "the trace is synthetic: results hold for its law only" in validate_trace(trace.path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_requests": 0}, "num_requests must be at least 1"),
        ({"output_len": 1}, "output_len must be at least 2"),
        ({"kind": "on-policy", "num_requests": 3, "num_reqs": 4}, "num_reqs 4 is above num_requests 3"),
        ({"seed": -1}, "seed -1"),
        ({"slope": float("nan")}, "must be finite"),
        ({"request_sd": -1.0}, "spreads and switch_at ≥ 0"),
    ],
)
def test_refuses_bad_laws(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SyntheticLaw(**options)  # type: ignore[arg-type]
