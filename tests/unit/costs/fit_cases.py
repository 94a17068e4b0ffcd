"""Made-up engine steps whose costs follow a known law, for the tests of fitting."""

from __future__ import annotations

import numpy as np

from avsim.costs.fit_samples import Samples, Steps, draft_samples, verify_samples
from avsim.types import F64Array

LAW = {"fixed_ms": 5.0, "per_token_us": 20.0, "per_kv_token_ns": 40.0}
DRAFT_LAW = {
    "draft_fixed_ms": 2.0,
    "draft_per_request_us": 10.0,
    "draft_per_request_token_us": 50.0,
    "draft_per_kv_token_ns": 2.0,
}


def made_up(
    num_steps: int = 2000, sigma: float = 0.05, seed: int = 0, *, correlation: float = 0.0, prefill: bool = False
) -> Steps:
    """Steps of 1–64 requests with 1–8 tokens each; times follow the laws times 1 + σ·z, z an AR(1) Gaussian."""
    rng = np.random.default_rng(seed)
    reqs = rng.integers(1, 65, num_steps).astype(np.float64)
    tokens = reqs * rng.integers(1, 9, num_steps)
    kv = reqs * rng.integers(200, 4000, num_steps)
    prompt = (
        np.where(rng.random(num_steps) < 0.2, rng.integers(50, 500, num_steps), 0.0) if prefill else np.zeros(num_steps)
    )
    verify = LAW["fixed_ms"] + LAW["per_token_us"] / 1e3 * tokens + LAW["per_kv_token_ns"] / 1e6 * kv + 0.008 * prompt
    own = (tokens + prompt) / reqs
    draft = DRAFT_LAW["draft_fixed_ms"] + DRAFT_LAW["draft_per_request_token_us"] / 1e3 * own
    draft += DRAFT_LAW["draft_per_request_us"] / 1e3 * reqs
    draft += DRAFT_LAW["draft_per_kv_token_ns"] / 1e6 * kv
    return Steps(
        tokens=tokens + prompt, reqs=reqs, kv=kv, prefill=prompt,
        forward_ms=verify * (1 + sigma * _noise(rng, num_steps, correlation)),
        drafter_ms=draft * (1 + sigma * _noise(rng, num_steps, correlation)),
        graph=np.full(num_steps, "full", dtype=np.str_), series=np.zeros(num_steps, np.int64), row=np.arange(num_steps),
    )  # fmt: skip


def _noise(rng: np.random.Generator, count: int, correlation: float) -> F64Array:
    shocks = rng.normal(size=count)
    if correlation == 0:
        return shocks
    noise = np.empty(count)
    noise[0] = shocks[0]
    for step in range(1, count):
        noise[step] = correlation * noise[step - 1] + np.sqrt(1 - correlation**2) * shocks[step]
    return noise


def stairs(sizes: F64Array) -> F64Array:
    """A law of captured sizes 8, 16 … 64 and a cliff beyond: the cost of the padded size."""
    padded = np.ceil(sizes / 8) * 8
    return np.where(sizes <= 64, 4 + 0.05 * padded, 30 + 0.1 * sizes)


def stair_steps(num_steps: int = 4000, sigma: float = 0.03, seed: int = 1) -> Steps:
    """Steps of 1–128 tokens that follow `stairs` times 1 + σ·z."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 129, num_steps).astype(np.float64)
    reqs = np.ceil(tokens / 8)
    return Steps(
        tokens=tokens, reqs=reqs, kv=np.full(num_steps, np.nan), prefill=np.zeros(num_steps),
        forward_ms=stairs(tokens) * (1 + sigma * rng.normal(size=num_steps)),
        drafter_ms=(1 + 0.02 * reqs) * (1 + sigma * rng.normal(size=num_steps)),
        graph=np.full(num_steps, "", dtype=np.str_), series=np.zeros(num_steps, np.int64), row=np.arange(num_steps),
    )  # fmt: skip


def both(steps: Steps) -> tuple[Samples, Samples]:
    return verify_samples(steps, with_prefill=False), draft_samples(steps)
