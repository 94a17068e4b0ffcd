"""Cost models with one realistic mistake each; `test_cost_contract.py` says which checks catch it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from avsim.costs import CostTables, CurveCost, LinearCost, StepShape


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
class DiscountsDepth(LinearCost):
    """Makes drafts cheaper the deeper they go."""

    def draft_ms(self, shape):
        discount = 0.0 if shape.draft_depth is None else 0.01 * np.maximum(shape.draft_depth - 1, 0)
        return super().draft_ms(shape) - discount


@dataclass(frozen=True)
class TaxesSkipping(LinearCost):
    """Charges more for a skipped step than for a draft."""

    def draft_ms(self, shape):
        skipped = shape.draft_depth is not None and shape.draft_depth == 0
        return super().draft_ms(shape) + np.where(skipped, 50.0, 0.0)


@dataclass(frozen=True)
class PaysForFewLogits(LinearCost):
    """Charges tokens without logits as if sampling them were saved twice."""

    def verify_ms(self, shape):
        return super().verify_ms(shape) + (0.0 if shape.logits is None else 1e-3 * (1200 - shape.logits))


@dataclass(frozen=True)
class TablesFirstPassTwice(LinearCost):
    """Leaves the drafter's pass over T + B in the draft table alone, so that trimming seems to save none of it."""

    def tables(self, max_num_reqs, max_num_tokens, *, kv_tokens_per_req=0.0, depth=None):
        right = super().tables(max_num_reqs, max_num_tokens, kv_tokens_per_req=kv_tokens_per_req, depth=depth)
        tokens = np.arange(max_num_tokens + 1)
        alone = StepShape(np.minimum(tokens, 1), tokens, 0.0 * tokens, 0 * tokens)
        return replace(right, verify=self.verify_ms(alone) + self.overhead_ms)


@dataclass(frozen=True)
class TablesOneDepth(LinearCost):
    """Says that every depth costs what the deepest does."""

    def tables(self, max_num_reqs, max_num_tokens, *, kv_tokens_per_req=0.0, depth=None):
        right = super().tables(max_num_reqs, max_num_tokens, kv_tokens_per_req=kv_tokens_per_req, depth=depth)
        return right if depth is None else replace(right, by_depth=0 * right.by_depth + right.draft)


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

    def tables(self, max_num_reqs, max_num_tokens, *, kv_tokens_per_req=0.0, depth=None):
        right = super().tables(max_num_reqs, max_num_tokens + 1, kv_tokens_per_req=kv_tokens_per_req, depth=depth)
        return CostTables(right.draft, right.verify[1:], right.by_depth)


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
