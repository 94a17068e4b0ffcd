"""Budget kernels against avsim's policies, a brute force, vLLM's own allocation, and exact arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vllm_reference as vllm
from numpy.typing import NDArray

from avsim.costs import CostTables, staircase
from avsim.errors import InputError
from avsim.kernels.device.budget import DeviceBudget
from avsim.kernels.ops import sizing
from avsim.kernels.ops.budget import allocate
from avsim.kernels.reference import budget as reference
from avsim.policies import NO_LOGIT_LIMIT

DEVICE = torch.device("cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1" else "cpu")
F32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Rng = np.random.Generator


def spread(rng: Rng, shape: tuple[int, int]) -> F32:
    return (1 / (1 + np.exp(-rng.normal(0.5, 2.0, shape)))).astype(np.float32)


def with_nan(rng: Rng, shape: tuple[int, int]) -> F32:
    return np.where(rng.random(shape) < 0.15, np.float32(np.nan), spread(rng, shape))


CONFIDENCES: dict[str, Callable[[Rng, tuple[int, int]], F32]] = {
    "spread": spread,
    "coins": lambda rng, shape: rng.choice(np.float32([0.25, 0.5, 1.0]), shape),
    "saturated": lambda rng, shape: 1 / (1 + np.exp(-rng.normal(16.0, 3.0, shape).astype(np.float32))),
    "zeros and ones": lambda rng, shape: rng.integers(0, 2, shape).astype(np.float32),
    "ones": lambda rng, shape: np.ones(shape, dtype=np.float32),
    "zeros": lambda rng, shape: rng.choice(np.float32([0.0, -0.0]), shape),
    "denormals": lambda rng, shape: (rng.integers(0, 4, shape) * 2.0**-149 + rng.choice([0, 1e-30], shape)).astype(
        "f4"
    ),
    "neighbours": lambda rng, shape: np.float32(1) - rng.integers(0, 4, shape).astype(np.float32) * np.float32(2**-24),
    "NaN": with_nan,
    "only NaN": lambda rng, shape: np.full(shape, np.nan, dtype=np.float32),
}


@dataclass
class Case:
    """A batch over a slot table: each row another persistent slot, with some drafts."""

    confidence: F32
    slots: Ints
    drafted: Ints

    @classmethod
    def draw(cls, rng: Rng, max_num_reqs: int, num_slots: int, kind: str, rows: int | None = None) -> Case:
        rows = int(rng.integers(0, max_num_reqs + 1)) if rows is None else rows
        drafted = rng.choice([0, num_slots, rng.integers(0, num_slots + 1)], rows)
        return cls(CONFIDENCES[kind](rng, (max_num_reqs, num_slots)), rng.permutation(max_num_reqs)[:rows], drafted)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        numbers = (torch.from_numpy(value.astype(np.int32)).to(DEVICE) for value in (self.slots, self.drafted))
        return (torch.from_numpy(self.confidence.copy()).to(DEVICE), *numbers)

    def allocate(self, budget: Any) -> Ints:
        confidence, slots, capacities = self.tensors()
        allocate(confidence, slots, capacities, budget)
        return capacities.cpu().numpy().astype(np.int64)


def by_hand(case: Case, budget: int) -> Ints:
    """Sort all drafted slots by survival (NaN last), slot and row; admit the first of them."""
    ranked = []
    for row, (slot, count) in enumerate(zip(case.slots, case.drafted, strict=True)):
        survival = np.float32(1)
        for k in range(count):
            survival = survival * case.confidence[slot, k]
            ranked.append((np.isnan(survival), -survival if survival == survival else 0, k, row))
    admitted = np.zeros(len(case.slots), dtype=np.int64)
    for *_, row in sorted(ranked)[: max(budget, 0)]:
        admitted[row] += 1
    return admitted


# --- allocation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_allocation_is_that_of_the_policy_and_of_a_sort(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for trial, (num_slots, max_num_reqs) in enumerate(((1, 5), (3, 16), (7, 24), (16, 6))):
        case = Case.draw(rng, max_num_reqs, num_slots, kind, rows=max_num_reqs - trial % 2)
        total = int(case.drafted.sum())
        for budget in (0, int(rng.integers(1, max(total, 2))), total - 1, total + trial):
            expected = by_hand(case, budget)
            given = torch.tensor([budget], dtype=torch.int32, device=DEVICE) if trial % 2 else budget
            np.testing.assert_array_equal(case.allocate(given), expected)
            np.testing.assert_array_equal(
                reference.allocate(case.confidence, case.slots, case.drafted, budget), expected
            )
            assert expected.sum() == max(min(budget, total), 0)


@pytest.mark.parametrize("rows", [0, 1, 255, 1024])
@pytest.mark.parametrize("num_slots", [7, 16])
def test_allocation_at_every_size_of_batch(rows: int, num_slots: int) -> None:
    rng = np.random.default_rng([rows, num_slots])
    for kind in ("spread", "saturated"):
        case = Case.draw(rng, 1024, num_slots, kind, rows)
        budget = int(case.drafted.sum() * 0.4)
        np.testing.assert_array_equal(case.allocate(budget), by_hand(case, budget))


def test_allocation_is_that_of_vllm_where_nothing_ties_at_the_cut() -> None:
    """vLLM's top-k breaks ties by chance, and multiplies in float64 on a CPU: survivals closer than that are ties."""
    rng = np.random.default_rng(1)
    compared = 0
    for trial in range(18):
        case = Case.draw(rng, 30, 5, ("spread", "coins", "saturated")[trial % 3], rows=30)
        total = int(case.drafted.sum())
        budget = int(rng.integers(1, total))
        confidence, slots, theirs = (tensor.cpu() for tensor in case.tensors())
        vllm.assign_draft_token_budget(confidence, slots.long(), theirs, budget, 5)
        ours = case.allocate(budget)
        assert ours.sum() == theirs.sum() == budget
        product = np.cumprod(case.confidence[case.slots].astype(np.float64), axis=1)
        valid = np.arange(5) < case.drafted[:, None]
        cut = np.sort(product[valid])[-budget]
        margin = cut * 5 * 2.0**-23  # five products of float32, on either side
        surely = (valid & (product > cut + margin)).sum(axis=1)
        at_most = (valid & (product >= cut - margin)).sum(axis=1)
        for admitted in (ours, theirs.numpy()):
            assert ((admitted >= surely) & (admitted <= at_most)).all()
        if at_most.sum() == budget:
            np.testing.assert_array_equal(ours, theirs.numpy())
            compared += 1
    assert compared > 4


