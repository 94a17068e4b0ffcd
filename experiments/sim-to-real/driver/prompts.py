"""Prompts computed once and used by every arm: keys, values, hidden states and the last logits.

All arms serve the same requests, and prompts are not part of what is measured; computing them again for every arm would
take longer than the decoding. Copying a computed prompt into a place gives what computing it there would give.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .drafters import Drafter
from .model import Target

Kept = tuple[np.ndarray, np.ndarray]


@dataclass(eq=False)
class Computed:
    """A prompt: its tokens, cache `copy_out`, hidden states `[P, width]` and last logits `[vocab]`."""

    tokens: np.ndarray
    cache: Kept
    hidden: np.ndarray
    logits: np.ndarray


class Prompts:
    """Computes prompts when they are first asked for.

    Attributes:
        seconds, num_tokens: what that took so far, and how many prompt tokens it ran.
    """

    def __init__(self, target: Target, tokens: Sequence[Sequence[int]]):
        self.target, self.tokens = target, tokens
        self.seconds, self.num_tokens = 0.0, 0
        self._scratch = target.decoder.cache(1)
        self._computed: dict[int, Computed] = {}
        self._drafted: dict[tuple[int, str], Kept] = {}

    def computed(self, request: int) -> Computed:
        """Return a prompt's state."""
        if request not in self._computed:
            start = time.perf_counter()
            tokens = np.array(self.tokens[request], dtype=np.int64)
            slot, position = np.zeros(len(tokens), np.int64), np.arange(len(tokens))
            hidden = self.target.hidden(tokens, slot, position, self._scratch)
            logits = self.target.logits(hidden[-1:])[0]
            kept = self._scratch.copy_out(0, len(tokens))
            self._computed[request] = Computed(tokens, kept, hidden, logits)
            self.seconds += time.perf_counter() - start
            self.num_tokens += len(tokens)
        return self._computed[request]

    def drafted(self, request: int, drafter: Drafter) -> Kept:
        """Return a drafter's cache of a prompt: the rows before the last, which needs output token 0."""
        key = (request, drafter.name)
        if key not in self._drafted:
            prompt, scratch = self.computed(request), drafter.cache(1)
            assert scratch is not None
            count = len(prompt.tokens) - 1
            slot, position = np.zeros(count, np.int64), np.arange(count)
            drafter.run(prompt.tokens[1:], prompt.hidden[:-1], slot, position, scratch)
            self._drafted[key] = scratch.copy_out(0, count)
        return self._drafted[key]
