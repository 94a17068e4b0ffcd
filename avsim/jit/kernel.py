"""The compiled part of a closed loop: every step of one run from one refit to the next.

Only `avsim.jit.loop` imports this module, and only where it is used: importing numba takes a second, compiling several
(the result is kept on disk where some folder for it can be written). Without numba the functions are plain Python: the
same numbers, slowly. All compiled functions stand in this one file, because numba looks for changes in no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from avsim.types import BoolArray, F32Array, F64Array, IntArray

__all__ = [
    "NUMBA",
    "Given",
    "Scratch",
    "Seated",
    "Written",
    "best_budget",
    "blank",
    "lay_out",
    "price",
    "scratch_for",
    "serve",
    "sort_next",
    "survivals",
    "top_slots",
]

try:
    import numba
except ImportError:
    NUMBA = False
else:
    NUMBA = True

_ONE = 0x3FF0000000000000  # 1.0 in float64
_SHIFT = 47  # keeps five bits of the mantissa: 32 classes per power of two
_CLASSES = 256  # eight powers of two; what is smaller shares the last class
_FEW = 12  # values up to which a class is small
_STRETCH = 128  # ranks that are sorted at a time
_ONE_32 = 0x3F800000  # 1.0 in float32
_NEAR = 1 << 21  # a quarter of a power of two, in float32
_SLACK = 1e-9  # far above the rounding of sums over 2^16 slots, far below any gain that counts
_NONE: Any = np.int64(0)  # numba gives a plain 0 a type of its own, and would compile for that as well
_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    """Compile lazily; without a folder that numba could keep the result in, for this process only."""
    if not NUMBA:
        return function
    njit: Any = numba.njit
    try:
        return njit(cache=True, error_model="numpy")(function)
    except RuntimeError:
        return njit(error_model="numpy")(function)


class Given(NamedTuple):
    """What no step changes: the confidences until the next refit, the pool, the run's sequence, the believed costs.

    `table` is float32 `[K, 1, rows]`, with no rows where the policy reads no confidences and admits every draft.
    """

    table: F32Array
    num_accepted: IntArray
    num_drafted: IntArray
    start: IntArray
    prompt_len: IntArray
    output_len: IntArray
    sequence: IntArray
    draft_ms: F64Array
    verify_ms: F64Array


class Seated(NamedTuple):
    """Where the run stands, changed in place; `[seats]` as in `Seats`, except where said.

    `counts` holds the requests taken from the sequence, and the seats taken. `history` holds the confidences of the
    last lag + 1 steps in a circle, float32 `[lag + 1, seats, K]`. `seated_at` and `ended_at` say in which step that
    happened to each request of the sequence, −1 where not.
    """

    request: IntArray
    turn: IntArray
    base: IntArray
    prompt: IntArray
    last: IntArray
    position: IntArray
    age: IntArray
    active: BoolArray
    counts: IntArray
    history: F32Array
    seated_at: IntArray
    ended_at: IntArray


class Written(NamedTuple):
    """What the steps leave behind, `[steps, seats]`, and sums over seats, `[6, steps]`.

    The sums are requests, drafted, verified, accepted and emitted tokens, and tokens in the KV cache. `request`, `turn`
    and `first` are written only where they have room.
    """

    rows: IntArray
    admitted: IntArray
    active: BoolArray
    request: IntArray
    turn: IntArray
    first: BoolArray
    sums: IntArray


class Scratch(NamedTuple):
    """Memory for one step.

    `survival` is `[K · seats]`, slot after slot, −1 where not drafted. `sizing` holds the survivals of drafted slots in
    any order, `rank_class` the class of each, and `class_end` the rank at which each class ends. `ranked` holds them
    sorted: those of even rank in its first half, of odd rank in its second.
    """

    survival: F32Array
    sizing: F64Array
    rank_class: IntArray
    class_end: IntArray
    ranked: F64Array
    line: F64Array
    guess: F32Array
    drafted: IntArray
    vacated: IntArray
    cost_ms: F64Array
    slope: F64Array
    hull: IntArray


def blank(steps: int, seats: int, kept: bool) -> Written:
    """Return room for what some steps leave behind."""
    every, some = (steps, seats), (steps * kept, seats)
    return Written(
        rows=np.empty(every, dtype=np.int64),
        admitted=np.empty(every, dtype=np.int64),
        active=np.empty(every, dtype=bool),
        request=np.empty(some, dtype=np.int64),
        turn=np.empty(some, dtype=np.int64),
        first=np.empty(some, dtype=bool),
        sums=np.empty((6, steps), dtype=np.int64),
    )


def scratch_for(num_slots: int, seats: int) -> Scratch:
    """Return memory for the steps of runs one after another."""
    slots = num_slots * seats
    return Scratch(
        survival=np.empty(slots, dtype=np.float32),
        sizing=np.empty(slots),
        rank_class=np.empty(slots, dtype=np.int64),
        class_end=np.empty(_CLASSES, dtype=np.int64),
        ranked=np.empty(2 * (slots // 2 + 1)),
        line=np.empty(slots),
        guess=np.empty(1, dtype=np.float32),
        drafted=np.empty(seats, dtype=np.int64),
        vacated=np.empty(seats, dtype=np.int64),
        cost_ms=np.empty(slots + 1),
        slope=np.empty(slots + 1),
        hull=np.empty(slots + 1, dtype=np.int64),
    )


@_compiled
def _fill(step: int, first_position: int, left: int, given: Given, seated: Seated, scratch: Scratch) -> None:
    """Seat the next requests in the places just left, as `Seats` does."""
    while left:
        over = 0
        for index in range(left):
            turn = seated.counts[0]
            if turn >= len(given.sequence):
                break
            seat, request = scratch.vacated[index], given.sequence[turn]
            seated.counts[0] += 1
            seated.request[seat] = request
            seated.turn[seat] = turn
            seated.base[seat] = given.start[request]
            seated.prompt[seat] = given.prompt_len[request]
            seated.last[seat] = given.output_len[request] - 1
            seated.position[seat] = first_position
            seated.age[seat] = 0
            seated.seated_at[turn] = step
            if seated.last[seat] <= first_position:
                seated.ended_at[turn] = step
                scratch.vacated[over] = seat
                over += 1
            else:
                seated.active[seat] = True
                seated.counts[1] += 1
        left = over


@_compiled
def price(reqs: int, width: int, given: Given, scratch: Scratch) -> None:
    """Set `cost_ms[B]` for B = 0 … width, and `slope[B]`: the least slope from there to any larger budget."""
    cost_ms, slope, hull = scratch.cost_ms, scratch.slope, scratch.hull
    for budget in range(width + 1):
        cost_ms[budget] = given.verify_ms[min(reqs + budget, len(given.verify_ms) - 1)] + given.draft_ms[reqs]
    # The least slopes are those of the lower convex hull of what lies to the right.
    slope[width] = np.inf
    hull[0] = width
    size = 1
    for budget in range(width - 1, -1, -1):
        steep = (cost_ms[hull[size - 1]] - cost_ms[budget]) / (hull[size - 1] - budget)
        while size > 1 and slope[hull[size - 1]] <= steep:
            size -= 1
            steep = (cost_ms[hull[size - 1]] - cost_ms[budget]) / (hull[size - 1] - budget)
        slope[budget] = steep
        hull[size] = budget
        size += 1


@_compiled
def survivals(step: int, lag: int, drafts: int, rows: IntArray, given: Given, seated: Seated, scratch: Scratch) -> None:
    """Set the live survivals and the sizing survivals, and count the classes of these."""
    live, recorded = seated.history[step % (lag + 1)], seated.history[(step + 1) % (lag + 1)]
    seats, depth = live.shape
    survival, sizing = scratch.survival.reshape(depth, seats), scratch.sizing.reshape(seats, depth)
    for seat in range(seats):
        row, known = np.uint64(rows[seat]), seated.age[seat] >= lag
        product, sized = np.float32(1), 1.0
        for slot in range(depth):
            p = given.table[slot, 0, row]
            live[seat, slot] = p
            product *= p
            survival[slot, seat] = product
            if known:
                sized *= recorded[seat, slot]
            sizing[seat, slot] = sized
    filled = depth * seats
    if drafts < filled:
        filled = 0
        for seat in range(seats):
            drafted = scratch.drafted[seat]
            for slot in range(drafted):
                scratch.sizing[filled] = sizing[seat, slot]
                filled += 1
            for slot in range(drafted, depth):
                survival[slot, seat] = -1
    bits = scratch.sizing.view(np.int64)
    for number in range(_CLASSES):
        scratch.class_end[number] = 0  # how many a class holds; `lay_out` makes ends of them
    for index in range(filled):
        number = min((_ONE - bits[index]) >> _SHIFT, _CLASSES - 1)
        scratch.rank_class[index] = number
        scratch.class_end[number] += 1


@_compiled
def lay_out(size: int, scratch: Scratch) -> None:
    """Put the sizing survivals in order of class, and set where each class ends."""
    class_end, ranked, sizing = scratch.class_end, scratch.ranked, scratch.sizing
    half = len(ranked) // 2
    begin = 0
    for number in range(_CLASSES):
        begin, class_end[number] = begin + class_end[number], begin
    for index in range(size):
        number = scratch.rank_class[index]
        place = class_end[number]
        ranked[(place & 1) * half + (place >> 1)] = sizing[index]
        class_end[number] = place + 1


@_compiled
def _sort_large(begin: int, end: int, scratch: Scratch) -> None:
    """Sort ranks `begin` to `end` by Shell's method."""
    ranked, line, size = scratch.ranked, scratch.line, end - begin
    half = len(ranked) // 2
    for index in range(size):
        line[index] = ranked[((begin + index) & 1) * half + ((begin + index) >> 1)]
    gap = 1
    while 9 * gap < size:
        gap = 3 * gap + 1
    while gap:
        for index in range(gap, size):
            value, place = line[index], index
            while place >= gap and line[place - gap] < value:
                line[place] = line[place - gap]
                place -= gap
            line[place] = value
        gap //= 3
    for index in range(size):
        ranked[((begin + index) & 1) * half + ((begin + index) >> 1)] = line[index]


