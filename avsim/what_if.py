"""Step costs of another model than the trace's: refused, unless that is the question."""

from __future__ import annotations

from avsim.costs.base import CostModel
from avsim.errors import InputError
from avsim.sources.base import Trace

__all__ = ["check_match"]


def check_match(trace: Trace, model: CostModel, what_if: bool) -> bool:
    """Return whether the step costs are of another model than the trace's; refuse them unless asked for.

    Raises:
        InputError: they are, and `what_if` is off.
    """
    foreign = _squeezed(model.card.model) != _squeezed(trace.card.target)
    if foreign and not what_if:
        raise InputError(
            f"cost {model.card.name} was measured for {model.card.model}, but {trace.path} was recorded with "
            f"{trace.card.target}; pass --what-if to combine them all the same"
        )
    return foreign


def _squeezed(name: str) -> str:
    return "".join(char for char in name.rsplit("/", 1)[-1].lower() if char.isalnum())
