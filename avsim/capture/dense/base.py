"""What the dense tracer asks of a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

__all__ = ["DenseDrafter", "SlotOutput"]


@dataclass(slots=True, eq=False)
class SlotOutput:
    """What a drafter says about one slot of N blocks.

    Attributes:
        logits: tensor `[N, vocab]` in the target's vocabulary, before temperature; −inf where the drafter has no such
            token.
        confidence: tensor `[N]`, the drafter's own probability of acceptance given that all earlier slots were
            accepted; None without a confidence head.
    """

    logits: Any
    confidence: Any | None = None


class DenseDrafter(Protocol):
    """Drafts for many prefixes of one known sequence at once, exactly as it would for each of them alone.

    A block with end i knows the tokens 0 … i and the target's hidden states 0 … i − 1: token i has been sampled, but
    the target has not run on it yet. Its slot k proposes token i + 1 + k.

    Attributes:
        kind: the trace card's `drafter_kind`.
        num_slots: the most slots it can draft, None for no limit.
        hidden_layers: which of the target's hidden states it needs, as indices into Transformers' `hidden_states`
            (0 the embeddings, −1 the last, after the final norm); empty for none.
    """

    kind: ClassVar[str]
    num_slots: int | None
    hidden_layers: tuple[int, ...]

    def begin(self, tokens: Any, hidden: Any | None) -> Any:
        """Take one sequence; return the state that `slot` needs.

        Args:
            tokens: int64 `[L]`, prompt and output.
            hidden: `[L, len(hidden_layers) · width]`, the layers side by side; None if none are needed. Entry j
                must influence blocks with an end beyond j only.
        """

    def slot(self, state: Any, ends: Any, drafted: Any) -> SlotOutput:
        """Draft the next slot of the blocks at `ends`; called for k = 0, 1, … with the same state and ends.

        Args:
            ends: int64 `[N]`, index of each block's last known token in the sequence.
            drafted: int64 `[N, k]`, the tokens that were drafted in the slots before.
        """
