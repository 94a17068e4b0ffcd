"""avsim against a few cases that vLLM's own code decided; `tests/live/make_goldens.py` writes them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from avsim import estimators, policies
from avsim.costs import CostTables, staircase
from avsim.estimators import advance
from avsim.features import log_odds_f32
from avsim.policies import NO_LOGIT_LIMIT, StepBatch
from avsim.policies.budget import best_budget
from avsim.types import Observations

FOLDER = Path(__file__).parent / "vllm"
U = 2.0**-24


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def f32(values: Any) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def assert_same_features(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Compare Z − 1 = e^−f, whose error is that of Z: NumPy's float32 exp may differ by 4 ulp between machines.

    Z is a float32 sum of such exponentials, all positive, so 4 ulp (8 u) of each are 8 u of Z; the sum's and the
    logarithm's own roundings are the same on both sides up to 2 ulp of f, at most 40 · 4 u relative to e^−f.
    """
    rest, expected = np.exp(-ours.astype(np.float64)), np.exp(-theirs.astype(np.float64))
    assert (abs(rest - expected) <= 8 * U * (1 + expected) + 160 * U * expected).all(), (ours, theirs)
    # Float32 loses Z − 1 altogether beyond f = 16.6, and the feature then reads its bound on every machine.
    np.testing.assert_array_equal(ours[theirs == 40], 40)