@_compiled
def _exchange(upper: IntArray, lower: IntArray) -> None:
    for index in range(len(upper)):
        a, b = upper[index], lower[index]
        upper[index], lower[index] = max(a, b), min(a, b)


@_compiled
def sort_next(begin: int, number: int, scratch: Scratch) -> tuple[int, int]:
    """Sort some of the classes from `number` on, the first of which begins at rank `begin`.

    A class of m values is in order after m rounds of exchanges between neighbours, at even and at odd ranks in turn
    (odd-even transposition): no branch to mispredict, and a round goes over many classes at once. A large class is
    sorted by itself.

    Returns:
        where the sorted ranks end, and the next class.
    """
    class_end, end, most = scratch.class_end, begin, 0
    while number < _CLASSES and end - begin < _STRETCH:
        some = class_end[number] - end
        if some > _FEW:
            if end == begin:
                end, number = class_end[number], number + 1
                _sort_large(begin, end, scratch)
                return end, number
            break
        end, most, number = end + some, max(most, some), number + 1
    if most < 2:
        return end, number
    bits = scratch.ranked.view(np.int64)  # numbers that are not negative are ordered as their bits are
    half = len(bits) // 2
    even, odd = bits[:half], bits[half:]
    for turn in range(most):
        if turn & 1:
            first, past = begin >> 1, (end - 1) >> 1
            _exchange(odd[first:past], even[first + 1 : past + 1])
        else:
            first, past = (begin + 1) >> 1, end >> 1
            _exchange(even[first:past], odd[first:past])
    return end, number