def test_ties_go_by_slot_and_then_by_row() -> None:
    case = Case(np.ones((4, 3), dtype=np.float32), np.array([3, 1, 2]), np.array([3, 2, 3]))
    admitted = [case.allocate(budget).tolist() for budget in range(9)]
    by_slot = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2], [3, 2, 2], [3, 2, 3]]
    assert admitted == by_slot


def test_a_nan_is_admitted_last_and_harms_no_one_else() -> None:
    nan = np.nan
    confidence = np.array([[0.5, nan, 0.9], [0.4, 0.4, 0.0], [nan, 1.0, 1.0]], dtype=np.float32)
    case = Case(confidence, np.arange(3), np.array([3, 3, 3]))
    assert case.allocate(4).tolist() == [1, 3, 0]  # a survival of 0 comes before a NaN
    assert case.allocate(6).tolist() == [2, 3, 1]
    assert case.allocate(9).tolist() == [3, 3, 3]


def test_confidences_behind_a_capacity_are_not_read() -> None:
    rng = np.random.default_rng(2)
    case = Case.draw(rng, 12, 4, "spread", rows=12)
    expected = case.allocate(9)
    undrafted = np.arange(4) >= np.zeros(12)[:, None]
    undrafted[case.slots] = np.arange(4) >= case.drafted[:, None]
    for poison in (np.nan, np.inf, 1.0, -1.0):
        case.confidence[undrafted] = poison
        np.testing.assert_array_equal(case.allocate(9), expected)


