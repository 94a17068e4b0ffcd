"""What an estimator is worth: regrets against brute force, throughput rows, and the ladder down from the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.comparison.decisions import RUNGS, Bench, explain, throughput_rows
from avsim.comparison.walk import Table
from avsim.costs import CostModel, StepShape
from avsim.costs.base import CostCard
from avsim.costs.linear import LinearCost
from avsim.errors import InputError
from avsim.estimators import Arrays, OnlineLogistic, PositionRate, TemperatureOffline
from avsim.metrics.savings import Path, flatten_log, step_regret_pct, step_regrets_pct
from avsim.simulate import Arm, simulate
from avsim.sources import Trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.types import Observations
from avsim.workload import Pool, request_sequences

K, LOAD = 3, 4
STEEP = LinearCost(
    fixed_ms=2.0, per_token_us=500.0, draft_fixed_ms=0.4, card=CostCard("steep", "", "", "synthetic", "a test")
)
"""Some drafts pay and others do not."""
KV = LinearCost(
    fixed_ms=0.0, per_token_us=1000.0, per_kv_token_ns=50_000.0, card=CostCard("kv", "", "", "synthetic", "a test")
)
"""A step costs its tokens and the KV cache it reads: without the latter no draft would ever pay."""
DEAR = LinearCost(fixed_ms=0.0, per_token_us=1000.0, card=CostCard("dear", "", "", "synthetic", "a test"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    law = SyntheticLaw(num_requests=64, output_len=17, num_speculative_tokens=K, slope=0.9, intercept_step=-0.2, seed=3)
    return write_synthetic(tmp_path_factory.mktemp("law") / "trace", law)


@pytest.fixture(scope="module")
def bench(trace: Trace) -> Bench:
    pool = Pool.from_trace(trace, ["log_odds", "label"])
    return Bench(pool, Table.of_pool(pool, trace), STEEP, None, replicates=2, warm_steps=1, vocab=None, seed=0)


def path_of(pool: Pool, policy: str, cost: CostModel) -> Path:
    sequence = request_sequences([np.arange(len(pool.start))], 1, [[1]])
    arm = Arm(policies.make(policy), estimators.make("online-logistic"))
    log = simulate(pool, arm, sequence, LOAD, cost, log=True).log
    assert log is not None
    return flatten_log(log)


def one_step(path: Path, step: int) -> Path:
    part = slice(step, step + 1)
    return Path(
        *(column[part] for column in (path.rows, path.admitted, path.active, path.emitted, path.ms, path.first))
    )


def by_force(pool: Pool, rows: list[int], cost: CostModel) -> dict[int, float]:
    """The most tokens per ms with each budget, over every way of spending it."""
    request = [int(np.searchsorted(pool.start, row, side="right")) - 1 for row in rows]
    position = [row - int(pool.start[r]) for row, r in zip(rows, request, strict=True)]
    kv = sum(int(pool.prompt_len[r]) + at + 1 for r, at in zip(request, position, strict=True))
    best: dict[int, float] = {}
    for admitted in product(range(K + 1), repeat=len(rows)):
        tokens = 0
        for row, r, at, m in zip(rows, request, position, admitted, strict=True):
            tokens += min(min(int(pool.num_accepted[row]), m) + 1, int(pool.output_len[r]) - 1 - at)
        shape = StepShape(
            np.array([len(rows)]), np.array([len(rows) + sum(admitted)]), np.array([float(kv)]), np.array([0])
        )
        rate = tokens / float(cost.step_ms(shape, drafting=True)[0])
        best[sum(admitted)] = max(best.get(sum(admitted), 0.0), rate)
    return best


@pytest.mark.parametrize("kv", [False, True])
def test_regrets_of_single_steps_against_every_admission(kv: bool, bench: Bench) -> None:
    cost = KV if kv else bench.truth
    path = path_of(bench.pool, "adaptive", cost)
    spent_some = (path.admitted.sum(axis=1) > 0) & (path.admitted.sum(axis=1) < K * LOAD)
    seen = []
    for step in np.flatnonzero((path.num_reqs == LOAD) & spent_some)[:12]:
        alone = one_step(path, int(step))
        best = by_force(bench.pool, path.rows[step].tolist(), cost)
        budget, allocation = step_regrets_pct(alone, bench.pool, cost, LOAD)
        whole = step_regret_pct(alone, bench.pool, cost, LOAD, K)
        assert budget is not None
        assert allocation is not None
        rate = float(path.emitted[step].sum() / path.ms[step])
        spent = best[int(path.admitted[step].sum())]
        assert budget == pytest.approx((1 - spent / max(best.values())) * 100, abs=1e-9)
        assert allocation == pytest.approx((1 - rate / spent) * 100, abs=1e-9)
        # Step by step the two multiply up to the whole; their means over steps do not.
        assert whole == pytest.approx((1 - (1 - budget / 100) * (1 - allocation / 100)) * 100, abs=1e-9)
        seen.append((budget, allocation))
    assert max(budget for budget, _ in seen) > 0.1
    assert max(allocation for _, allocation in seen) > 0.1


@pytest.mark.parametrize("kv", [False, True])
def test_regrets_are_never_negative_and_the_oracle_has_none(kv: bool, bench: Bench) -> None:
    cost = KV if kv else bench.truth
    for policy in ("adaptive", "fixed:3", "oracle", "oracle:exact", "prefix-scheduler"):
        path = path_of(bench.pool, policy, cost)
        found = step_regrets_pct(path, bench.pool, cost, LOAD)
        steps = [step_regrets_pct(one_step(path, int(step)), bench.pool, cost, LOAD) for step in range(20)]
        for budget, allocation in (found, *steps):
            assert budget is not None
            assert allocation is not None
            assert min(budget, allocation) > -1e-9
        if policy == "oracle":
            assert found == pytest.approx((0, 0), abs=1e-9)
        if policy in ("fixed:3", "oracle:exact"):
            assert found[1] == pytest.approx(0, abs=1e-9)  # all of it, or exactly what will be accepted
    assert step_regrets_pct(path, bench.pool, cost, LOAD + 1) == (None, None)


def test_throughput_rows(bench: Bench) -> None:
    readers = [OnlineLogistic(), OnlineLogistic(), estimators.make("oracle-label")]
    rows = list(throughput_rows(bench, readers, LOAD))
    assert [row["arm"] for row in rows] == [
        "adaptive + online-logistic", "adaptive + online-logistic", "adaptive + oracle-label",
        "none", "fixed:1", "fixed:2", "fixed:3", "oracle",
    ]  # fmt: skip
    assert [row["attainable"] for row in rows] == [True, True, False, True, True, True, True, False]
    first, again = rows[:2]
    assert (first["standing"], first["change_pct"]) == ("reference", None)
    assert (again["standing"], again["change_pct"]) == ("not distinguishable", 0.0)
    assert bench.num_sources == 32
    for row in rows[1:]:
        assert row["change_pct"] == pytest.approx((row["throughput_tok_s"] / first["throughput_tok_s"] - 1) * 100)
        low, high = row["change_low_pct"], row["change_high_pct"]
        assert low <= row["change_pct"] <= high
        expected = "faster" if low > 0 else "slower" if high < 0 else "not distinguishable"
        assert row["standing"] == expected
    assert rows[-1]["standing"] == "faster"
    assert {row["standing"] for row in rows[3:7]} & {"slower"}
    for row in rows[:3]:
        assert 0 < row["verified_share"] <= 1
        assert row["budget_regret_pct"] >= 0
        assert row["allocation_regret_pct"] >= 0
    # On labels every budget goes to the right slots, but for those past the end of an output.
    assert rows[2]["allocation_regret_pct"] < 0.5 * rows[0]["allocation_regret_pct"]


def test_few_requests_claim_nothing(trace: Trace, bench: Bench) -> None:
    pool = replace(bench.pool, unit=bench.pool.unit % 50)
    small = replace(bench, pool=pool, table=Table.of_pool(pool, trace))
    assert small.num_sources == 25
    rows = list(throughput_rows(small, [OnlineLogistic()], LOAD))
    assert [row["standing"] for row in rows[1:]] == ["not enough requests"] * 5
    assert rows[-1]["change_low_pct"] > 0


def test_the_judged_half_is_resampled_by_source_and_apart_from_the_other(trace: Trace, bench: Bench) -> None:
    pool = replace(bench.pool, unit=bench.pool.unit // 2)
    paired = replace(bench, pool=pool, table=Table.of_pool(pool, trace))
    apart, judged = paired.halves
    assert not set(pool.unit[apart].tolist()) & set(pool.unit[judged].tolist())
    assert sorted([*apart, *judged]) == list(range(64))
    samples = paired.samples()
    assert len(samples) == 3
    assert np.array_equal(samples[0], judged)
    for sample in samples[1:]:
        assert set(sample.tolist()) <= set(judged.tolist())
        counts = np.bincount(sample, minlength=64)
        assert np.array_equal(counts[::2], counts[1::2])  # both requests of a source, or none
        assert counts.max() > 1
    assert all(np.array_equal(one, other) for one, other in zip(samples, paired.samples(), strict=True))


@dataclass(frozen=True)
class _Spy(TemperatureOffline):
    """Keeps the features that it was fitted to."""

    name: ClassVar[str] = "spy"

    seen: list[np.ndarray] = field(default_factory=list)

    def fit(self, num_speculative_tokens: int, observations: Observations) -> Arrays:
        self.seen.append(observations.features["log_odds"][0])
        return super().fit(num_speculative_tokens, observations)


def ladder(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {line["rung"]: line["change_pct"] for line in lines}


def test_the_rungs_multiply_up_to_the_whole_distance(bench: Bench) -> None:
    lines = explain(bench, OnlineLogistic(), TemperatureOffline(), LOAD)
    found = ladder(lines)
    assert list(found) == ["features", "model", "censoring", "staleness", "in all", "against none"]
    rungs = [found[name] for name in found if name in RUNGS]
    assert np.prod([1 + rung / 100 for rung in rungs]) == pytest.approx(1 + found["in all"] / 100)
    assert all(line["what"] == RUNGS[line["rung"]] for line in lines if line["rung"] in RUNGS)
    rates = {row["arm"]: row["throughput_tok_s"] for row in throughput_rows(bench, [OnlineLogistic()], LOAD)}
    ours = rates["adaptive + online-logistic"]
    assert 1 + found["in all"] / 100 == pytest.approx(ours / rates["oracle"])
    assert 1 + found["against none"] / 100 == pytest.approx(ours / rates["none"])
    assert found["in all"] < 0


def test_probabilities_split_chance_from_features(bench: Bench) -> None:
    """With the law itself for α, the rung above it is what no score can know."""
    odds = bench.pool.features["log_odds"]
    alpha = 1 / (1 + np.exp(-(0.9 * odds - 0.2 - 0.2 * np.arange(K)[:, None]))).astype(np.float32)
    known = replace(bench, pool=replace(bench.pool, features=bench.pool.features | {"alpha": alpha}))
    known = replace(known, table=replace(bench.table, features=known.pool.features))
    found, plain = (ladder(explain(item, OnlineLogistic(), TemperatureOffline(), LOAD)) for item in (known, bench))
    assert list(found)[:2] == ["chance", "features"]
    assert found["chance"] < -1
    assert (1 + found["chance"] / 100) * (1 + found["features"] / 100) == pytest.approx(1 + plain["features"] / 100)
    assert found["in all"] == pytest.approx(plain["in all"])
    assert abs(found["features"]) < 0.3 * abs(found["chance"])  # the log-odds tell all that there is


def test_a_wrong_belief_is_the_last_rung(bench: Bench) -> None:
    """Costs on which no draft ever pays."""
    misled = replace(bench, belief=DEAR)
    found, right = (ladder(explain(item, OnlineLogistic(), TemperatureOffline(), LOAD)) for item in (misled, bench))
    assert list(found)[4:] == ["belief", "in all", "against none"]
    assert {name: found[name] for name in right if name in RUNGS} == {
        name: change for name, change in right.items() if name in RUNGS
    }
    assert found["belief"] < -1
    assert 1 + found["in all"] / 100 == pytest.approx((1 + right["in all"] / 100) * (1 + found["belief"] / 100))


def test_the_ceiling_is_fitted_to_the_half_that_is_not_judged(bench: Bench) -> None:
    spy = _Spy()
    explain(bench, OnlineLogistic(), spy, LOAD)
    used = set(np.concatenate(spy.seen).tolist())
    ends = np.append(bench.pool.start, len(bench.pool.num_accepted))
    by_half = [
        {value for request in half for value in bench.pool.features["log_odds"][0, ends[request] : ends[request + 1]]}
        for half in bench.halves
    ]
    assert len(used) > 100
    assert used <= by_half[0]
    assert not used & by_half[1]


@dataclass(frozen=True)
class _Counting(PositionRate):
    """Counts the labels that it is given."""

    name: ClassVar[str] = "counting"

    seen: list[int] = field(default_factory=list)

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        self.seen.append(int(observations.observed.sum()))
        return super().accumulate(stats, observations)


def test_an_arm_is_warmed_up_as_it_is_served(bench: Bench) -> None:
    """What it learns beforehand is censored by its own decisions, on the step costs that it believes in."""
    labels = {}
    for name, belief in (("right", None), ("misled", DEAR)):
        reader = _Counting()
        next(iter(throughput_rows(replace(bench, belief=belief), [reader], LOAD)))
        labels[name] = reader.seen[0]
    assert labels["misled"] < 0.2 * labels["right"]


def test_intervals_need_replicates(bench: Bench) -> None:
    with pytest.raises(InputError, match="at least 2 replicates"):
        replace(bench, replicates=1)
