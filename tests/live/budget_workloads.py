"""Engine steps that drive vLLM's AdaptiveVerificationManager and avsim's policy side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import vllm_reference as vllm
from numpy.typing import NDArray

from avsim import policies
from avsim.costs import CostTables, staircase
from avsim.policies import NO_LOGIT_LIMIT, StepBatch
from avsim.policies.budget import best_budget, ranked_survival

F32 = NDArray[np.float32]
Rng = np.random.Generator


class ConfidenceTables:
    """Which confidences vLLM ranks by (live) and chooses the budget from (sizing), per request slot.

    The sizing table is the live table as it stood before the last record, and a request enters both at 1.0.
    """

    def __init__(self, max_num_reqs: int, num_slots: int):
        self.live = np.full((max_num_reqs, num_slots), np.nan, dtype=np.float32)
        self.sizing = self.live.copy()

    def add_request(self, slot: int) -> None:
        self.live[slot] = self.sizing[slot] = 1.0

    def record(self, slots: Sequence[int], confidence: F32) -> None:
        self.sizing = self.live.copy()
        self.live[list(slots)] = confidence


@dataclass(frozen=True)
class Scheduled:
    """One request's part of a step: tokens that are not drafts, drafts, and whether a token will be sampled."""

    slot: int
    num_target_tokens: int
    num_drafts: int
    samples: bool


@dataclass(frozen=True)
class Decision:
    """The budget B, and the admitted counts in the order of the step."""

    budget: int
    admitted: NDArray[np.int64]


class Pair:
    """vLLM's manager and avsim's policy over the same engine steps."""

    def __init__(
        self,
        max_num_reqs: int,
        num_slots: int,
        tables: CostTables,
        *,
        max_total_logits: int = NO_LOGIT_LIMIT,
        late_copies: bool = True,
    ):
        self.num_slots, self.tables, self.max_total_logits = num_slots, tables, max_total_logits
        self.manager = vllm.VllmManager(
            max_num_reqs, num_slots, (tables.draft, tables.verify), max_total_logits, late_copies=late_copies
        )
        self.confidences = ConfidenceTables(max_num_reqs, num_slots)
        self.policy = policies.make("adaptive")

    def add_request(self, slot: int, prefill_len: int) -> None:
        self.manager.add_request(slot, prefill_len)
        self.confidences.add_request(slot)

    def use_tables(self, tables: CostTables) -> None:
        self.tables = tables
        self.manager.inner.cost_tables = (tables.draft, tables.verify)

    def batch(self, step: Sequence[Scheduled]) -> StepBatch:
        slots = [request.slot for request in step]
        return StepBatch(
            live=self.confidences.live[slots].T[:, None],
            sizing=self.confidences.sizing[slots].T[:, None],
            num_drafted=np.array([[request.num_drafts for request in step]]),
            num_reqs=np.array([len(step)]),
            num_sampling=np.array([sum(request.samples for request in step)]),
            num_target_tokens=np.array([sum(request.num_target_tokens for request in step)]),
            tables=self.tables,
            max_total_logits=self.max_total_logits,
        )

    def decide(self, step: Sequence[Scheduled]) -> Decision:
        """Let both decide a step that has drafts, require the same, and return what vLLM decided."""
        slots = [request.slot for request in step]
        np.testing.assert_array_equal(self.confidences.sizing[slots], self.manager.sizing[slots])
        np.testing.assert_array_equal(self.confidences.live[slots], self.manager.live[slots])

        batch = self.batch(step)
        states = self.manager.states
        for request in step:
            computed = states.prefill_len.np[request.slot] - request.num_target_tokens
            states.num_computed_tokens_np[request.slot] = computed if request.samples else computed - 1
        tokens = {request.slot: request.num_target_tokens + request.num_drafts for request in step}
        budget, theirs = self.manager.decide(slots, tokens, {request.slot: request.num_drafts for request in step})
        ours = self.policy.admit(batch)[0]
        assert int(best_budget(batch, batch.sizing)[0]) == budget
        assert_same_admission(ours, theirs, batch, budget)
        return Decision(budget, theirs)

    def record(self, step: Sequence[Scheduled], confidence: F32) -> None:
        """Draft again for every request of the step, `[len(step), K]`."""
        slots = [request.slot for request in step]
        self.manager.record(slots, confidence)
        self.confidences.record(slots, confidence)


