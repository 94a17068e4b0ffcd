"""Step costs of another model or another K than the trace's: refused, unless that is the question."""

from __future__ import annotations

from avsim.costs.base import CostModel
from avsim.costs.shapes import models
from avsim.errors import InputError
from avsim.sources.base import Trace

__all__ = ["check_match"]


def check_match(trace: Trace, model: CostModel, what_if: bool, *, num_slots: int | None = None) -> bool:
    """Return whether step costs are foreign to a trace; refuse them unless asked for.

    Foreign are those of another model (an estimate from a model's shape fits its fine-tunes too: `llama-3.1-8b` any
    `Llama-3.1-8B-…`), and draft costs measured at a smaller K than the run drafts: they would charge
    too little for drafting. Those of a larger K charge too much, and an unknown K (null) may be either: both are only
    noted. A model that knows what each depth costs fits any K.

    Args:
        trace: what is replayed.
        model: the step costs.
        what_if: whether they may be foreign.
        num_slots: K of the run; None for the trace's.

    Raises:
        InputError: they are, and `what_if` is off.
    """
    foreign = not _same_model(model, _squeezed(trace.card.target))
    if foreign and not what_if:
        what = "is an estimate for" if model.card.kind == "roofline" else "was measured for"
        raise InputError(
            f"cost {model.card.name} {what} {model.card.model}, but {trace.path} was recorded with "
            f"{trace.card.target}; pass --what-if to combine them all the same"
        )
    own, drafted = model.card.num_speculative_tokens, num_slots or trace.card.num_speculative_tokens
    shallow = own is not None and own < drafted and not model.draft_depends_on_depth
    if shallow and not what_if:
        raise InputError(
            f"cost {model.card.name} holds what drafting K = {own} slots costs, but K = {drafted} are drafted here; "
            f"use --k {own}, a cost measured at K = {drafted}, or --what-if to charge the smaller cost all the same"
        )
    return foreign or shallow


def _same_model(model: CostModel, target: str) -> bool:
    own = _squeezed(model.card.model)
    if model.card.kind != "roofline":
        return own == target
    longer = [name for name in map(_squeezed, models()) if target.startswith(name) and len(name) > len(own)]
    return target.startswith(own) and not longer


def _squeezed(name: str) -> str:
    return "".join(char for char in name.rsplit("/", 1)[-1].lower() if char.isalnum())
