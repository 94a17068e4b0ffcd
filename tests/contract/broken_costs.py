"""Cost models with one realistic mistake each; `test_cost_contract.py` says which checks catch it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from avsim.costs import CostTables, CurveCost, LinearCost


@dataclass(frozen=True)
class FreeIdle(LinearCost):
    """Charges nothing for a step of one token."""

    def verify_ms(self, shape):
        return np.where(shape.num_tokens > 1, super().verify_ms(shape), 0.0)


@dataclass(frozen=True)
class PaysLargest(CurveCost):
    """Looks the whole batch of steps up at its largest size."""

    def verify_ms(self, shape):
        largest = np.full_like(shape.num_tokens, shape.num_tokens.max(initial=0))
        return super().verify_ms(replace(shape, num_tokens=largest))


@dataclass(frozen=True)
class TrustsMedians(CurveCost):
    """Skips the running maximum, so that noise in the profile makes a larger step cheaper."""

    def verify_ms(self, shape):
        sizes, ms = np.asarray(self.verify).T
        return ms[np.minimum(np.searchsorted(sizes, shape.num_tokens), len(sizes) - 1)]


@dataclass(frozen=True)
class SharesDraft(LinearCost):
    """Spreads the draft time over the requests, as if a step paid for one of them."""

    def draft_ms(self, shape):
        return super().draft_ms(shape) / np.maximum(shape.num_reqs, 1)


@dataclass(frozen=True)
class CreditsCache(LinearCost):
    """Counts cached tokens as saved work."""

    def verify_ms(self, shape):
        return super().verify_ms(replace(shape, kv_tokens=0 * shape.kv_tokens)) - np.minimum(1e-7 * shape.kv_tokens, 1)


@dataclass(frozen=True)
class SkipsOverhead(LinearCost):
    """Adds the overhead only to steps that draft."""

    def step_ms(self, shape, *, drafting):
        total = self.verify_ms(shape)
        return total + self.draft_ms(shape) + self.overhead_ms if drafting else total


@dataclass(frozen=True)
class ForgetsOverhead(LinearCost):
    """Leaves the overhead out of its JSON form."""

    def to_json(self):
        return {key: value for key, value in super().to_json().items() if key != "overhead_ms"}


@dataclass(frozen=True)
class ShiftsTable(LinearCost):
    """Fills its table from size 1, so that every entry belongs to the next size."""

    def tables(self, max_num_reqs, max_num_tokens, *, kv_tokens_per_req=0.0):
        right = super().tables(max_num_reqs, max_num_tokens + 1, kv_tokens_per_req=kv_tokens_per_req)
        return CostTables(right.draft, right.verify[1:])


@dataclass(frozen=True)
class FlagsWrongSide(CurveCost):
    """Flags the sizes inside the measured range."""

    def outside(self, num_reqs, num_tokens):
        return None if super().outside(num_reqs, num_tokens) else "inside"


@dataclass(frozen=True)
class NeverOutside(CurveCost):
    """Extrapolates without a word."""

    def outside(self, num_reqs, num_tokens):
        return None


@dataclass(frozen=True)
class Interpolates(CurveCost):
    """Draws straight lines between captured sizes, where the engine pads."""

    def verify_ms(self, shape):
        sizes, ms = np.asarray(self.verify).T
        below = np.interp(shape.num_tokens, sizes, np.maximum.accumulate(ms))
        return np.where(shape.num_tokens <= self.capture_limit, below, super().verify_ms(shape))


@dataclass(frozen=True)
class SmoothsCliff(CurveCost):
    """Draws a straight line across the capture limit."""

    def verify_ms(self, shape):
        sizes, ms = np.asarray(self.verify).T
        across = np.interp(shape.num_tokens, sizes, np.maximum.accumulate(ms))
        past = (shape.num_tokens > self.capture_limit) & (shape.num_tokens <= sizes[-1])
        return np.where(past, across, super().verify_ms(shape))
