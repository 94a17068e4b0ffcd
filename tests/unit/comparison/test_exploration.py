"""Labels from beyond the cut: ε-slots, the numbers that draw them, and learning as if nothing had been trimmed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.costs import CostModel
from avsim.costs.linear import step_counter
from avsim.errors import InputError
from avsim.policies import Adaptive, Policy, StepBatch
from avsim.replay import replay
from avsim.simulate import Arm, Totals, simulate
from avsim.sources import Trace, open_trace
from avsim.testing.steps import COST_SHAPES, random_batch
from avsim.types import IntArray
from avsim.workload import Pool, keyed_uniform, request_sequences

LIVE = Path(__file__).parent.parent.parent.parent / "traces/smollm2-eagle1-greedy-fixed5-c8"


def test_keyed_numbers_are_uniform() -> None:
    """Over rows and turns as a simulation uses them: small whole numbers, all pairs."""
    first, second = np.meshgrid(np.arange(400), np.arange(300), indexing="ij")
    drawn = keyed_uniform(first, second)
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    counts = np.bincount((drawn.ravel() * 100).astype(int), minlength=100)
    chi_square = ((counts - drawn.size / 100) ** 2 / (drawn.size / 100)).sum()
    assert 99 - 4 * np.sqrt(2 * 99) < chi_square < 99 + 4 * np.sqrt(2 * 99)
    # A neighbour in either key says nothing, nor does the sum of both.
    for one, other in (
        (drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:]), (drawn[1:, :-1], drawn[:-1, 1:]),
    ):  # fmt: skip
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 / np.sqrt(one.size)
    assert len(np.unique(drawn)) > 0.99 * drawn.size


def test_keyed_numbers_depend_on_the_keys_and_on_nothing_else() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 1000, (2, 500))
    drawn, order = keyed_uniform(first, second), rng.permutation(500)
    assert np.array_equal(keyed_uniform(first[order], second[order]), drawn[order])
    assert np.array_equal(keyed_uniform(first.reshape(5, 100), second.reshape(5, 100)).ravel(), drawn)
    assert (keyed_uniform(second, first) != drawn).mean() > 0.99


@pytest.mark.parametrize("cost", COST_SHAPES)
@pytest.mark.parametrize("limit", [None, 7])
def test_exploring_verifies_one_more_slot_where_there_is_room(cost: str, limit: int | None) -> None:
    batch = random_batch(cost, seed=4)
    if limit is not None:
        batch = replace(batch, max_total_logits=limit)
    plain = Adaptive().admit(batch)
    assert np.array_equal(Adaptive(explore=0.0).admit(replace(batch, chance=None)), plain)
    explored = Adaptive(explore=1.0).admit(batch)
    wanted = plain < batch.num_drafted
    assert ((explored - plain)[~wanted] == 0).all()
    assert set((explored - plain)[wanted].tolist()) <= {0, 1}
    cap = np.maximum(0, batch.max_total_logits - batch.num_reqs)
    assert np.array_equal(explored.sum(axis=1), plain.sum(axis=1) + np.minimum(
        wanted.sum(axis=1), np.maximum(0, np.minimum(cap, batch.num_drafted.sum(axis=1)) - plain.sum(axis=1))
    ))  # fmt: skip
    if limit is None:
        assert np.array_equal(explored > plain, wanted)


def test_the_explored_share_is_epsilon() -> None:
    batch = random_batch("cliff", num_steps=4000, num_reqs=6, seed=2)
    plain, explored = Adaptive().admit(batch), Adaptive(explore=0.2).admit(batch)
    wanted = plain < batch.num_drafted
    share = (explored > plain)[wanted].mean()
    assert share == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / wanted.sum()))


def test_what_exploring_needs() -> None:
    with pytest.raises(InputError, match="explore is a probability"):
        Adaptive(explore=1.5)
    with pytest.raises(ValueError, match="chance"):
        Adaptive(explore=0.1).admit(replace(random_batch("flat"), chance=None))
    assert policies.make("adaptive:explore=0") == Adaptive()


@dataclass(frozen=True)
class _Watched(Adaptive):
    """Keeps what it was shown and what it decided."""

    name: ClassVar[str] = "watched"

    seen: list[tuple[StepBatch, IntArray]] = field(default_factory=list)

    def admit(self, step: StepBatch) -> IntArray:
        admitted = super().admit(step)
        self.seen.append((step, admitted))
        return admitted


def run(pool: Pool, policy: Policy, sequences: np.ndarray, cost: CostModel) -> Totals:
    return simulate(pool, Arm(policy, estimators.make("online-logistic")), sequences, 4, cost).whole


def orders(pool: Pool, *seeds: int) -> np.ndarray:
    everyone = np.arange(24)
    return request_sequences([everyone] * len(seeds), 1, [[seed] for seed in seeds])


def test_the_closed_loop_explores_as_often_as_asked_and_draws_each_block_anew(
    greedy_pool: Pool, b300: CostModel
) -> None:
    policy = _Watched(explore=0.3)
    twice = request_sequences([np.arange(20)], 40, [[1]])  # the same requests come again
    run(greedy_pool, policy, twice, b300)
    chances, wanted, explored = [], 0, 0
    for step, admitted in policy.seen:
        assert step.chance is not None
        plain = Adaptive().admit(replace(step, chance=None))
        room = plain < step.num_drafted
        assert (admitted <= step.num_drafted).all()
        assert np.array_equal(admitted > plain, room & (step.chance < np.float32(0.3)))
        wanted, explored = wanted + room.sum(), explored + (admitted > plain).sum()
        chances.append(step.chance[step.num_drafted > 0])
    assert wanted > 300
    assert explored / wanted == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / wanted))
    drawn = np.concatenate(chances)
    assert len(np.unique(drawn)) > 0.99 * len(drawn)


@pytest.mark.parametrize("explore", [0.0, 0.3])
def test_decisions_do_not_depend_on_what_runs_beside(explore: float, greedy_pool: Pool, b300: CostModel) -> None:
    policy = Adaptive(explore=explore)
    together = run(greedy_pool, policy, orders(greedy_pool, 5, 6), b300)
    for number, seed in enumerate((5, 6)):
        alone = run(greedy_pool, policy, orders(greedy_pool, seed), b300)
        assert [int(column[number]) for column in (together.admitted, together.emitted, together.blocks)] == [
            int(column[0]) for column in (alone.admitted, alone.emitted, alone.blocks)
        ]


def test_exploring_costs_slots_in_the_open_loop_too(b300: CostModel) -> None:
    trace = open_trace(LIVE)
    reader = estimators.make("online-logistic")
    found = {}
    for explore in (0.0, 0.3, 1.0):
        policy = _Watched(explore=explore)
        result = replay(trace, [Arm(policy, reader), Arm(Adaptive(), reader)], b300)
        extra = sum(int(admitted.sum()) for _, admitted in policy.seen)
        assert result[0].sums[3].sum() == extra
        found[explore] = extra
        if not explore:
            assert np.array_equal(result[0].sums, result[1].sums)
        for step, admitted in policy.seen:
            plain = Adaptive().admit(replace(step, chance=None))
            chance = np.zeros(plain.shape) if step.chance is None else step.chance
            assert np.array_equal(admitted > plain, (plain < step.num_drafted) & (chance < explore))
    assert found[0.0] < found[0.3] < found[1.0]
    # A block draws the same number wherever it is met: by its request and position.
    drawn = [step.chance[step.num_drafted > 0] for step, _ in policy.seen if step.chance is not None]
    blocks = trace.blocks()
    assert np.array_equal(np.concatenate(drawn), keyed_uniform(blocks.request, blocks.position))
    pieces = replay(trace, [Arm(Adaptive(explore=0.3), reader)], b300, min_rows=100)[0]
    assert pieces.sums[3].sum() == found[0.3]


def test_learning_from_all_is_learning_from_the_verified_where_all_is_verified(
    greedy_pool: Pool, b300: CostModel
) -> None:
    @dataclass(frozen=True)
    class Everything(Policy):
        name: ClassVar[str] = "everything"
        uses_confidence: ClassVar[bool] = True

        def admit(self, step: StepBatch) -> IntArray:
            return step.num_drafted

    reader = estimators.make("online-logistic")
    for policy, same in ((Everything(), True), (Adaptive(), False)):
        plain, uncensored = (
            simulate(greedy_pool, Arm(policy, reader, uncensored=every), orders(greedy_pool, 3), 4, b300).states[0]
            for every in (False, True)
        )
        assert (plain.to_json() == uncensored.to_json()) == same


def test_learning_from_all_labels_slots_that_are_always_trimmed(greedy_pool: Pool, greedy: Trace) -> None:
    """With a verification that costs a fortune a slot nothing is admitted; still every reached slot is learned from."""
    dear = replace(step_counter(), fixed_ms=0.0, per_token_us=1e6)
    reader = estimators.make("position-rate")
    arms = [Arm(Adaptive(), reader, uncensored=every) for every in (False, True)]
    plain, every = (simulate(greedy_pool, arm, orders(greedy_pool, 3), 4, dear, log=True) for arm in arms)
    assert plain.log is not None
    rows = np.concatenate([row[active] for row, active in zip(plain.log.rows, plain.log.active, strict=True)])
    accepted, known = greedy_pool.num_accepted[rows], greedy_pool.num_recorded[rows]
    reached = [int(((slot <= accepted) & (slot < known)).sum()) for slot in range(greedy.card.num_speculative_tokens)]
    assert every.states[0].stats["observed"].tolist() == reached
    assert plain.states[0].stats["observed"].sum() < sum(reached)
