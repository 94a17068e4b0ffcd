from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avsim.errors import InputError
from avsim.features import sigmoid
from avsim.sources import Trace, validate_trace
from avsim.sources.lengths import Fixed, Geometric, LogNormal, Uniform
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


def counts_of(trace: Trace) -> np.ndarray:
    return np.bincount(trace.blocks().request, minlength=trace.card.num_requests)


@pytest.mark.parametrize("rows", [1 << 18, 50])
def test_requests_of_drawn_lengths_have_a_block_at_every_position(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avsim.sources.synthetic.BLOCK_ROWS", rows)
    law = SyntheticLaw(
        num_requests=60, output_len=LogNormal(mean=30, sigma=0.8, max=70), prompt_len=Uniform(low=5, high=40), seed=3
    )
    trace = write_synthetic(tmp_path / "dense", law)
    assert validate_trace(trace.path) == ["the trace is synthetic: results hold for its law only"]
    requests = trace.requests
    np.testing.assert_array_equal(counts_of(trace), requests["output_len"].to_numpy() - 1)
    drawn = requests["output_len"].to_numpy()
    assert len(set(drawn)) > 20
    assert (drawn.min() >= 2) & (drawn.max() == 70)
    assert requests["prompt_len"].n_unique() > 15
    assert abs(np.corrcoef(drawn, requests["prompt_len"].to_numpy())[0, 1]) < 0.5  # draws of their own
    said = f"(drawn: mean {drawn.mean():.1f}, {drawn.min()} to 70, {(drawn == 70).sum()} of max)"
    assert f"output_len~lognormal:mean=30,sigma=0.8,max=70 {said}" in trace.card.notes
    assert "prompt_len~uniform:low=5,high=40 (drawn: mean " in trace.card.notes


def test_an_on_policy_trace_of_drawn_lengths_keeps_its_batches_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avsim.sources.synthetic.BLOCK_ROWS", 100)
    law = SyntheticLaw(num_requests=60, output_len=Geometric(mean=25.0), num_reqs=6, request_sd=1.0, seed=2)
    dense = summarise(write_synthetic(tmp_path / "dense", law))
    trace = write_synthetic(tmp_path / "on-policy", dataclasses.replace(law, kind="on-policy"))
    assert "the trace is synthetic: results hold for its law only" in validate_trace(trace.path)
    assert dense.path is not None
    np.testing.assert_array_equal(summarise(trace).rows.accepted, dense.path.accepted)
    steps = pl.Series(trace.blocks().step).value_counts(sort=False).sort("").get_column("count").to_list()
    full = [count for count in steps if count == 6]
    assert steps[: len(full)] == full, "every step is full until requests run out"
    assert len(full) > len(steps) // 2


def test_lengths_change_nothing_in_the_blocks(tmp_path: Path) -> None:
    """A fixed length is the number alone, and prompts are drawn apart."""
    law = SyntheticLaw(num_requests=9, output_len=12, seed=5)
    plain, named, longer = (
        write_synthetic(tmp_path / name, dataclasses.replace(law, **changed))
        for name, changed in (
            ("a", {}), ("b", {"output_len": Fixed(12)}), ("c", {"prompt_len": LogNormal(mean=500.0, sigma=1.0)}),
        )
    )  # fmt: skip
    assert plain.card == named.card
    assert "output_len=12; prompt_len=64" in plain.card.notes
    np.testing.assert_array_equal(
        plain.blocks(("log_odds",)).features["log_odds"], longer.blocks(("log_odds",)).features["log_odds"]
    )
    assert longer.requests["prompt_len"].n_unique() > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_requests": 0}, "num_requests must be at least 1"),
        ({"output_len": 1}, "output_len: fixed: tokens must be at least 2 here, not 1"),
        ({"prompt_len": -1}, "prompt_len: fixed: tokens must be at least 0 here, not -1"),
        ({"output_len": Uniform(low=1, high=9)}, "output_len: uniform: low must be at least 2 here, not 1"),
        ({"kind": "on-policy", "num_requests": 3, "num_reqs": 4}, "num_reqs 4 is above num_requests 3"),
        ({"seed": -1}, "seed -1"),
        ({"slope": float("nan")}, "must be finite"),
        ({"request_sd": -1.0}, "spreads and switch_at ≥ 0"),
    ],
)
def test_refuses_bad_laws(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SyntheticLaw(**options)  # type: ignore[arg-type]
