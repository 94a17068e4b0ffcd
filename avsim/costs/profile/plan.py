"""What a profile measures, and how: a grid of steps, repeats, and the time that it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from avsim.costs.captured import capture_sizes, tail_sizes
from avsim.errors import InputError

__all__ = ["MIN_ROUNDS", "Cell", "ProfilePlan", "Spread", "default_sizes", "spread_tokens"]

Spread = Literal["block", "single"]
"""`block`: each request brings up to K + 1 tokens, as verification does. `single`: one token each, as vLLM profiles."""

MIN_ROUNDS = 6
"""With fewer samples no order statistic gives a 95 % interval of a median."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of the grid.

    Attributes:
        queries: new tokens of each request; of a draft step, one each.
        depth: slots drafted per request; 0 for a target step.
        spreads: the spreads that it belongs to; a step may be the same in both. Empty for a draft step.
    """

    queries: tuple[int, ...]
    context: int
    depth: int = 0
    spreads: tuple[Spread, ...] = ()

    @property
    def num_reqs(self) -> int:
        return len(self.queries)

    @property
    def num_tokens(self) -> int:
        return sum(self.queries)

    @property
    def kv_tokens(self) -> int:
        return self.num_reqs * self.context

    @property
    def held_tokens(self) -> int:
        """Cached tokens that the step needs room for, over all requests."""
        return self.num_reqs * (self.context + max(max(self.queries), self.depth))

    @property
    def size(self) -> int:
        """What a cost table looks the step up by: tokens of a target step, requests of a draft step."""
        return self.num_reqs if self.depth else self.num_tokens

    def __str__(self) -> str:
        if self.depth:
            return f"draft of {self.depth} for {self.num_reqs} requests, {self.context} cached"
        return f"{self.num_tokens} tokens of {self.num_reqs} requests, {self.context} cached"


def spread_tokens(num_tokens: int, spread: Spread, num_slots: int, max_num_reqs: int | None = None) -> tuple[int, ...]:
    """Return the tokens of each request, as even as possible, the larger first.

    `block`: ⌈n / (K + 1)⌉ requests. `single`: min(n, max_num_reqs) requests.

    >>> spread_tokens(8, "block", 5), spread_tokens(3, "single", 5), spread_tokens(5, "single", 5, max_num_reqs=2)
    ((4, 4), (1, 1, 1), (3, 2))
    """
    reqs = -(-num_tokens // (num_slots + 1)) if spread == "block" else min(num_tokens, max_num_reqs or num_tokens)
    each, more = divmod(num_tokens, reqs)
    return (each + 1,) * more + (each,) * (reqs - more)


@dataclass(frozen=True, kw_only=True)
class ProfilePlan:
    """The grid of a profile, and how often and how long it is measured.

    Attributes:
        tokens: tokens of the target's steps.
        contexts: cached tokens per request; the first is that of the written table where one table cannot hold all.
        requests: request counts of the drafter's steps; empty where nothing is drafted.
        num_slots: K, the drafter's own depth, and of blocks to verify.
        depths: further depths to measure; K is always measured.
        spreads: how tokens spread over requests; the first is that of the written table.
        max_num_reqs: most requests of `single` steps, vLLM's max_num_seqs; None for no limit.
        repeats: rounds; in each, every step of the grid is timed once, in an order of its own.
        minutes: most time to take, preparation included; None for no limit.
        seed: of the orders.

    Raises:
        InputError: a value outside its range.
    """

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    requests: tuple[int, ...] = ()
    num_slots: int
    depths: tuple[int, ...] = ()
    spreads: tuple[Spread, ...] = ("block", "single")
    max_num_reqs: int | None = None
    repeats: int = 20
    minutes: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "contexts", "requests", "depths"):
            values = getattr(self, name)
            low = 0 if name == "contexts" else 1
            if any(value < low for value in values) or len(set(values)) != len(values):
                raise InputError(f"--{_OPTION[name]} must be different numbers of at least {low}, not {list(values)}")
        if len(self.tokens) < 2:
            raise InputError("--tokens needs two sizes at least: one says nothing of how the cost grows")
        if not self.contexts:
            raise InputError("--context needs a number of cached tokens")
        if self.num_slots < 1:
            raise InputError(f"--k must be at least 1, not {self.num_slots}")
        if any(depth > self.num_slots for depth in self.depths):
            raise InputError(f"--depths {max(self.depths)} is more than --k {self.num_slots}")
        unknown = set(self.spreads) - set(get_args(Spread))
        if not self.spreads or unknown or len(set(self.spreads)) != len(self.spreads):
            raise InputError(f"--spread is {','.join(self.spreads)!r}; it is block, single or both")
        if self.max_num_reqs is not None and self.max_num_reqs < 1:
            raise InputError(f"--max-reqs must be at least 1, not {self.max_num_reqs}")
        if self.repeats < MIN_ROUNDS:
            raise InputError(f"--repeats must be at least {MIN_ROUNDS} for an interval, not {self.repeats}")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"--minutes must be finite and above 0, not {self.minutes}")
        if self.seed < 0:
            raise InputError(f"--seed must be at least 0, not {self.seed}")

    @property
    def all_depths(self) -> tuple[int, ...]:
        return tuple(sorted({*self.depths, self.num_slots}))

    def cells(self) -> tuple[Cell, ...]:
        """Return every step of the grid, each once."""
        spreads: dict[tuple[tuple[int, ...], int], list[Spread]] = {}
        for context in self.contexts:
            for spread in self.spreads:
                for count in sorted(self.tokens):
                    queries = spread_tokens(count, spread, self.num_slots, self.max_num_reqs)
                    spreads.setdefault((queries, context), []).append(spread)
        found = [Cell(queries, context, 0, tuple(names)) for (queries, context), names in spreads.items()]
        found += [
            Cell((1,) * reqs, context, depth)
            for context in self.contexts
            for depth in self.all_depths
            for reqs in sorted(self.requests)
        ]
        return tuple(found)


_OPTION = {"tokens": "tokens", "contexts": "context", "requests": "requests", "depths": "depths"}


def default_sizes(device: str, capture_limit: int) -> tuple[int, ...]:
    """Return sizes to profile where the user names none: on CUDA those of an engine, its captured sizes and its tail.

    >>> default_sizes("cpu", 0), default_sizes("cuda", 8)
    ((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 12, 16, 32))
    """
    if device == "cpu" or capture_limit < 1:
        return (1, 2, 4, 8, 16, 32, 64)
    return (*capture_sizes(capture_limit), *tail_sizes(capture_limit, 4 * capture_limit))
