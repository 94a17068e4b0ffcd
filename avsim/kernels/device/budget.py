"""A step's draft budget on the device: how many slots to verify, and whose."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from avsim.costs.base import CostTables
from avsim.errors import InputError
from avsim.kernels.ops.budget import allocate, padded
from avsim.kernels.ops.sizing import Costs, Scratch, choose

__all__ = ["DeviceBudget"]


class DeviceBudget:
    """Sizes and allocates draft budgets; all memory is taken here, and nothing waits for the device.

    The order within a step keeps sampled drafts exact (DESIGN §3): `allocate` spends the budget on the live survivals,
    then `size` chooses the next step's from the same confidences before new ones are drafted over them. They are one
    record old when that budget is spent, as vLLM's host copy is. An engine that must know T + B to pick a graph copies
    `budget` to the host meanwhile. `first_fall` sizes on live confidences, and stays exact by its rule.

    Args:
        max_num_reqs: R, persistent slots.
        num_speculative_steps: K.
        tables: ms by requests, up to R at least, and by tokens; beyond its end the last entry holds.
        max_total_logits: logit rows that the rejection sampler takes at once.
        device: where everything lies.
        draft_sampling: `greedy` or `probabilistic`, as in a trace's card.

    Attributes:
        budget: B as last chosen, int32 `[1]`; 0 at first.

    Raises:
        InputError: tables that are too short or not positive, or more draft slots than one program holds.
    """

    def __init__(
        self,
        max_num_reqs: int,
        num_speculative_steps: int,
        tables: CostTables,
        max_total_logits: int,
        device: Any,
        *,
        draft_sampling: str,
    ):
        padded(max_num_reqs, num_speculative_steps)
        if draft_sampling not in ("greedy", "probabilistic"):
            raise InputError(f"draft_sampling is greedy or probabilistic, not {draft_sampling!r}")
        if len(tables.draft) <= max_num_reqs or not len(tables.verify):
            raise InputError(
                f"cost tables: draft has {len(tables.draft)} entries and verify {len(tables.verify)}; "
                f"{max_num_reqs} requests need {max_num_reqs + 1} of the one and at least 1 of the other"
            )
        draft, verify = (np.asarray(table, dtype=np.float64) for table in (tables.draft, tables.verify))
        if not (np.isfinite(draft).all() and np.isfinite(verify).all() and (draft >= 0).all() and (verify > 0).all()):
            raise InputError("cost tables: every entry must be finite, draft ≥ 0 and verify > 0")
        self.max_num_reqs, self.num_speculative_steps = max_num_reqs, num_speculative_steps
        self.max_total_logits = min(max_total_logits, 2**31 - 1)
        self.draft_sampling = draft_sampling
        self.budget = torch.zeros(1, dtype=torch.int32, device=device)
        self._costs = Costs(*(torch.tensor(table, dtype=torch.float64, device=device) for table in (draft, verify)))
        self._scratch = Scratch(max_num_reqs, num_speculative_steps, device)

    def size(self, confidence: Any, idx_mapping: Any, capacities: Any, sizes: Any, *, live: bool = False) -> Any:
        """Choose the budget by global argmax and return `budget`, on the device; see `ops.sizing.choose`.

        Args:
            confidence: by persistent slot, float32 `[R, K]`; drafted before those that the budget will be spent on.
            idx_mapping: persistent slot of each request, int32 `[B]`; −1 in rows that pad a graph.
            capacities: scheduled drafts of each request, int32 `[B]`.
            sizes: N_sampling, requests scheduled (prefills included) and T: three numbers, or int32 `[3]` on the
                device where a graph is replayed.
            live: the budget will be spent on these very drafts.

        Raises:
            InputError: `live` although drafts are sampled, or a shape or number that does not fit.
        """
        if live and self.draft_sampling != "greedy":
            raise InputError(
                "a budget by global argmax on live confidences is lossy with sampled drafts (DSpark, appendix A); size "
                "on confidences one record old, use first_fall, or draft greedily"
            )
        self._choose(confidence, idx_mapping, capacities, sizes, first_fall=False)
        return self.budget

    def allocate(self, confidence: Any, idx_mapping: Any, capacities: Any, budget: Any = None) -> None:
        """Spend a budget (None: the one last chosen) on live survivals; capacities become admitted counts.

        See `ops.budget.allocate` for the arguments.
        """
        self._check(confidence, idx_mapping, capacities)
        allocate(confidence, idx_mapping, capacities, self.budget if budget is None else budget)

    def first_fall(self, confidence: Any, idx_mapping: Any, capacities: Any, sizes: Any) -> Any:
        """Add slots, best live survival first, while the rate rises strictly; stop at the first that does not.

        Sizes and allocates in one; arguments as for `size`, with live confidences. Capacities become admitted counts,
        and the budget is returned on the device. Source: DSpark (arXiv 2607.05147), Algorithm 1.

        Raises:
            InputError: a shape or number that does not fit.
        """
        self._choose(confidence, idx_mapping, capacities, sizes, first_fall=True)
        allocate(confidence, idx_mapping, capacities, self.budget)
        return self.budget

    def _choose(self, confidence: Any, idx_mapping: Any, capacities: Any, sizes: Any, *, first_fall: bool) -> None:
        self._check(confidence, idx_mapping, capacities)
        if not isinstance(sizes, torch.Tensor):
            num_sampling, num_reqs, num_target_tokens = sizes
            if not 0 <= num_reqs <= self.max_num_reqs or num_sampling < 0 or num_target_tokens < 0:
                raise InputError(
                    f"budget: {num_reqs} requests, {num_sampling} of them sampling, and {num_target_tokens} tokens; "
                    f"the tables hold 0 to {self.max_num_reqs} requests, and no count is negative"
                )
        elif sizes.shape != (3,) or sizes.dtype != torch.int32:
            raise InputError(f"budget: sizes must be int32 [3], not {sizes.dtype} {list(sizes.shape)}")
        choose(
            self.budget,
            confidence,
            idx_mapping,
            capacities,
            sizes,
            self._costs,
            self.max_total_logits,
            self._scratch,
            first_fall=first_fall,
        )

    def _check(self, confidence: Any, idx_mapping: Any, capacities: Any) -> None:
        shape = (self.max_num_reqs, self.num_speculative_steps)
        if confidence.shape != shape or confidence.dtype != torch.float32 or confidence.stride(1) != 1:
            raise InputError(
                f"budget: confidences must be float32 {list(shape)} with contiguous rows, not {confidence.dtype} "
                f"{list(confidence.shape)}"
            )
        if not len(idx_mapping) == len(capacities) <= self.max_num_reqs:
            raise InputError(
                f"budget: {len(idx_mapping)} rows with {len(capacities)} capacities; the counts must agree and not "
                f"pass {self.max_num_reqs}"
            )
