"""The closed loop: published walks, SpecDecode-Bench's speedups, and identities."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.costs import CostModel, StepShape, load
from avsim.errors import InputError
from avsim.estimators import advance
from avsim.policies import StepBatch
from avsim.simulate import Arm, simulate
from avsim.sources import Trace
from avsim.sources.importers import import_trace
from avsim.types import Observations
from avsim.workload import Pool, request_sequences


def everyone(pool: Pool, minimum: int = 1, seed: int = 0) -> np.ndarray:
    return request_sequences([np.arange(len(pool.start))], minimum, [[seed]])


@pytest.mark.parametrize(
    ("name", "k", "blocks", "accepted"),
    [("greedy", 4, 5788, 3136), ("greedy", 5, 5752, 3173), ("sampled", 4, 5793, 3059)],
)
def test_the_seed_trace_walks_as_its_readme_says(
    name: str, k: int, blocks: int, accepted: int, request: pytest.FixtureRequest, b300: CostModel
) -> None:
    pool = Pool.from_trace(request.getfixturevalue(name), num_slots=k)
    whole = simulate(pool, Arm(policies.make(f"fixed:{k}")), everyone(pool), 1, b300).whole
    assert (whole.blocks[0], whole.accepted[0]) == (blocks, accepted)
    assert whole.emitted[0] == (pool.output_len - 1).sum()


@pytest.mark.parametrize("dataset", ["gsm8k", "cnn"])
def test_v15_specdecode_bench_speedups(dataset: str, reference: Path, tmp_path: Path) -> None:
    """V15: 24 cells within 0.01 %, batching as copies of one request."""
    source = reference / "reference/specdecode_bench" / f"{dataset}.jsonl"
    pool = Pool.from_trace(import_trace("specdecode-bench:drafter=eagle", source, tmp_path / "trace"))
    cost = load("llama-3.1-8b-h100-eagle")
    one_each = np.arange(len(pool.start))[:, None]
    with (reference / "reference/specdecode_bench_speedups.csv").open() as file:
        cells = [row for row in csv.DictReader(file) if row["dataset"] == dataset]
    assert len(cells) == 12
    throughput: dict[tuple[str, int], float] = {}
    for copies in (1, 8, 64):
        for policy in ("none", "fixed:1", "fixed:3", "fixed:5", "oracle:exact"):
            arm = Arm(policies.make(policy))
            result = simulate(pool, arm, one_each, 1, cost, prompts="own-step", copies=copies)
            throughput[policy, copies] = result.whole.throughput_tok_s.mean()
    for cell in cells:
        copies = int(cell["batch_size"])
        policy = "oracle:exact" if cell["policy"] == "oracle" else cell["policy"]
        speedup = throughput[policy, copies] / throughput["none", copies]
        assert speedup == pytest.approx(float(cell["throughput_speedup"]), rel=1e-4), cell


@pytest.mark.parametrize("policy", ["none", "fixed:2", "adaptive", "prefix-scheduler", "oracle", "oracle:exact"])
@pytest.mark.parametrize("concurrency", [1, 7])
def test_every_token_is_emitted_once(policy: str, concurrency: int, greedy_pool: Pool, b300: CostModel) -> None:
    arm = Arm(policies.make(policy), estimators.make("online-logistic"))
    some = np.arange(16)
    result = simulate(greedy_pool, arm, request_sequences([some], 1, [[0]]), concurrency, b300, log=True)
    whole, log = result.whole, result.log
    assert log is not None
    assert whole.emitted[0] == (greedy_pool.output_len[some] - 1).sum()
    assert whole.ms[0] == pytest.approx(sum(log.ms))
    assert whole.accepted[0] <= whole.admitted[0] <= whole.drafted[0]
    assert len(np.concatenate(log.tpot_ms)) == len(some)
    assert result.full.steps[0] <= whole.steps[0]
    if policy == "oracle:exact":
        assert whole.accepted[0] == whole.admitted[0]


def test_prompts_in_steps_of_their_own_bring_the_first_tokens(greedy_pool: Pool, b300: CostModel) -> None:
    """They belong to the whole run, not to the steps with every seat taken, and take their time."""
    arm, some = Arm(policies.make("none")), np.arange(5)
    own, free = (simulate(greedy_pool, arm, some[None], 1, b300, prompts=kind) for kind in ("own-step", "free"))
    assert own.whole.first_tokens[0] == len(some)
    assert own.whole.emitted[0] == free.whole.emitted[0] + len(some) == greedy_pool.output_len[some].sum()
    assert own.full.emitted[0] == free.full.emitted[0]
    prompts = greedy_pool.prompt_len[some]
    shape = StepShape(np.ones(5, dtype=np.int64), prompts, np.zeros(5), prompts, logits=np.ones(5, dtype=np.int64))
    prefill = b300.step_ms(shape, drafting=False)
    assert own.whole.ms[0] == pytest.approx(free.whole.ms[0] + prefill.sum())


def test_plain_decoding_has_a_closed_form(greedy_pool: Pool, b300: CostModel) -> None:
    whole = simulate(greedy_pool, Arm(policies.make("none")), everyone(greedy_pool), 1, b300).whole
    tokens = (greedy_pool.output_len - 1).sum()
    assert whole.ms[0] == pytest.approx(tokens * 5.109)  # V[1] of the published curve


def test_copies_equal_real_copies(greedy_pool: Pool, b300: CostModel) -> None:
    """Four copies counted as one row cost and emit what four rows in lockstep do."""
    arm = Arm(policies.make("fixed:3"))
    one = np.array([[5]])
    folded = simulate(greedy_pool, arm, one, 1, b300, copies=4).whole
    unfolded = simulate(greedy_pool, arm, np.array([[5, 5, 5, 5]]), 4, b300).whole
    for name in ("steps", "blocks", "admitted", "accepted", "emitted"):
        assert getattr(folded, name)[0] == getattr(unfolded, name)[0], name
    assert folded.ms[0] == pytest.approx(unfolded.ms[0])


def test_runs_in_lockstep_are_independent(greedy_pool: Pool, b300: CostModel) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic:refit_interval=20"))
    everything = np.arange(len(greedy_pool.start))
    samples = [everything, everything[:9], everything[30:50]]
    seeds = [[1], [2], [3]]
    together = simulate(greedy_pool, arm, request_sequences(samples, 24, seeds), 3, b300)
    for run, (sample, seed) in enumerate(zip(samples, seeds, strict=True)):
        alone = simulate(greedy_pool, arm, request_sequences([sample], 24, [seed]), 3, b300)
        assert together.whole.ms[run] == pytest.approx(alone.whole.ms[0], rel=1e-12)
        for name in ("steps", "admitted", "accepted", "emitted"):
            assert getattr(together.whole, name)[run] == getattr(alone.whole, name)[0], name


def test_tabulating_confidences_changes_nothing(
    greedy_pool: Pool, b300: CostModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from avsim import confidence

    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic:refit_interval=20"))
    sequences = everyone(greedy_pool)
    tabulated = simulate(greedy_pool, arm, sequences, 4, b300)
    original = confidence.ClosedLoopConfidence.__init__

    def direct(self: confidence.ClosedLoopConfidence, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._tabulate = False

    monkeypatch.setattr(confidence.ClosedLoopConfidence, "__init__", direct)
    predicted = simulate(greedy_pool, arm, sequences, 4, b300)
    assert predicted.whole.ms[0] == tabulated.whole.ms[0]
    assert predicted.states[0].to_json() == tabulated.states[0].to_json()


def test_the_first_block_is_sized_at_one(greedy_pool: Pool) -> None:
    """With confidences of 1 a budget grows to the next capture size; afterwards the estimator has its say."""
    from tests.steps import recording_policy

    policy, seen = recording_policy()
    arm = Arm(policy, estimators.make("raw-confidence"))
    simulate(greedy_pool, arm, everyone(greedy_pool), 2, load("deepseek-v4-flash-tp4-b300"), max_steps=3)
    assert (seen[0].sizing == 1).all()
    np.testing.assert_array_equal(seen[1].sizing, seen[0].live)
    np.testing.assert_array_equal(seen[2].sizing, seen[1].live)


@pytest.mark.parametrize("lag", [0, 2])
def test_lag_is_the_age_of_the_sizing_confidences(lag: int, greedy_pool: Pool, b300: CostModel) -> None:
    from tests.steps import recording_policy

    policy, seen = recording_policy()
    arm = Arm(policy, estimators.make("raw-confidence"), lag=lag)
    simulate(greedy_pool, arm, everyone(greedy_pool), 2, b300, max_steps=5)
    if lag:
        assert (seen[0].sizing == 1).all()
        assert (seen[1].sizing == 1).all()
    for step in range(lag, 5):
        np.testing.assert_array_equal(seen[step].sizing, seen[step - lag].live)


def test_belief_moves_decisions_and_truth_moves_the_clock(greedy_pool: Pool, b300: CostModel) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    sequences, other = everyone(greedy_pool, 32), load("llama-3.1-8b-h100-eagle")
    same = simulate(greedy_pool, arm, sequences, 4, b300)
    misled = simulate(greedy_pool, arm, sequences, 4, b300, belief=other)
    reclocked = simulate(greedy_pool, arm, sequences, 4, other, belief=b300)
    assert misled.whole.admitted[0] != same.whole.admitted[0]
    assert reclocked.whole.admitted[0] == same.whole.admitted[0]
    assert reclocked.whole.ms[0] != same.whole.ms[0]


def test_the_logit_limit_binds(greedy_pool: Pool, b300: CostModel) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    result = simulate(greedy_pool, arm, everyone(greedy_pool, 128), 16, b300, max_total_logits=20, log=True)
    assert result.log is not None
    rows = [(active.sum(), step.sum()) for active, step in zip(result.log.active, result.log.admitted, strict=True)]
    assert all(verified <= 20 - num_reqs for num_reqs, verified in rows)
    assert any(verified == 4 for num_reqs, verified in rows if num_reqs == 16)


def test_bad_arguments_are_named(greedy_pool: Pool, b300: CostModel, greedy: Trace) -> None:
    adaptive = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    with pytest.raises(InputError, match="at least 1, not 0"):
        simulate(greedy_pool, adaptive, everyone(greedy_pool), 0, b300)
    with pytest.raises(InputError, match="copies > 1"):
        simulate(greedy_pool, adaptive, everyone(greedy_pool), 1, b300, copies=2)
    with pytest.raises(InputError, match="needs an estimator"):
        Arm(policies.make("adaptive"))
    with pytest.raises(InputError, match="holds K = 5"):
        simulate(greedy_pool, Arm(policies.make("fixed:7")), everyone(greedy_pool), 1, b300)


def slow_closed_loop(
    pool: Pool, arm: Arm, order: list[int], concurrency: int, cost: CostModel
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """One run, one step and one request at a time; returns (totals, final coefficients)."""
    assert arm.estimator is not None
    slots, state = pool.num_slots, arm.estimator.start(pool.num_slots)
    tables = cost.tables(concurrency, concurrency * (slots + 1))
    waiting = list(order)
    totals: dict[str, float] = {"steps": 0, "admitted": 0, "accepted": 0, "emitted": 0, "ms": 0.0}

    def seat_next() -> dict[str, Any] | None:
        return {"request": waiting.pop(0), "position": 0, "before": None} if waiting else None

    seats = [seat_next() for _ in range(concurrency)]
    while any(seats):
        taken = [seat for seat in seats if seat is not None]
        rows = np.array([pool.start[seat["request"]] + seat["position"] for seat in taken])
        features = {"log_odds": pool.features["log_odds"][:, rows]}
        live = arm.estimator.predict(state.params, features, (slots, len(rows)))
        ones = np.ones(slots, dtype=np.float32)
        sizing = np.stack([ones if seat["before"] is None else seat["before"] for seat in taken], axis=1)
        count = np.array([len(rows)])
        step = StepBatch(live[:, None], sizing[:, None], np.full((1, len(rows)), slots), count, count, count, tables)
        admitted = arm.policy.admit(step)[0]
        accepted = np.minimum(pool.num_accepted[rows], admitted)
        shape = StepShape(count, count + admitted.sum(), np.zeros(1), np.zeros(1, dtype=np.int64))
        totals["ms"] += float(cost.step_ms(shape, drafting=True)[0])
        totals["steps"] += 1
        totals["admitted"] += int(admitted.sum())
        totals["accepted"] += int(accepted.sum())
        known = np.minimum(admitted, pool.num_recorded[rows])
        seen = Observations.grade(features, live, known, accepted, np.array([0, len(rows)]))
        state = advance(arm.estimator, state, seen, 1)
        for column, seat in enumerate(taken):
            last = pool.output_len[seat["request"]] - 1
            emitted = min(int(accepted[column]) + 1, last - seat["position"])
            totals["emitted"] += emitted
            seat["position"] += emitted
            seat["before"] = live[:, column]
        for index, seat in enumerate(seats):
            if seat is not None and seat["position"] >= pool.output_len[seat["request"]] - 1:
                seats[index] = seat_next()
    return totals, {name: value.tolist() for name, value in state.params.items()}


@pytest.mark.parametrize("policy", ["adaptive", "prefix-scheduler"])
def test_equals_a_loop_of_one_request_at_a_time(policy: str, greedy_pool: Pool, b300: CostModel) -> None:
    """Down to the drained end, where fewer and fewer seats are taken."""
    arm = Arm(policies.make(policy), estimators.make("online-logistic:refit_interval=7"))
    order = [5, 9, 1, 40, 22, 13, 60, 3, 17]
    totals, coefficients = slow_closed_loop(greedy_pool, arm, order, 4, b300)
    fast = simulate(greedy_pool, arm, np.array([order]), 4, b300)
    for name, value in totals.items():
        assert getattr(fast.whole, name)[0] == pytest.approx(value, rel=1e-12), name
    for name, values in coefficients.items():
        np.testing.assert_allclose(fast.states[0].params[name], values, rtol=1e-5)
