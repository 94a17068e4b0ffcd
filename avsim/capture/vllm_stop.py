"""Where vLLM's scheduler ends a request, told from what the runner sees: the tokens and the sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["num_emitted"]


def num_emitted(tokens: Sequence[int], before: int, params: Any, room: int) -> tuple[int, bool]:
    """Return how many of a step's tokens the engine keeps, and whether they end the request.

    Args:
        tokens: what the step sampled.
        before: tokens emitted earlier.
        params: vLLM's `SamplingParams`.
        room: the most output tokens that the model's length leaves.

    >>> from types import SimpleNamespace
    >>> params = SimpleNamespace(eos_token_id=2, stop_token_ids=[], max_tokens=9)
    >>> num_emitted([7, 2, 5], 4, params, 100), num_emitted([7, 5, 5], 7, params, 100)
    ((2, True), (2, True))
    """
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    stops = {params.eos_token_id, *(params.stop_token_ids or ())}
    for count, token in enumerate(tokens, start=1):
        if token in stops or before + count >= limit:
            return count, True
    return len(tokens), False
