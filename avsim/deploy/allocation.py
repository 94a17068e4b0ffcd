"""avsim's allocation of a budget in the place of vLLM's: the same ranking, with ties settled the same way everywhere.

vLLM takes the best slots by `torch.topk`, which leaves open which of several equal survivals it takes. Confidences of
exactly 1 are common, so on several tensor-parallel ranks that rests on the same kernel breaking ties alike on each of
them. Here ties go by draft slot, then by request (`avsim.kernels.ops.budget`), and the budget is spent to the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["FUNCTION", "put_in"]

FUNCTION = "_assign_draft_token_budget_compiled"
"""What vLLM's manager calls, a name of its module."""


def put_in(module: ModuleType, decides: Callable[[], bool], confidence: Any) -> None:
    """Let avsim's kernel allocate in a loaded `vllm.v1.worker.gpu.spec_decode.adaptive_verification`.

    Args:
        module: vLLM's; a second call replaces the first.
        decides: whether avsim's rule is asked, at each step; otherwise vLLM's own is.
        confidence: by persistent slot, float32 `[R, K]`, on the engine's device; the kernel is run on it once.

    Raises:
        AttributeError: the module has no such function.
        InputError: the engine has more slots than the kernel holds.
    """
    import torch

    from avsim.kernels.ops.budget import allocate

    current = getattr(module, FUNCTION)
    theirs = getattr(current, "__avsim_theirs__", current)

    def assign(confidence_probs: Any, idx_mapping: Any, capacities: Any, draft_budget: int, num_steps: int) -> None:
        if decides():
            allocate(confidence_probs, idx_mapping, capacities, draft_budget)
        else:
            theirs(confidence_probs, idx_mapping, capacities, draft_budget, num_steps)

    # Compiled now, not while serving, for integers as vLLM has them.
    first = torch.zeros(1, dtype=torch.int64, device=confidence.device)
    allocate(confidence, first, first.int() + 1, 1)
    assign.__avsim_theirs__ = theirs  # type: ignore[attr-defined]
    setattr(module, FUNCTION, assign)