def test_rows_that_pad_are_left_alone() -> None:
    rng = np.random.default_rng(3)
    case = Case.draw(rng, 16, 4, "spread", rows=10)
    expected = case.allocate(11)
    at = np.sort(rng.permutation(16)[:10])
    padded = Case(case.confidence, np.full(16, -1), np.full(16, 77))
    padded.slots[at], padded.drafted[at] = case.slots, case.drafted
    admitted = padded.allocate(11)
    np.testing.assert_array_equal(admitted[at], expected)
    assert (np.delete(admitted, at) == 77).all()
    np.testing.assert_array_equal(reference.allocate(padded.confidence, padded.slots, padded.drafted, 11), admitted)


def test_rows_beyond_the_batch_are_left_alone() -> None:
    case = Case.draw(np.random.default_rng(4), 16, 4, "spread", rows=16)
    confidence, slots, capacities = case.tensors()
    allocate(confidence, slots[3:9], capacities[3:9], 5)
    part = Case(case.confidence, case.slots[3:9], case.drafted[3:9])
    np.testing.assert_array_equal(capacities[3:9].cpu().numpy(), by_hand(part, 5))
    untouched = np.r_[0:3, 9:16]
    np.testing.assert_array_equal(capacities.cpu().numpy()[untouched], case.drafted[untouched])


# --- sizing ---------------------------------------------------------------------------------------------------------


def curved(rng: Rng, max_num_reqs: int, max_num_tokens: int) -> CostTables:
    sizes = np.unique(rng.integers(1, max_num_tokens, 12))
    ms = np.cumsum(rng.exponential(0.4, len(sizes))) + 5
    points = [(int(size), float(value)) for size, value in zip(sizes, ms, strict=True)]
    verify = staircase(max_num_tokens, points, int(rng.choice(sizes)))
    return CostTables(np.linspace(0.5, 1.5, max_num_reqs + 1), verify)


def rising(rng: Rng, max_num_reqs: int, max_num_tokens: int) -> CostTables:
    """Every token costs, now more and now less, so that the rate falls early and may rise again."""
    return CostTables(np.full(max_num_reqs + 1, 2.0), 4 + np.cumsum(rng.exponential(0.3, max_num_tokens + 1)))


def knife_edge(case: Case, num_sampling: int, tokens: int, rng: Rng, max_num_reqs: int) -> CostTables:
    """Every budget is as good as any other, to a few units in the last place."""
    worth = num_sampling + np.concatenate([[0.0], np.cumsum(ranked(case))])
    verify = np.full(tokens + len(worth) + 5, 1e9)
    verify[tokens : tokens + len(worth)] = 0.7 * worth * (1 + rng.integers(-2, 3, len(worth)) * 2.0**-52) - 0.25
    return CostTables(np.full(max_num_reqs + 1, 0.25), np.maximum(verify, 1e-6))


def ranked(case: Case) -> NDArray[np.float64]:
    """Float64 survivals of the drafted slots, highest first; a NaN counts as 0."""
    product = np.cumprod(case.confidence[case.slots].astype(np.float64), axis=1)
    valid = np.arange(product.shape[1]) < case.drafted[:, None]
    return -np.sort(-np.nan_to_num(product, nan=0.0)[valid])