@_compiled
def best_budget(drafts: int, cap: int, reqs: int, scratch: Scratch) -> tuple[int, float]:
    """Return the first maximum over B ≤ cap of (reqs + Σ of the B highest sizing survivals) / cost_ms[B].

    The walk ends early where no larger budget can win. With v the next survival, m the least slope of the cost from B
    on, λ the best value so far: the value at B + d is at most (N_B + d v) / (cost_B + d m), which stays below λ for
    every d ≥ 1 if v ≤ λ m and N_B + v ≤ λ (cost_B + m), for both sides are linear in d.

    Returns:
        B*, and the lowest survival among its highest.
    """
    ranked, cost_ms, slope = scratch.ranked, scratch.cost_ms, scratch.slope
    half = len(ranked) // 2
    lay_out(drafts, scratch)
    best, best_value, cut, total = 0, reqs / cost_ms[0], 1.0, 0.0
    sorted_to = number = _NONE
    for budget in range(cap):
        if budget == sorted_to:
            sorted_to, number = sort_next(budget, number, scratch)
        value, enough = ranked[(budget & 1) * half + (budget >> 1)], best_value * (1 - _SLACK)
        if value <= enough * slope[budget] and total + reqs + value <= enough * (cost_ms[budget] + slope[budget]):
            break
        total += value
        objective = (total + reqs) / cost_ms[budget + 1]
        if objective > best_value:
            best, best_value, cut = budget + 1, objective, value
    return best, cut


