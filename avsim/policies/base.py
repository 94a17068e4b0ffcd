"""What a budget policy is: from survivals, cost tables and batch state to the slots that each request verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from avsim.costs.base import CostTables
from avsim.types import F32Array, IntArray

__all__ = ["NO_LOGIT_LIMIT", "Policy", "StepBatch"]

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