@dataclass
class Rates:
    """The exact expected tokens per ms at every budget up to the cap, and how far float64 may be off.

    Let u = 2⁻⁵³. T_B = N + Σ_{j<B} S_j adds B + 1 numbers ≥ 0 in some order, so it errs by at most B·u relatively
    (Higham §4.2); the cost is one addition and the rate one division. With n the largest budget, each rate errs by
    e = (n + 3) u. If v̂_a ≥ v̂_b, then v_a ≥ v_b (1 − e)/(1 + e) ≥ v_b (1 − 2e).
    """

    values: list[Fraction]
    slack: Fraction

    @classmethod
    def of(cls, case: Case, sizes: tuple[int, int, int], tables: CostTables, limit: int) -> Rates:
        num_sampling, num_reqs, tokens = sizes
        cap = min(int(case.drafted.sum()), max(0, limit - num_reqs))
        total, values = Fraction(num_sampling), []
        gains = [Fraction(0), *map(Fraction, ranked(case)[:cap].tolist())]
        for budget, gain in enumerate(gains):
            total += gain
            verify = float(tables.verify[min(tokens + budget, len(tables.verify) - 1)])
            values.append(total / (Fraction(float(tables.draft[num_reqs])) + Fraction(verify)))
        return cls(values, 2 * (cap + 3) * Fraction(1, 2**53))

    def check_best(self, budget: int, theirs: int) -> bool:
        """Require the first maximum, or one as good to rounding; say whether it was defined."""
        top = max(self.values)
        good = [b for b, value in enumerate(self.values) if value >= top * (1 - self.slack)]
        assert budget in good
        assert theirs in good
        return len(good) == 1

    def check_first_fall(self, budget: int, theirs: int) -> bool:
        steps = list(zip(self.values, self.values[1:], strict=False))
        for stop in (budget, theirs):
            assert all(after > before * (1 - self.slack) for before, after in steps[:stop])
            assert stop == len(steps) or steps[stop][1] <= steps[stop][0] * (1 + self.slack)
        defined = all(abs(after - before) > before * self.slack for before, after in steps[: max(budget, theirs) + 1])
        assert budget == theirs or not defined
        return defined