@_compiled
def top_slots(scratch: Scratch, budget: int, guess: float, drafts: int, admitted: IntArray) -> None:
    """Set M, which holds the drafted slots beforehand, so that the `budget` highest live survivals are admitted.

    The cut is found by halving: survivals are at least 0, so they are ordered as their bits are, and those not drafted
    are negative. It probably lies near the `guess`. Ties go by slot, then by request, as in
    `avsim.policies.budget.allocate`.
    """
    if budget == drafts:
        return
    bits = scratch.survival.view(np.int32)
    seats = len(admitted)
    depth = len(bits) // seats
    low, high = 0, _ONE_32 + 1
    reached: Any = drafts
    scratch.guess[0] = guess
    near: Any = np.int64(scratch.guess.view(np.int32)[0])
    tries = 0
    while reached > budget and high - low > 1:
        middle = (low + high) // 2
        if tries < 2:
            middle = min(max(near + (2 * tries - 1) * _NEAR, low + 1), high - 1)
        tries += 1
        several: Any = np.uint32(0)
        least = np.int32(middle)
        for index in range(len(bits)):
            several = np.uint32(several + np.uint32(bits[index] >= least))  # eight at a time
        if several >= budget:
            low, reached = middle, np.int64(several)
        else:
            high = middle
    tied = reached > budget  # `low` is the cut, and not all of the slots tied at it get in
    low += tied
    least = np.int32(low)
    short = budget
    for seat in range(seats):
        admitted[seat] = 0
    for slot in range(depth):
        line = bits[slot * seats : (slot + 1) * seats]
        for seat in range(seats):
            above = line[seat] >= least
            admitted[seat] += above
            short -= above
    if tied:
        for index in range(len(bits)):
            if short > 0 and bits[index] == low - 1:
                admitted[index % seats] += 1
                short -= 1


@_compiled
def serve(
    num_steps: int,
    first_step: int,
    depth: int,
    lag: int,
    max_total_logits: int,
    first_position: int,
    given: Given,
    seated: Seated,
    written: Written,
    scratch: Scratch,
) -> int:
    """Take up to `num_steps` steps; returns how many there were until nobody was left."""
    position, active, age = seated.position, seated.active, seated.age
    seats = len(active)
    sized, kept = given.table.shape[2] > 0, len(written.turn) > 0
    priced = -1
    for step in range(num_steps):
        reqs = seated.counts[1]
        if reqs == 0:
            return step
        rows, admitted = written.rows[step], written.admitted[step]
        drafts = left = _NONE
        kv_tokens = 0
        for seat in range(seats):
            taken = active[seat]
            row = seated.base[seat] + position[seat] if taken else 0
            rows[seat] = row
            written.active[step, seat] = taken
            admitted[seat] = min(given.num_drafted[row], depth) if taken else 0
            drafts += admitted[seat]
            scratch.drafted[seat] = admitted[seat]
            kv_tokens += seated.prompt[seat] + position[seat] + 1 if taken else 0
            if kept:
                written.request[step, seat] = seated.request[seat]
                written.turn[step, seat] = seated.turn[seat]
                written.first[step, seat] = age[seat] == 0
        written.sums[0, step] = reqs
        written.sums[1, step] = drafts
        written.sums[5, step] = kv_tokens
        if sized:
            if priced != reqs:
                price(reqs, depth * reqs, given, scratch)
                priced = reqs
            survivals(first_step + step, lag, drafts, rows, given, seated, scratch)
            cap = min(drafts, max(0, max_total_logits - reqs))
            budget, cut = best_budget(drafts, cap, reqs, scratch)
            top_slots(scratch, budget, cut, drafts, admitted)
        verified = accepted = emitted = 0
        for seat in range(seats):
            if not active[seat]:
                continue
            good = min(given.num_accepted[rows[seat]], admitted[seat])
            tokens = min(good + 1, seated.last[seat] - position[seat])
            verified += admitted[seat]
            accepted += good
            emitted += tokens
            position[seat] += tokens
            age[seat] += 1
            if position[seat] >= seated.last[seat]:
                active[seat] = False
                seated.ended_at[seated.turn[seat]] = first_step + step
                scratch.vacated[left] = seat
                left += 1
        written.sums[2, step] = verified
        written.sums[3, step] = accepted
        written.sums[4, step] = emitted
        if left:
            seated.counts[1] -= left
            _fill(first_step + step, first_position, left, given, seated, scratch)
    return num_steps
