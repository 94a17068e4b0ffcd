"""An affine-invariant ensemble sampler: many walkers, each moved along the line to another one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from avsim.errors import InputError
from avsim.types import F64Array

__all__ = ["sample"]


def sample(
    log_density: Callable[[F64Array], F64Array], start: F64Array, steps: int, *, seed: int, keep_every: int = 10
) -> tuple[F64Array, float]:
    """Draw from a density by the stretch move.

    Args:
        log_density: of positions `[n, P]` → `[n]`; −inf or NaN where it is 0.
        start: walkers, an even number, `[W, P]`, not all on one plane.
        steps: sweeps over all walkers; the first half is thrown away.
        keep_every: sweeps between kept positions.

    Returns:
        draws `[n, P]`, and the share of accepted moves.

    Source: Goodman and Weare, Ensemble samplers with affine invariance, 2010 (a = 2).
    """
    if steps < 2 * keep_every:
        raise InputError(f"the sampler needs at least {2 * keep_every} sweeps, not {steps}")
    rng = np.random.default_rng([seed, 0x57E7])
    walkers, width = start.shape
    half = walkers // 2
    position = start.copy()
    density = _finite(log_density(position))
    kept, moved = [], 0
    for step in range(steps):
        for own, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            stretch = (1 + rng.random(half)) ** 2 / 2
            anchor = position[other][rng.integers(half, size=half)]
            proposal = anchor + stretch[:, None] * (position[own] - anchor)
            proposed = _finite(log_density(proposal))
            with np.errstate(invalid="ignore"):  # a walker that starts where the density is 0 stays until it leaves
                accept = np.log(rng.random(half)) < (width - 1) * np.log(stretch) + proposed - density[own]
            position[own] = np.where(accept[:, None], proposal, position[own])
            density[own] = np.where(accept, proposed, density[own])
            moved += int(accept.sum())
        if step >= steps // 2 and step % keep_every == 0:
            kept.append(position.copy())
    return np.concatenate(kept), moved / (steps * walkers)


def _finite(values: F64Array) -> F64Array:
    return np.where(np.isnan(values), -np.inf, values)
