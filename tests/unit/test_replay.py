"""The open loop against a slow one that keeps its memory in dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from avsim import estimators, policies
from avsim.costs import CostModel
from avsim.derive import derive_on_policy
from avsim.errors import InputError
from avsim.estimators.base import advance
from avsim.policies.base import StepBatch
from avsim.replay import replay
from avsim.simulate import Arm
from avsim.sources import Trace, TraceCard, write_trace
from avsim.types import Observations


@pytest.fixture(scope="module")
def derived(greedy: Trace, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return derive_on_policy(greedy, tmp_path_factory.mktemp("derived") / "trace", policies.FixedDepth(k=5), 8)


@pytest.fixture(scope="module")
def patchy(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Requests that come, go, and are left out of steps now and then, even across refits."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    position: dict[int, int] = dict.fromkeys(range(12), 0)
    for step in range(3, 90):
        for request in sorted(rng.choice(12, size=rng.integers(1, 9), replace=False)):
            if position[request] > 190 or step % 31 == 0:
                continue
            accepted = int(rng.integers(0, 4))
            odds = {f"log_odds_{slot}": float(rng.normal()) for slot in range(3)}
            verdict = {"num_drafted": 3, "num_admitted": 3, "num_accepted": accepted}
            rows.append({"step": step, "request": int(request), "position": position[request]} | verdict | odds)
            position[request] += accepted + 1
    requests = pl.DataFrame(
        {
            "request": range(12),
            "source": range(12),
            "prompt_len": [5] * 12,
            "output_len": [200] * 12,
            "temperature": 0.0,
        }
    )
    card = TraceCard(
        name="synthetic-patchy",
        kind="on-policy",
        target="t",
        drafter="d",
        drafter_kind="synthetic",
        num_speculative_tokens=3,
        draft_sampling="greedy",
        acceptance_rule="standard",
        temperature=0.0,
        synthetic=True,
        complete_blocks=True,
    )
    schema = {f"log_odds_{slot}": pl.Float32 for slot in range(3)}
    frame = pl.DataFrame(rows).with_columns(pl.col(name).cast(dtype) for name, dtype in schema.items())
    return write_trace(tmp_path_factory.mktemp("patchy") / "trace", card, requests, [frame])


def slow(trace: Trace, arm: Arm, cost: CostModel) -> tuple[np.ndarray, dict[str, Any]]:
    """Replay one step at a time; returns (admitted per block, final coefficients)."""
    assert arm.estimator is not None
    blocks, slots = trace.blocks(["log_odds"]), trace.card.num_speculative_tokens
    assert blocks.step is not None
    interval = arm.estimator.refit_interval
    state = arm.estimator.start(slots)
    steps = range(blocks.step[0] // interval * interval, int(blocks.step[-1]) + 1)
    params_at: dict[int, Any] = {}
    last: dict[int, tuple[int, np.ndarray]] = {}
    admitted = np.zeros(len(blocks), dtype=np.int64)
    tables = cost.tables(64, 1024)
    for step in steps:
        params_at[step] = state.params
        rows = np.flatnonzero(blocks.step == step)
        seen = None
        if len(rows):
            live = np.empty((slots, len(rows)), dtype=np.float32)
            sizing = np.empty_like(live)
            for column, row in enumerate(rows):
                request = int(blocks.request[row])
                drafted_after = last[request][0] if request in last else step - 1
                # Drafted right after its last verification, with the coefficients of that moment.
                params = params_at[max(drafted_after + 1, steps[0])]
                features = {"log_odds": blocks.features["log_odds"][:, row : row + 1]}
                live[:, column] = arm.estimator.predict(params, features, (slots, 1))[:, 0]
                if request not in last:
                    sizing[:, column] = 1
                elif arm.lag == 0 or drafted_after < step - 1:
                    sizing[:, column] = live[:, column]
                else:
                    sizing[:, column] = last[request][1]
            count = np.array([len(rows)])
            batch = StepBatch(
                live[:, None], sizing[:, None], np.full((1, len(rows)), slots), count, count, count, tables
            )
            admitted[rows] = arm.policy.admit(batch)[0]
            accepted = np.minimum(blocks.num_accepted[rows], admitted[rows])
            features = {"log_odds": blocks.features["log_odds"][:, rows]}
            seen = Observations.grade(features, live, admitted[rows], accepted, np.array([0, len(rows)]))
            for column, row in enumerate(rows):
                last[int(blocks.request[row])] = (step, live[:, column])
        state = advance(arm.estimator, state, seen, 1)
    return admitted, {name: np.asarray(value).tolist() for name, value in state.params.items()}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("policy", ["adaptive", "prefix-scheduler"])
def test_equals_a_step_by_step_replay(patchy: Trace, policy: str, lag: int, b300: CostModel) -> None:
    arm = Arm(policies.make(policy), estimators.make("online-logistic:refit_interval=10"), lag=lag)
    fast = replay(patchy, [arm], b300)[0]
    admitted, coefficients = slow(patchy, arm, b300)
    assert fast.sums[3].sum() == admitted.sum()
    unit = patchy.blocks().request
    np.testing.assert_array_equal(fast.sums[3], np.bincount(unit, admitted))
    assert fast.state is not None
    for name, values in coefficients.items():
        np.testing.assert_allclose(fast.state.params[name], values, rtol=1e-5)


@pytest.mark.parametrize("min_rows", [1, 50, 1000])
def test_pieces_of_any_size_give_the_same(derived: Trace, min_rows: int, b300: CostModel) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    whole, pieces = (replay(derived, [arm], b300, min_rows=rows)[0] for rows in (1 << 19, min_rows))
    np.testing.assert_array_equal(whole.sums, pieces.sums)
    assert whole.state is not None
    assert pieces.state is not None
    assert whole.state.to_json() == pieces.state.to_json()


def test_the_recorded_policy_gives_the_recorded_counts(derived: Trace, greedy: Trace, b300: CostModel) -> None:
    sums = replay(derived, [Arm(policies.make("fixed:5"))], b300)[0].sums.sum(axis=1)
    _, blocks, drafted, _, accepted, emitted, _ = sums
    assert (blocks, accepted) == (5752, 3173)
    assert drafted == 5 * 5752
    assert emitted == (greedy.requests["output_len"] - 1).sum()


def test_warm_steps_are_learned_from_but_not_counted(derived: Trace, b300: CostModel) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    cold, warm = (replay(derived, [arm], b300, warm_refits=refits)[0] for refits in (0, 3))
    assert warm.sums[0].sum() < cold.sums[0].sum()
    assert warm.state is not None
    assert cold.state is not None
    assert warm.state.to_json() == cold.state.to_json()
    with pytest.raises(InputError, match="warm-refits"):
        replay(derived, [arm], b300, warm_refits=50)


def test_bad_arguments_are_named(greedy: Trace, derived: Trace, b300: CostModel) -> None:
    with pytest.raises(InputError, match="closed loop"):
        replay(greedy, [Arm(policies.make("none"))], b300)
    with pytest.raises(InputError, match="lag 0 and 1"):
        replay(derived, [Arm(policies.make("none"), lag=2)], b300)
