"""The driver's steps, ready to be timed: what `avsim.costs.profile` measures here."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence

import numba
import numpy as np

from .drafters import Drafter
from .engine import _Rows
from .model import Target
from .sampling import Sampler

Step = Callable[[], object]


class DriverRunner:
    """`avsim.costs.profile.Runner` for the target, one drafter and one temperature.

    Tokens, states and drafts are random; what a step costs does not depend on them, but for the verdicts at a
    temperature above 0, where random drafts are nearly always rejected at once.
    """

    device = "cpu"

    def __init__(self, target: Target, drafter: Drafter, temperature: float, num_slots: int, max_reqs: int):
        self.target, self.drafter, self.sampler = target, drafter, Sampler(temperature, 0)
        self.num_slots = num_slots
        self.name = f"sim-to-real driver, {target.name}"
        self._cache, self._draft_cache = target.decoder.cache(max_reqs), drafter.cache(max_reqs)
        self._rng = np.random.default_rng(0)

    def _tokens(self, count: int) -> np.ndarray:
        return self._rng.choice(self.drafter.vocab, count)

    def _states(self, count: int) -> np.ndarray:
        return self._rng.standard_normal((count, self.target.embedding.shape[1]), dtype=np.float32)

    def verify(self, queries: Sequence[int], context: int) -> Step:
        """Ready a target step, with verdicts on `queries[i]` − 1 drafts of each request; see `Runner.verify`."""
        count = np.array(queries)
        reqs = np.arange(len(count))
        rows = _Rows.of(reqs, count, np.full(len(count), context))
        tokens, position = self._tokens(rows.total), np.full(len(count), 1)
        drafts = self._rng.integers(0, len(self.drafter.vocab), (max(queries), len(count)))
        sure = np.full((len(count), len(self.drafter.vocab)), 1 / len(self.drafter.vocab), dtype=np.float32)
        q = [] if self.sampler.temperature == 0 else [sure] * max(queries)

        def step() -> object:
            hidden = self.target.hidden(tokens, rows.slot, rows.position, self._cache)
            logits = self.target.logits(hidden)
            return self.sampler.verdicts(logits, count - 1, drafts, q, self.drafter.vocab, reqs, position)

        return step

    def draft(self, num_reqs: int, depth: int, context: int) -> Step:
        """Ready a draft chain whose first pass reads one row per request; see `Runner.draft`."""
        tokens, states = self._tokens(num_reqs), self._states(num_reqs)
        reqs, position = np.arange(num_reqs), np.full(num_reqs, context - 1)

        def step() -> object:
            x = self.drafter.run(tokens, states, reqs, position, self._draft_cache)
            drafts = tokens
            for slot in range(depth):
                if slot:
                    x = self.drafter.run(self.drafter.vocab[drafts], x, reqs, position + slot, self._draft_cache)
                drafts, _ = self.sampler.draft(self.drafter.logits(x), reqs, position, slot)
            return drafts

        return step

    def first_pass(self, num_reqs: int, rows_each: int, context: int) -> Step:
        """Ready a first pass alone, over some rows of each request, without head and choice of tokens."""
        rows = _Rows.of(np.arange(num_reqs), np.full(num_reqs, rows_each), np.full(num_reqs, context - 1))
        tokens, states = self._tokens(rows.total), self._states(rows.total)
        return lambda: self.drafter.run(tokens, states, rows.slot, rows.position, self._draft_cache)

    def describe(self) -> dict[str, str]:
        """Say what is measured."""
        return {
            "model": "SmolLM2-135M-Instruct",
            "hardware": f"CPU ({platform.machine()}, {numba.get_num_threads()} of {os.cpu_count()} threads)",
            "vocab_size": str(len(self.target.embedding)),
            "drafter_kind": "eagle",
            "dtype": "float32",
            "threads": str(numba.get_num_threads()),
            "numba": numba.__version__,
            "includes": "LM head, verdicts, Python",
        }