@pytest.mark.parametrize(
    ("tables", "chunk"), [("curved", 2048), ("rising", 2048), ("rising", 16), ("knife-edge", 2048), ("knife-edge", 16)]
)
def test_budgets_are_those_of_the_policies(tables: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_CHUNK", chunk)
    rng = np.random.default_rng([len(tables), chunk])
    chosen: dict[str, set[int]] = {"best": set(), "fall": set()}
    defined = trials = 0
    for num_slots, max_num_reqs in ((1, 9), (7, 12), (16, 4)):
        for kind in ("spread", "coins", "saturated", "NaN"):
            case = Case.draw(rng, max_num_reqs, num_slots, kind)
            prefills = int(rng.integers(0, max_num_reqs - len(case.slots) + 1))
            num_reqs = len(case.slots) + prefills
            sizes = (
                len(case.slots) + int(rng.integers(0, prefills + 1)),
                num_reqs,
                num_reqs + int(rng.integers(0, 40)),
            )
            limit = int(rng.choice([NO_LOGIT_LIMIT, num_reqs + rng.integers(0, 20), max(num_reqs - 1, 0)]))
            tokens = max_num_reqs * (num_slots + 9)
            made = {"curved": curved, "rising": rising}.get(tables)
            costs = made(rng, max_num_reqs, tokens) if made else knife_edge(case, sizes[0], sizes[2], rng, max_num_reqs)
            device = DeviceBudget(max_num_reqs, num_slots, costs, limit, DEVICE, draft_sampling="probabilistic")
            for tensor in (device.budget, *vars(device._scratch).values()):
                tensor.fill_(-9 if tensor.dtype == torch.int32 else torch.nan)
            given: Any = sizes if trials % 2 else torch.tensor(sizes, dtype=torch.int32, device=DEVICE)
            trials += 1

            confidence, slots, capacities = case.tensors()
            best = int(device.size(confidence, slots, capacities, given))
            np.testing.assert_array_equal(capacities.cpu().numpy(), case.drafted)
            rates = Rates.of(case, sizes, costs, limit)
            host = (case.confidence, case.slots, case.drafted, sizes, costs, limit)
            defined += rates.check_best(best, reference.size(*host))
            device.allocate(confidence, slots, capacities)
            np.testing.assert_array_equal(capacities.cpu().numpy(), by_hand(case, best))

            confidence, slots, capacities = case.tensors()
            fall = int(device.first_fall(confidence, slots, capacities, given))
            expected, admitted = reference.first_fall(*host)
            rates.check_first_fall(fall, expected)
            np.testing.assert_array_equal(capacities.cpu().numpy(), by_hand(case, fall))
            if fall == expected:
                np.testing.assert_array_equal(capacities.cpu().numpy(), admitted)
            chosen["best"].add(best)
            chosen["fall"].add(fall)
    assert len(chosen["best"]) > 3
    if tables == "rising":
        assert defined > trials // 2
        assert len(chosen["fall"]) > 3


@pytest.mark.parametrize("chunk", [2048, 2])
def test_the_first_of_equal_maxima_wins(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Survivals of 1 under a cost equal to the tokens: every budget is worth exactly 1 token per ms."""
    monkeypatch.setattr(sizing, "_CHUNK", chunk)
    case = Case(np.ones((2, 3), dtype=np.float32), np.array([1, 0]), np.array([3, 3]))
    costs = CostTables(np.zeros(3), np.maximum(np.arange(20.0), 1e-6))
    device = DeviceBudget(2, 3, costs, NO_LOGIT_LIMIT, DEVICE, draft_sampling="probabilistic")
    assert int(device.size(*case.tensors(), (2, 2, 2))) == 0
    costs.verify[2] = 2.5  # none is worse now, and all others tie
    device = DeviceBudget(2, 3, costs, NO_LOGIT_LIMIT, DEVICE, draft_sampling="probabilistic")
    assert int(device.size(*case.tensors(), (2, 2, 2))) == 1
    assert int(device.first_fall(*case.tensors(), (2, 2, 2))) == 1  # a tie is no rise


@pytest.mark.parametrize(("rows", "num_slots"), [(255, 3), (256, 7)])
def test_a_wide_batch(rows: int, num_slots: int) -> None:
    rng = np.random.default_rng(rows)
    case = Case.draw(rng, 256, num_slots, "spread", rows)
    sizes = (rows, rows, rows)
    costs = CostTables(np.ones(257), 30 + 0.01 * np.arange(256 * 9.0) ** 1.2)
    device = DeviceBudget(256, num_slots, costs, NO_LOGIT_LIMIT, DEVICE, draft_sampling="greedy")
    confidence, slots, capacities = case.tensors()
    best = int(device.size(confidence, slots, capacities, sizes, live=True))
    host = (case.confidence, case.slots, case.drafted, sizes, costs, NO_LOGIT_LIMIT)
    Rates.of(case, sizes, costs, NO_LOGIT_LIMIT).check_best(best, reference.size(*host))
    device.allocate(confidence, slots, capacities)
    np.testing.assert_array_equal(capacities.cpu().numpy(), by_hand(case, best))
    assert 0 < best < case.drafted.sum()


def test_rows_that_pad_change_no_budget() -> None:
    rng = np.random.default_rng(9)
    case = Case.draw(rng, 12, 4, "spread", rows=7)
    padded = Case(case.confidence, np.full(12, -1), np.full(12, 4))
    padded.slots[2:9], padded.drafted[2:9] = case.slots, case.drafted
    device = DeviceBudget(12, 4, rising(rng, 12, 100), NO_LOGIT_LIMIT, DEVICE, draft_sampling="probabilistic")
    for choose in (device.size, device.first_fall):
        expected = int(choose(*case.tensors(), (7, 7, 7)))
        assert int(choose(*padded.tensors(), (7, 7, 7))) == expected > 0


def test_an_empty_batch_has_no_budget() -> None:
    case = Case.draw(np.random.default_rng(0), 4, 3, "spread", rows=0)
    device = DeviceBudget(4, 3, CostTables(np.ones(5), np.ones(9)), 100, DEVICE, draft_sampling="probabilistic")
    device.budget.fill_(5)
    assert int(device.size(*case.tensors(), (0, 0, 0))) == 0
    device.budget.fill_(5)
    assert int(device.first_fall(*case.tensors(), (1, 1, 8))) == 0
    device.allocate(*case.tensors())


# --- what is refused, and what stays where it is ---------------------------------------------------------------------


def test_a_global_argmax_on_live_confidences_needs_greedy_drafts() -> None:
    case = Case.draw(np.random.default_rng(0), 4, 3, "spread", rows=4)
    costs = CostTables(np.ones(5), np.ones(40))
    sampled = DeviceBudget(4, 3, costs, 100, DEVICE, draft_sampling="probabilistic")
    with pytest.raises(InputError, match="lossy with sampled drafts"):
        sampled.size(*case.tensors(), (4, 4, 4), live=True)
    greedy = DeviceBudget(4, 3, costs, 100, DEVICE, draft_sampling="greedy")
    assert int(greedy.size(*case.tensors(), (4, 4, 4), live=True)) == case.drafted.sum()


def test_what_does_not_fit_is_refused() -> None:
    def made(tables: CostTables, max_num_reqs: int = 4, num_slots: int = 3, sampling: str = "greedy") -> DeviceBudget:
        return DeviceBudget(max_num_reqs, num_slots, tables, 100, DEVICE, draft_sampling=sampling)

    good = CostTables(np.ones(5), np.ones(9))
    for message, tables in (
        ("draft has 4 entries", CostTables(np.ones(4), np.ones(9))),
        ("verify 0", CostTables(np.ones(5), np.ones(0))),
        ("verify > 0", CostTables(np.ones(5), np.zeros(9))),
        ("must be finite", CostTables(np.full(5, np.nan), np.ones(9))),
    ):
        with pytest.raises(InputError, match=message):
            made(tables)
    with pytest.raises(InputError, match="draft_sampling is greedy or probabilistic"):
        made(good, sampling="argmax")
    with pytest.raises(InputError, match="lower max_num_seqs to 2048"):
        made(CostTables(np.ones(4098), np.ones(9)), max_num_reqs=4097, num_slots=16)
    device = made(good)
    confidence, slots, capacities = Case.draw(np.random.default_rng(0), 4, 3, "spread", rows=3).tensors()
    for message, arguments in (
        ("confidences must be float32", (confidence[:, :2], slots, capacities)),
        ("confidences must be float32", (confidence.double(), slots, capacities)),
        ("counts must agree", (confidence, slots, capacities[:2])),
        ("not pass 4", (confidence, slots.repeat(2), capacities.repeat(2))),
    ):
        with pytest.raises(InputError, match=message):
            device.allocate(*arguments)
    for sizes in ((3, 5, 3), (-1, 3, 3), (3, 3, -1), torch.zeros(3, device=DEVICE)):
        with pytest.raises(InputError, match="budget:"):
            device.size(confidence, slots, capacities, sizes)


def test_another_number_of_requests_compiles_nothing() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("launches.py")), "budget"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # A budget from the host and from the device; global argmax with sizes from either, and the first fall.
    kernels = {"_allocate_kernel": 2, "_survival_kernel": 1, "_rank_kernel": 1, "_choose_kernel": 3}
    assert json.loads(done.stdout) == kernels


@pytest.mark.skipif(DEVICE.type != "cuda", reason="graphs are captured on a GPU")
def test_a_captured_graph_replays_on_new_inputs() -> None:
    rng = np.random.default_rng(11)
    costs = rising(rng, 32, 400)
    device = DeviceBudget(32, 7, costs, NO_LOGIT_LIMIT, DEVICE, draft_sampling="probabilistic")
    confidence, slots, capacities = Case.draw(rng, 32, 7, "spread", rows=20).tensors()
    sizes = torch.tensor([20, 20, 20], dtype=torch.int32, device=DEVICE)

    def step() -> None:
        device.allocate(confidence, slots, capacities)
        device.size(confidence, slots, capacities, sizes)

    step()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for kind in ("spread", "coins", "ones"):
        case = Case.draw(rng, 32, 7, kind, rows=20)
        for target, value in zip((confidence, slots, capacities), case.tensors(), strict=True):
            target.copy_(value)
        before = int(device.budget)
        graph.replay()
        admitted = by_hand(case, before)
        np.testing.assert_array_equal(capacities.cpu().numpy(), admitted)
        left = Case(case.confidence, case.slots, admitted)
        rates = Rates.of(left, (20, 20, 20), costs, NO_LOGIT_LIMIT)
        host = (case.confidence, case.slots, admitted, (20, 20, 20), costs, NO_LOGIT_LIMIT)
        rates.check_best(int(device.budget), reference.size(*host))
