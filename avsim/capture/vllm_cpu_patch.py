"""Repair of a fault in vLLM's CPU engine that makes sampled verification meaningless.

With speculation at T > 0, vLLM 0.32 and 0.33 spread each request's temperature, top-k and top-p over its drafted
tokens into a temporary copy, so the rejection sampler reads uninitialised memory. A trace of that is worthless.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["is_faulty", "repair", "spread"]


def repair() -> bool:
    """Put a right implementation behind vLLM's kernel object where the fault is present; return whether it was."""
    from vllm.v1.sample import rejection_sampler

    kernel = rejection_sampler.expand_kernel
    launch = getattr(kernel, "_impl", None)  # absent: a compiled kernel, not the CPU engine's stand-in
    if launch is None or not is_faulty(launch):
        return False
    # Keeps the signature, by which vLLM decides how to pass the arguments.
    right = functools.wraps(launch)(spread)
    kernel._impl = right
    kernel.func = right
    return True


def is_faulty(launch: Callable[..., Any]) -> bool:
    """Whether a launch leaves a float output other than it should be."""
    import torch

    expected = torch.tensor([0.5, 0.75, 0.75])
    output = torch.full((3,), -1.0)
    launch(output, torch.tensor([0.5, 0.75]), torch.tensor([1, 3], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=128)
    return not torch.equal(output, expected)


def spread(
    output: Any,
    input_val: Any,
    cu_num_tokens: Any,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Write each request's value once per token of it, with one value replaced: `output[tokens]`, in place.

    Args:
        output: tensor `[tokens]` to fill.
        input_val: tensor `[requests]`.
        cu_num_tokens: running totals of tokens per request, `[requests]`.
        replace_from: the value to replace.
        replace_to: what to put instead.
        MAX_NUM_TOKENS: as in vLLM's kernel; not needed here.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    output[: int(counts.sum())] = values.repeat_interleave(counts).to(output.dtype)
