"""A structural step cost with few parameters, to be fitted where only throughputs are known."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from avsim.costs.base import CostTables
from avsim.types import F64Array

__all__ = ["NUM_BUMPS", "StepLaw"]

NUM_BUMPS = 15  # 1 to 16384 tokens


@dataclass(frozen=True)
class StepLaw:
    """Milliseconds of a step with R requests, n target tokens and d slots drafted per request:

        (fixed · (1 + saturating · (1 − exp(−n / knee))) + per_token · n) · exp(bump(n))
        + per_req · R + [n > limit] · cliff
        + [d > 0] · (draft_fixed + draft_per_req · R + draft_per_slot · R · d)  +  prompt_per_output · emitted tokens

    The saturating term is what rises while ever more weights are touched (experts of a mixture), the next two what
    rises for good (arithmetic; KV cache), the cliff is what falling out of captured graphs costs. Real curves are
    staircases: bump is a small deviation at 1, 2, 4, … tokens, linear in log n between. Prompts are charged by output
    token, since each brings a share of one. Times are ms; fields may be arrays of parameter draws.
    """

    fixed: Any
    saturating: Any
    knee: Any
    per_token: Any
    per_req: Any
    draft_fixed: Any
    draft_per_req: Any
    draft_per_slot: Any
    prompt_per_output: Any
    cliff: Any
    bumps: Any
    """`[…, NUM_BUMPS]`, of the logarithm."""
    limit: int | None = None

    def verify_ms(self, num_reqs: Any, num_tokens: Any) -> Any:
        """Return the target's time; arguments broadcast with the parameters."""
        n = np.asarray(num_tokens, dtype=np.float64)
        ms = self.fixed * (1 + self.saturating * -np.expm1(-n / self.knee)) + self.per_token * n
        ms = ms * np.exp(_bump(self.bumps, n))
        over = 0.0 if self.limit is None else self.cliff * (n > self.limit)
        return ms + self.per_req * num_reqs + over

    def draft_ms(self, num_reqs: Any, depth: Any) -> Any:
        """Return the drafter's time."""
        per_req = self.draft_per_req + self.draft_per_slot * depth
        return np.where(np.asarray(depth) > 0, self.draft_fixed + per_req * num_reqs, 0.0)

    def throughput_tok_s(self, num_reqs: Any, acceptance_length: Any, depth: Any) -> Any:
        """Return the throughput of plain decoding (depth 0) or of a fixed depth."""
        emitted = num_reqs * acceptance_length
        step = self.verify_ms(num_reqs, num_reqs * (1 + depth)) + self.draft_ms(num_reqs, depth)
        return emitted / (step + self.prompt_per_output * emitted) * 1e3

    def draw(self, index: int) -> StepLaw:
        """Return one of several parameter draws."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return StepLaw(**{name: v[index] if isinstance(v, np.ndarray) else v for name, v in values.items()})

    def tables(self, num_reqs: int, num_slots: int) -> CostTables:
        """Tabulate for a policy, with the running maximum as vLLM does; what depends on requests stands with the draft.

        Only for one draw of the parameters.
        """
        reqs = np.arange(num_reqs + 1)
        tokens = np.arange(num_reqs * (num_slots + 1) + 1)
        depths = np.arange(num_slots + 1)[:, None]
        by_depth: F64Array = self.draft_ms(reqs, depths) + self.per_req * reqs
        verify = np.maximum.accumulate(np.maximum(self.verify_ms(0, tokens), 1e-6))
        return CostTables(by_depth[num_slots], verify, by_depth)


def _bump(bumps: F64Array, num_tokens: F64Array) -> F64Array:
    place = np.clip(np.log2(np.maximum(num_tokens, 1.0)), 0, NUM_BUMPS - 1.001)
    left = place.astype(np.int64)
    part = place - left
    if bumps.ndim == 2 and left.shape == bumps.shape[:1]:
        # One number of tokens for each draw of the parameters.
        low, high = (np.take_along_axis(bumps, at[:, None], axis=1)[:, 0] for at in (left, left + 1))
    else:
        low, high = bumps[..., left], bumps[..., left + 1]
    found: F64Array = low * (1 - part) + high * part
    return found
