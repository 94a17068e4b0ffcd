"""`avsim check lossless`: a combination's class against exact enumeration on random toy models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from avsim import registry
from avsim.errors import InputError
from avsim.lossless.admission import admit, confidences, random_surroundings, trained
from avsim.lossless.cases import Case, Settings
from avsim.lossless.enumerate import enumerate_outcomes, total_variation
from avsim.lossless.models import random_laws
from avsim.types import BoolArray, F32Array, F64Array

__all__ = ["check_case"]

ROUNDING = 1e-12
"""The most that an exact combination may be off, from adding float64 probabilities."""
LEAK = 1e-9
"""The least that counts as another distribution."""
NUM_REQS = 2
_MODELS_AT_ONCE = 20
_NEW = 0.2


def check_case(case: Case, settings: Settings) -> dict[str, Any]:
    """Enumerate a combination on every model and hold it against its class.

    Returns:
        A JSON-ready row. `passed`: an exact combination stays within rounding on every model, or a lossy one leaves the
        target's distribution on at least one. `models_admission_varies`: on how many models something admitted depends
        on what was drawn; where that is 0, exactness is no surprise.

    Raises:
        InputError: the estimator reads a feature that toy models lack.
    """
    missing = case.unmade(settings.vocab)
    if missing and case.estimator is not None:
        raise InputError(f"{case.estimator.name} reads {', '.join(missing)}, which toy models lack")
    distance, varies = (np.concatenate(column) for column in zip(*_batches(case, settings), strict=True))
    expected, largest = case.expected, float(distance.max())
    return {
        "policy": registry.format_spec(case.policy),
        "estimator": None if case.estimator is None else registry.format_spec(case.estimator),
        "lag": case.lag,
        "draft_sampling": case.draft_sampling,
        "temperature_0": case.greedy_target,
        "left_out": case.left_out,
        "expected": asdict(expected),
        "largest_total_variation": largest,
        "models": len(distance),
        "models_off": int((distance > LEAK).sum()),
        "models_admission_varies": int(varies.sum()),
        "passed": largest < ROUNDING if expected.exact else largest > LEAK,
    }


def _batches(case: Case, settings: Settings) -> Iterator[tuple[F64Array, BoolArray]]:
    """Yield the total variation of some models, and whether what is admitted depends on what was drawn."""
    states = [] if case.estimator is None else trained(case.estimator, settings.num_slots, settings.seed)
    for batch, start in enumerate(range(0, settings.models, _MODELS_AT_ONCE)):
        # Models depend on the seed and the batch alone, so every combination meets the same ones.
        rng = np.random.default_rng([settings.seed, batch])
        size = min(_MODELS_AT_ONCE, settings.models - start)
        now, before = (
            random_laws(
                rng,
                num_models=size,
                num_reqs=NUM_REQS,
                num_slots=settings.num_slots,
                vocab=settings.vocab,
                greedy_drafts=case.draft_sampling == "greedy",
                greedy_target=case.greedy_target,
            )
            for _ in range(2)
        )
        surroundings = random_surroundings(rng, size, NUM_REQS, settings.num_slots)
        outcomes = enumerate_outcomes(now, case.reads_verdict)
        live = past = np.ones((settings.num_slots, *outcomes.weight.shape), dtype=np.float32)
        if case.estimator is not None:
            params, memory = states[batch % len(states)]
            live = confidences(case.estimator, params, memory, now, outcomes)
            then = enumerate_outcomes(before, case.reads_verdict)
            past = confidences(case.estimator, params, memory, before, then)
        stale = _one_of(past, rng)
        cut = rng.integers(settings.num_slots + 1, size=(size, NUM_REQS))
        surroundings = replace(surroundings, before=stale, num_admitted=cut)
        admitted = admit(case.policy, outcomes, live, _sizing(case, live, stale), surroundings)
        least = np.where(admitted < 0, settings.num_slots, admitted).min(axis=1)
        yield total_variation(now, outcomes, admitted), (admitted.max(axis=1) > least).any(axis=1)


def _one_of(past: F32Array, rng: np.random.Generator) -> F32Array:
    """Draw one block of each request's past, float32 `[K, N, R]`; some requests are new, and have 1."""
    _, models, reqs, count = past.shape
    line, request = np.arange(models)[:, None], np.arange(reqs)
    stale = past[:, line, request, rng.integers(count, size=(models, reqs))]
    stale[:, rng.random((models, reqs)) < _NEW] = 1
    return stale


def _sizing(case: Case, live: F32Array, stale: F32Array) -> F32Array:
    """Return what the budget may be chosen from: live values, or those of some draft before; 1 for a new request."""
    if case.lag == 0:
        return live
    sizing = np.broadcast_to(stale[..., None], live.shape)
    return np.where(np.arange(live.shape[2])[:, None] == 0, live, sizing) if case.left_out else sizing
