"""What a budget policy is: from survivals, cost tables and batch state to the slots that each request verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.costs.base import CostTables
from avsim.types import BoolArray, F32Array, F64Array, IntArray

__all__ = ["NO_LOGIT_LIMIT", "DraftPlan", "Policy", "StepBatch", "StepOutcome"]

NO_LOGIT_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class StepBatch:
    """S independent decision steps over R request rows; a row with `num_drafted == 0` takes no part.

    Attributes:
        live: confidences of the drafts at hand, float32 `[K, S, R]`.
        sizing: confidences that the budget may be chosen from (vLLM: one record old), float32 `[K, S, R]`.
        num_drafted: int `[S, R]`.
        num_reqs: requests scheduled, prefills included, int `[S]`.
        num_sampling: N_sampling, requests that will sample a token in the step, int `[S]`.
        num_target_tokens: T, tokens scheduled that are not drafts, int `[S]`.
        tables: the costs that the policy believes in.
        num_accepted: the verdict at full admission, int `[S, R]`; given to policies with `uses_truth` only.
        num_remaining: output tokens still to come, at least 1, int `[S, R]`; given with `num_accepted`.
        max_total_logits: logit rows that the engine's rejection sampler takes at once.
        chance: a uniform number in [0, 1) for each request and block, independent of all else, float32 `[S, R]`; given
            to policies that explore only.
        memory: what the policy keeps from step to step, float64 `[M, S]`; given to policies with a memory only.
        sizing_admitted: leading slots that were admitted of the block that `sizing` describes, int `[S, R]`; K where
            there was none. None in an open loop.
    """

    live: F32Array
    sizing: F32Array
    num_drafted: IntArray
    num_reqs: IntArray
    num_sampling: IntArray
    num_target_tokens: IntArray
    tables: CostTables
    num_accepted: IntArray | None = None
    num_remaining: IntArray | None = None
    max_total_logits: int = NO_LOGIT_LIMIT
    chance: F32Array | None = None
    memory: F64Array | None = None
    sizing_admitted: IntArray | None = None


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """S independent steps about to be drafted for, as a policy sees them that chooses how deep to draft.

    Nothing here depends on the drafts to come, save the verdicts that bounds are given.

    Attributes:
        sizing: confidences of the requests' blocks before, as in `StepBatch`, float32 `[K, S, R]`; 1 for a request
            that has had none, and what was last drafted in slots that have not been drafted since.
        ready: requests that can be drafted for, bool `[S, R]`.
        num_reqs, num_sampling, num_target_tokens, tables, memory: as in `StepBatch`.
        num_accepted, num_remaining: as in `StepBatch`, at full depth.
        max_total_logits: as in `StepBatch`.
    """

    sizing: F32Array
    ready: BoolArray
    num_reqs: IntArray
    num_sampling: IntArray
    num_target_tokens: IntArray
    tables: CostTables
    memory: F64Array | None = None
    num_accepted: IntArray | None = None
    num_remaining: IntArray | None = None
    max_total_logits: int = NO_LOGIT_LIMIT


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What S steps came to, for policies with a memory.

    Attributes:
        live: confidences of the blocks, float32 `[K, S, R]`; meaningless at and beyond `num_drafted`.
        num_drafted, num_admitted, num_accepted, num_emitted: int `[S, R]`; 0 for a request that took no part.
            `num_accepted` is A ≤ M: what was trimmed has no verdict.
        depth: slots drafted per request, int `[S]`; 0 where drafting was skipped.
        num_reqs: int `[S]`; a step of no requests did not happen, and must not change the memory.
        ms: the time that the step took, float64 `[S]`.
    """

    live: F32Array
    num_drafted: IntArray
    num_admitted: IntArray
    num_accepted: IntArray
    num_emitted: IntArray
    depth: IntArray
    num_reqs: IntArray
    ms: F64Array


@dataclass(frozen=True)
class Policy(ABC):
    """Base of every policy; subclasses are frozen dataclasses of options.

    Steps along the S axis are independent: a policy must decide each as if it were alone.
    """

    name: ClassVar[str]
    positional: ClassVar[str | None] = None

    drafts: ClassVar[bool] = True
    """False for plain decoding, which pays no draft cost."""
    uses_confidence: ClassVar[bool] = False
    """True where `live` or `sizing` is read; the replay then needs an estimator."""
    uses_truth: ClassVar[bool] = False
    """True for bounds that read `num_accepted`; no engine can run them, and they decide on the true costs."""

    @property
    def explores(self) -> bool:
        """Whether admission is random by intention, so that trimmed slots get labels; it then reads `chance`."""
        return False

    @property
    def plans(self) -> bool:
        """Whether the draft depth changes from step to step: `plan` is then asked before drafting."""
        return False

    def memory_size(self, num_speculative_tokens: int) -> int:
        """Return M, the numbers that the policy keeps from step to step; 0 for a policy of single steps."""
        return 0

    def fresh_memory(self, num_speculative_tokens: int) -> F64Array:
        """Return the memory at the start of a run, float64 `[M]`."""
        return np.zeros(self.memory_size(num_speculative_tokens))

    def plan(self, plan: DraftPlan) -> IntArray:
        """Return how deep to draft in each step, int `[S]`, from 0 (skip) to K; asked of policies with `plans` only."""
        raise NotImplementedError(f"{self.name} does not plan its drafts")

    def remember(self, memory: F64Array, outcome: StepOutcome) -> F64Array:
        """Return the memory after some steps, float64 `[M, S]`; asked of policies with a memory only."""
        return memory

    def depth(self, num_speculative_tokens: int) -> int:
        """Return how many slots are drafted per request when the trace holds K."""
        return num_speculative_tokens if self.drafts else 0

    @property
    def separable(self) -> bool:
        """Whether each request's M follows from its own row alone, so that identical requests can be counted once."""
        return False

    def lossy(self, lag: int) -> str | None:
        """Say why sampled drafts would not stay exact under this rule, or None if they do (DESIGN §3)."""
        return None

    @abstractmethod
    def admit(self, step: StepBatch) -> IntArray:
        """Return M, the leading slots to verify, int `[S, R]`, with 0 ≤ M ≤ num_drafted."""
