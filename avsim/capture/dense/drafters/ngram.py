"""Prompt lookup: drafts what followed the earliest occurrence of the longest repeated suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from avsim.errors import InputError

__all__ = ["Lookup", "load"]


def load(argument: str, target: Any) -> Lookup:
    """Read `min=1,max=3`; the target is not needed."""
    values = {"min": 1, "max": 3}
    for part in filter(None, argument.split(",")):
        name, _, text = part.partition("=")
        if name not in values or not text.isdecimal():
            raise InputError(f"ngram:{argument}: {part!r} is not min=N or max=N")
        values[name] = int(text)
    if not 1 <= values["min"] <= values["max"]:
        raise InputError(f"ngram:{argument}: it must hold 1 ≤ min ≤ max")
    return Lookup(values["min"], values["max"])


@dataclass(frozen=True)
class Lookup:
    """A drafter without logits, so its trace has no features of the drafter.

    Source: vLLM 0.33 `ngram_proposer.py`: n-grams of max … min tokens, the earliest occurrence, overlaps allowed.
    """

    kind: ClassVar[str] = "ngram"
    shortest: int = 1
    longest: int = 3

    def propose(self, tokens: Sequence[int], ends: Sequence[int], num_slots: int) -> list[list[int]]:
        """Return 0 … K drafted tokens for each block.

        >>> Lookup().propose([5, 6, 7, 8, 5, 6], ends=[2, 5], num_slots=3)
        [[], [7, 8, 5]]
        """
        first: dict[tuple[int, ...], int] = {}
        for size in range(self.shortest, self.longest + 1):
            for start in range(len(tokens) - size + 1):
                first.setdefault(tuple(tokens[start : start + size]), start)
        return [self._one(tokens, end, first, num_slots) for end in ends]

    def _one(self, tokens: Sequence[int], end: int, first: dict[tuple[int, ...], int], num_slots: int) -> list[int]:
        for size in range(min(self.longest, end), self.shortest - 1, -1):
            own = end + 1 - size
            start = first[tuple(tokens[own : end + 1])]
            if start < own:
                return list(tokens[start + size : min(start + size + num_slots, end + 1)])
        return []