def assert_same_admission(ours: NDArray[np.int64], theirs: NDArray[np.int64], batch: StepBatch, budget: int) -> None:
    """Require equal admitted counts, except for slots whose survival ties with the last one admitted.

    vLLM's top-k breaks ties arbitrarily. Survivals closer than the rounding of the product count as tied: torch's
    CPU cumprod keeps a float64 product where its CUDA one keeps float32, so their last bits are not vLLM's rule.
    """
    drafted = batch.num_drafted[0]
    for admitted in (ours, theirs):
        assert admitted.sum() == budget
        assert (admitted >= 0).all()
        assert (admitted <= drafted).all()
    if budget in (0, drafted.sum()):
        np.testing.assert_array_equal(ours, theirs)
        return
    num_slots = len(batch.live)
    product = np.cumprod(batch.live[:, 0], axis=0, dtype=np.float64)
    valid = np.arange(num_slots)[:, None] < drafted
    cut = np.sort(product[valid])[-budget]
    margin = cut * num_slots * 2.0**-23
    surely = (valid & (product > cut + margin)).sum(axis=0)
    at_most = (valid & (product >= cut - margin)).sum(axis=0)
    for admitted in (ours, theirs):
        assert (admitted >= surely).all()
        assert (admitted <= at_most).all()
    if at_most.sum() == budget:  # no tie at the cut: the winners are defined
        np.testing.assert_array_equal(ours, theirs)


# --- workloads ------------------------------------------------------------------------------------------------------

CONFIDENCES: dict[str, Callable[[Rng, tuple[int, int]], F32]] = {
    "spread": lambda rng, shape: (1 / (1 + np.exp(-rng.normal(0.5, 2.0, shape)))).astype(np.float32),
    "ties": lambda rng, shape: rng.choice(np.array([0.25, 0.5, 1.0], dtype=np.float32), shape),
    "saturated": lambda rng, shape: 1 / (1 + np.exp(-rng.normal(16.0, 3.0, shape).astype(np.float32))),
    "zeros-and-ones": lambda rng, shape: rng.integers(0, 2, shape).astype(np.float32),
}


def flat_tables(max_num_reqs: int, max_num_tokens: int) -> CostTables:
    """Verification costs nothing more, so that everything is admitted."""
    return CostTables(np.ones(max_num_reqs + 1), np.ones(max_num_tokens + 1))


def curved_tables(rng: Rng, max_num_reqs: int, max_num_tokens: int) -> CostTables:
    """A staircase with a cliff, somewhere in the range that the steps reach."""
    sizes = np.unique(rng.integers(1, max_num_tokens, 12))
    ms = np.cumsum(rng.exponential(0.4, len(sizes))) + 5
    points = [(int(size), float(value)) for size, value in zip(sizes, ms, strict=True)]
    verify = staircase(max_num_tokens, points, int(rng.choice(sizes)))
    return CostTables(np.linspace(0.5, 1.5, max_num_reqs + 1), verify)


def knife_edge_tables(pair: Pair, step: Sequence[Scheduled], rng: Rng, max_num_tokens: int) -> CostTables:
    """Tables under which every budget of this step is as good as any other, to a few units in the last place.

    The first maximum then hangs on the last bit of the float64 objective.
    """
    batch = pair.batch(step)
    tokens = int(batch.num_sampling[0]) + np.cumsum(ranked_survival(batch.sizing, batch.num_drafted)[0])
    start = int(batch.num_target_tokens[0])
    verify = np.full(max_num_tokens + 1, 1e9)
    worth = np.concatenate(([float(batch.num_sampling[0])], tokens[: batch.num_drafted.sum()]))
    draft = np.full(len(pair.tables.draft), 0.25)
    verify[start : start + len(worth)] = 0.7 * worth * (1 + rng.integers(-2, 3, len(worth)) * 2.0**-52) - 0.25
    return CostTables(draft, verify)


class Engine:
    """A small scheduler: requests come, are prefilled in one or several chunks, decode, sit out steps and leave."""

    def __init__(self, pair: Pair, max_num_reqs: int, rng: Rng):
        self.pair, self.rng = pair, rng
        self.free = list(range(max_num_reqs))
        self.chunks: dict[int, list[int]] = {}
        self.new: list[int] = []
        self.left_out = 0
        self.chunked = 0

    def next_step(self) -> list[Scheduled]:
        rng = self.rng
        for slot in [slot for slot, chunks in self.chunks.items() if not chunks and rng.random() < 0.06]:
            del self.chunks[slot]
            self.free.append(slot)
        self.new = []
        while self.free and rng.random() < 0.4:
            slot = self.free.pop()  # the slot freed last is used first, as vLLM does
            self.chunks[slot] = rng.integers(1, 9, rng.choice([1, 1, 2, 3])).tolist()
            self.chunked += len(self.chunks[slot]) > 1
            self.pair.add_request(slot, sum(self.chunks[slot]))
            self.new.append(slot)
        step = []
        for slot in rng.permutation(list(self.chunks)).tolist():
            if slot not in self.new and rng.random() < 0.12:
                self.left_out += 1
            elif chunks := self.chunks[slot]:
                tokens = chunks.pop(0)
                step.append(Scheduled(slot, tokens, 0, samples=not chunks))
            else:
                drafts = self.pair.num_slots if rng.random() < 0.8 else int(rng.integers(0, self.pair.num_slots + 1))
                step.append(Scheduled(slot, 1, drafts, samples=True))
        return step
