"""A made-up machine: steps whose times follow a known law with noise, and a timer that reads them without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from avsim.costs.profile import ProfileCard, ProfilePlan, ProfileRun, run_profile
from avsim.costs.profile.runner import Step

PLAN = ProfilePlan(
    tokens=(1, 2, 4, 8, 16), contexts=(100, 400), requests=(1, 4, 8), num_slots=3, depths=(1,), repeats=30, seed=1
)


def verify_law(tokens: int, reqs: int, context: int) -> float:
    return 5.0 + 0.25 * tokens + 0.0004 * reqs * context


def draft_law(reqs: int, depth: int, context: int) -> float:
    return (0.5 + 0.01 * reqs) + (depth - 1) * (0.4 + 0.02 * reqs)


class MadeUp:
    """A runner, a timer and a clock in one; every call of a step moves the clock by what it takes.

    Attributes:
        drift: factor on all times by the time on the clock, in s.
        spoil: factor on the timing of some number.
    """

    name = "made-up machine"
    device = "cpu"
    capture_limit = 0

    def __init__(
        self,
        *,
        sigma: float = 0.02,
        seed: int = 0,
        verify: Callable[[int, int, int], float] = verify_law,
        draft: Callable[[int, int, int], float] | None = draft_law,
        drift: Callable[[float], float] = lambda s: 1.0,
        spoil: dict[int, float] | None = None,
    ):
        self.rng, self.sigma = np.random.default_rng(seed), sigma
        self.verify_law, self.draft_law, self.drift = verify, draft, drift
        self.spoil, self.seconds, self.timed, self.calls = spoil or {}, 0.0, 0, 0

    def verify(self, queries: Sequence[int], context: int) -> Step:
        return self._step(self.verify_law(sum(queries), len(queries), context))

    def draft(self, num_reqs: int, depth: int, context: int) -> Step | None:
        return None if self.draft_law is None else self._step(self.draft_law(num_reqs, depth, context))

    def describe(self) -> dict[str, str]:
        return {
            "model": "made-up", "hardware": "a law", "vocab_size": "1000", "drafter_kind": "eagle", "dtype": "float64",
            "includes": "everything", "excludes": "nothing",
        }  # fmt: skip

    def _step(self, expected_ms: float) -> Step:
        def run() -> float:
            ms = expected_ms * self.drift(self.seconds) * float(np.exp(self.sigma * self.rng.normal()))
            self.seconds += ms / 1e3
            self.calls += 1
            return ms

        return run

    def clock(self) -> float:
        return self.seconds

    def ready(self, step: Step, size: int) -> tuple[Step, str]:
        return step, "full" if size <= self.capture_limit else "none"

    def ms(self, step: Step) -> float:
        found = step()
        assert isinstance(found, float)
        self.timed += 1
        return found * self.spoil.get(self.timed - 1, 1.0)


def profile(machine: MadeUp, plan: ProfilePlan = PLAN, **card: Any) -> ProfileRun:
    return run_profile(
        machine, plan, ProfileCard("law", **card), machine, date="2026-01-02", clock=machine.clock
    )  # fmt: skip
