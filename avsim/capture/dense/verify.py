"""Drawing tokens, and verdicts that have the law of rejection sampling while the target's sample is fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["couple", "draft_uniforms", "draw", "target_uniforms"]


def target_uniforms(seed: int, request: int, count: int) -> NDArray[np.float64]:
    """Return the uniforms of a request's own samples, one per output index; they depend on nothing else."""
    return np.random.default_rng([seed, request, 0]).random(count)


def draft_uniforms(seed: int, request: int, num_positions: int, num_slots: int) -> NDArray[np.float64]:
    """Return uniforms `[positions, slots, 2]`: one for the verdict and one for the drafted token of each slot.

    Positions are drawn in order, so a longer output only appends to them.
    """
    return np.random.default_rng([seed, request, 1]).random((num_positions, num_slots, 2))


def draw(weights: Any, uniform: Any) -> Any:
    """Return an index per row of non-negative weights `[N, vocab]`, by inversion of the uniforms `[N]` (float64)."""
    import torch

    total = weights.double().cumsum(dim=1)
    index = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)
    return index[:, 0].clamp_(max=weights.shape[1] - 1)


def couple(q: Any, p: Any, sample: Any, uniform: Any) -> Any:
    """Return the drafted tokens `[N]`, given the target's samples x ~ p: a draft is accepted iff it equals x.

    With probability min(1, q(x) / p(x)) the draft is x; else it is drawn from (q − p)⁺, normalised, which cannot give
    x. That is the maximal coupling seen from the target's side: (draft, verdict, emitted token) has the law of
    drafting d ~ q, accepting with min(1, p(d) / q(d)), and resampling from (p − q)⁺.

    Args:
        q, p: the drafter's and the target's probabilities `[N, vocab]`, at the request's temperature.
        sample: int64 `[N]`, the target's own samples.
        uniform: float64 `[N, 2]`.

    Source: Leviathan et al. (2023), Chen et al. (2023).
    """
    import torch

    at = sample[:, None]
    accept = uniform[:, 0] * p.gather(1, at)[:, 0].double() < q.gather(1, at)[:, 0].double()
    excess = (q - p).clamp_(min=0)
    # Where q = p in exact arithmetic, rounding may reject with nothing left over.
    excess = torch.where(excess.sum(dim=1, keepdim=True) > 0, excess, q).scatter_(1, at, 0.0)
    return torch.where(accept, sample, draw(excess, uniform[:, 1]))