def assert_same_confidence(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """σ in float32 from equal inputs: 4 ulp of the exponential, then an addition and a reciprocal, 1 ulp each."""
    np.testing.assert_allclose(ours, theirs, rtol=12 * U)


@pytest.mark.parametrize("name", ["estimator_stream", "estimator_sharp"])
@pytest.mark.parametrize("feature", ["log_odds", "log_odds_f32"])
def test_estimator(name: str, feature: str) -> None:
    """Refits of vLLM's own features and confidences are equal to the last bit, as they hold no exponential."""
    golden = load(name)
    num_slots, interval = golden["num_slots"], golden["refit_interval"]
    estimator = estimators.make(f"online-logistic:sums=float32,feature={feature},refit_interval={interval}")
    state = estimator.start(num_slots)
    features = np.zeros((golden["max_num_reqs"], num_slots), dtype=np.float32)
    confidence = features.copy()
    for step in golden["steps"]:
        slots = np.array(step["slots"])
        admitted, accepted = np.array(step["admitted"]), np.array(step["accepted"])
        columns = {feature: features[slots].T}
        rows = Observations.grade(columns, confidence[slots].T, admitted, accepted, np.array([0, len(slots)]))
        state = advance(estimator, state, rows, 1)
        assert state.params["slope"].tolist() == [step["slope"]]
        assert state.params["intercepts"].tolist() == step["intercepts"]

        features[slots], confidence[slots] = f32(step["features"]), f32(step["confidence"])
        logits = f32(step["logits"]).reshape(len(slots) * num_slots, -1)
        ours = log_odds_f32(logits, np.repeat(f32(step["temperature"]), num_slots))
        assert_same_features(ours, features[slots].ravel())
        predicted = estimator.predict(state.params, {feature: features[slots].T}, (num_slots, len(slots)))
        assert_same_confidence(predicted.T, confidence[slots])
    assert state.refits == len(golden["steps"]) // interval > 3


def test_features_over_two_vocabulary_blocks() -> None:
    golden = load("features")
    quarters = np.stack([np.frombuffer(base64.b64decode(row), dtype=np.int8) for row in golden["quarters_int8"]])
    assert quarters.shape[1] == golden["vocab"]
    logits = np.where(quarters == -128, -np.inf, quarters / 4).astype(np.float32)
    theirs = f32(golden["features"])
    assert_same_features(log_odds_f32(logits, f32(golden["temperature"])), theirs)
    assert theirs.max() == 40  # one row has a single token


def step_batch(
    step: dict[str, Any], sizing: NDArray[np.float32], live: NDArray[np.float32], limit: int, tables: CostTables
) -> StepBatch:
    """Build the batch of one step from confidences `[reqs, K]`."""
    return StepBatch(
        live=live.T[:, None],
        sizing=sizing.T[:, None],
        num_drafted=np.array([step["num_drafts"]]),
        num_reqs=np.array([len(step["num_drafts"])]),
        num_sampling=np.array([np.sum(step.get("samples", step.get("num_sampling")))]),
        num_target_tokens=np.array([np.sum(step["num_target_tokens"])]),
        tables=tables,
        max_total_logits=limit,
    )


def assert_same_decision(batch: StepBatch, budget: int, admitted: list[int]) -> None:
    """The budget always; the split except among survivals that tie with the last one admitted (see DESIGN §3)."""
    ours = policies.make("adaptive").admit(batch)[0]
    assert ours.sum() == best_budget(batch, batch.sizing)[0] == budget
    drafted = batch.num_drafted[0]
    if budget in (0, drafted.sum()):
        assert ours.tolist() == admitted
        return
    product = np.cumprod(batch.live[:, 0], axis=0, dtype=np.float64)
    valid = np.arange(len(product))[:, None] < drafted
    cut = np.sort(product[valid])[-budget]
    margin = cut * len(product) * 2 * U  # closer than the rounding of the product: tied
    surely = (valid & (product > cut + margin)).sum(axis=0)
    at_most = (valid & (product >= cut - margin)).sum(axis=0)
    assert ((ours >= surely) & (ours <= at_most)).all()
    if at_most.sum() == budget:
        assert ours.tolist() == admitted


@pytest.mark.parametrize("case", load("budget_cases")["cases"], ids=lambda case: case["name"])
def test_budget(case: dict[str, Any]) -> None:
    assert case["max_total_logits"] == max(1, 2**30 // (4 * case["vocab"]))
    tables = CostTables(np.array(case["draft_ms"]), np.array(case["verify_ms"]))
    batch = step_batch(case, f32(case["sizing"]), f32(case["live"]), case["max_total_logits"], tables)
    assert_same_decision(batch, case["budget"], case["admitted"])


def test_an_engine_with_requests_coming_waiting_and_leaving() -> None:
    """The sizing table is the live table as it stood before the last record; a new request enters both at 1.0."""
    golden = load("budget_engine")
    tables = CostTables(np.array(golden["draft_ms"]), np.array(golden["verify_ms"]))
    live = np.full((golden["max_num_reqs"], golden["num_slots"]), np.nan, dtype=np.float32)
    sizing = live.copy()
    trimmed = 0
    for step in golden["steps"]:
        live[step["added"]] = sizing[step["added"]] = 1.0
        slots = step["slots"]
        np.testing.assert_array_equal(sizing[slots], f32(step["sizing"]))
        np.testing.assert_array_equal(live[slots], f32(step["live"]))
        if "budget" in step:
            batch = step_batch(step, sizing[slots], live[slots], NO_LOGIT_LIMIT, tables)
            assert_same_decision(batch, step["budget"], step["admitted"])
            trimmed += step["budget"] < sum(step["num_drafts"])
        sizing = live.copy()
        live[slots] = f32(step["drafted"])
    assert trimmed > 5


@pytest.mark.parametrize("case", load("cost_tables")["cases"], ids=lambda case: f"limit-{case['capture_limit']}")
def test_cost_tables(case: dict[str, Any]) -> None:
    for name, floor in (("draft", 0.0), ("verify", 1e-6)):
        expected = case[f"{name}_ms"]
        ours = np.maximum(staircase(len(expected) - 1, case[name], case["capture_limit"]), floor)
        assert ours.tolist() == expected


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_each_golden_says_where_it_comes_from(path: Path) -> None:
    golden = load(path.stem)
    assert golden["vllm_version"] == "0.33.0"
    assert len(golden["source_sha256"]) == 64
    assert path.stat().st_size < 200_000
