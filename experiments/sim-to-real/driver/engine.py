"""Continuous batching in a closed loop: C places, one draft chain and one ragged verification per step.

A step: plan → draft → admit → verify → grade → learn. Its time is taken from the first to the last of these. A request
that ends leaves its place to the next one; that one's prompt, and output token 0, were computed beforehand
(`prompts.py`) and are copied in between steps. So a step here is a step of avsim's simulator with prompts="free", and
what counts is the same window: steps with all C places taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avsim.costs.base import CostTables
from avsim.estimators.base import EstimatorState
from avsim.simulate import Arm

from .deciding import Deciding
from .drafters import Drafter
from .model import Target
from .prompts import Prompts
from .sampling import Sampler, draft_features


@dataclass
class Step:
    """What one step came to: sums over its requests, and the confidences of the drafts that were verified.

    Attributes:
        draft_ms, decide_ms, verify_ms: parts of `ms`: drafter; policy, estimator and features; target and verdicts.
        expected: Σ over admitted slots of their survival, what the estimator expected to be accepted; None without.
        slots: (slot, confidence, accepted) of the observed slots.
    """

    num_reqs: int
    depth: int
    verified: int
    accepted: int
    emitted: int
    kv_tokens: int
    ms: float
    draft_ms: float
    decide_ms: float
    verify_ms: float
    expected: float | None
    slots: list[tuple[int, float, int]] = field(default_factory=list)


@dataclass
class _Pending:
    """The rows that the drafter's next first pass reads, and where each place's newest one lies among them."""

    tokens: np.ndarray
    hidden: np.ndarray
    slot: np.ndarray
    position: np.ndarray
    newest: np.ndarray


class Engine:
    """One arm that serves one sequence of requests.

    Args:
        prompts: computed prompts, shared by all arms.
        sequence: indices of requests, in order of service.
        max_tokens: outputs are cut there.
        num_slots: K.
        tables, state: see `Deciding`.
        clock: seconds; what steps are timed with.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        prompts: Prompts,
        sequence: list[int],
        arm: Arm,
        sampler: Sampler,
        *,
        concurrency: int,
        num_slots: int,
        max_tokens: int,
        tables: CostTables,
        state: EstimatorState | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.target, self.prompts, self.sampler, self.max_tokens = target, prompts, sampler, max_tokens
        self.clock = clock
        self.drafter = drafter if arm.policy.drafts else None
        self.deciding = Deciding(arm, num_slots, concurrency, tables, state)
        self.cache = target.decoder.cache(concurrency)
        self.draft_cache = self.drafter.cache(concurrency) if self.drafter is not None else None
        self.waiting = list(reversed(sequence))
        shape = concurrency
        self.active, self.entering = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        self.request, self.age = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.prompt_len, self.position = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.newest = np.zeros(shape, np.int64)
        self.outputs: dict[int, list[int]] = {}
        width = target.embedding.shape[1]
        none, nothing = np.zeros(0, np.int64), np.zeros((0, width), dtype=np.float32)
        self.pending = _Pending(none, nothing, none, none, np.zeros(shape, np.int64))
        self._fill()

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return bool(self.active.all())

    @property
    def emitted(self) -> int:
        """Output tokens so far, token 0 of each request left out."""
        return sum(len(tokens) - 1 for tokens in self.outputs.values())

    def step(self) -> Step:
        """Run one step."""
        start = self.clock()
        seats = np.flatnonzero(self.active)
        depth = self.deciding.plan(self.active, self.entering, self.age) if self.drafter is not None else 0
        planned = self.clock()
        drafts, q, features = self._draft(seats, depth)
        drafted = self.clock()
        admitted = self.deciding.admit(depth, features) if self.drafter is not None else np.zeros_like(self.position)
        decided = self.clock()
        hidden, rows, accepted, following = self._verify(seats, admitted, drafts, q)
        kv_tokens = int((self.prompt_len + self.position)[seats].sum())
        emitted = self._advance(seats, admitted, drafts, accepted, following, hidden, rows)
        verified = self.clock()
        self.entering = np.zeros_like(self.entering)
        self.age = self.age + self.active
        if self.drafter is not None:
            self.deciding.observe(accepted, emitted, 1e3 * (verified - start))
        end = self.clock()
        step = Step(
            len(seats), depth, int(admitted.sum()), int(accepted.sum()), int(emitted.sum()), kv_tokens,
            1e3 * (end - start), 1e3 * (drafted - planned - self.features_s),
            1e3 * (planned - start + self.features_s + decided - drafted + end - verified), 1e3 * (verified - decided),
            None,
        )  # fmt: skip
        self._note_confidences(step, seats, admitted, accepted)
        self._leave()
        return step

    def _draft(self, seats: np.ndarray, depth: int) -> tuple[np.ndarray, list[np.ndarray], dict[str, np.ndarray]]:
        """Draft `depth` tokens for each request; return indices `[K, R]`, q per slot and features `[K, C]`."""
        self.features_s = 0.0
        num_slots, places = self.deciding.num_slots, len(self.active)
        features = {name: np.zeros((num_slots, places), dtype=np.float32) for name in self.deciding.features}
        drafts, q = np.zeros((num_slots, len(seats)), dtype=np.int64), []
        if self.drafter is None or not (depth or self.drafter.reads_all_rows):
            return drafts, q, features
        rows, newest = self.pending, self.pending.newest[seats]
        if self.drafter.reads_all_rows:
            x = self.drafter.run(rows.tokens, rows.hidden, rows.slot, rows.position, self.draft_cache)[newest]
        else:
            x = self.drafter.run(rows.tokens[newest], rows.hidden[newest], seats, rows.position[newest], None)
        position = rows.position[newest]
        requests, output = self.request[seats], self.position[seats]
        for slot in range(depth):
            if slot:
                x = self.drafter.run(self.drafter.vocab[drafts[slot - 1]], x, seats, position + slot, self.draft_cache)
            logits = self.drafter.logits(x)
            if features:
                before = self.clock()
                found = draft_features(logits, self.sampler.temperature)
                for name, line in features.items():
                    line[slot, seats] = found[name]
                self.features_s += self.clock() - before
            drafts[slot], probabilities = self.sampler.draft(logits, requests, output, slot)
            if probabilities is not None:
                q.append(probabilities)
        return drafts, q, features

    def _verify(
        self, seats: np.ndarray, admitted: np.ndarray, drafts: np.ndarray, q: list[np.ndarray]
    ) -> tuple[np.ndarray, _Rows, np.ndarray, np.ndarray]:
        """Run the target over each request's newest token and admitted drafts; return verdicts `[C]`, tokens `[C]`."""
        count = admitted[seats] + 1
        rows = _Rows.of(seats, count, self.prompt_len[seats] + self.position[seats])
        tokens = np.empty(rows.total, dtype=np.int64)
        tokens[rows.starts] = self.newest[seats]
        own = rows.place > 0
        vocab = self.drafter.vocab if self.drafter is not None else np.zeros(1, np.int64)
        tokens[own] = vocab[drafts[rows.place[own] - 1, rows.line[own]]]
        hidden = self.target.hidden(tokens, rows.slot, rows.position, self.cache)
        logits = self.target.logits(hidden)
        accepted, following = np.zeros_like(admitted), np.zeros_like(admitted)
        accepted[seats], following[seats] = self.sampler.verdicts(
            logits, admitted[seats], drafts, q, vocab, self.request[seats], self.position[seats]
        )
        return hidden, rows, accepted, following

    def _advance(
        self,
        seats: np.ndarray,
        admitted: np.ndarray,
        drafts: np.ndarray,
        accepted: np.ndarray,
        following: np.ndarray,
        hidden: np.ndarray,
        rows: _Rows,
    ) -> np.ndarray:
        """Append what was emitted, and keep the verified rows for the drafter; return emitted tokens `[C]`."""
        emitted, after = np.zeros_like(admitted), np.zeros(rows.total, dtype=np.int64)
        for r, seat in enumerate(seats.tolist()):
            taken, output = int(accepted[seat]), self.outputs[int(self.request[seat])]
            tokens = [*drafts[:taken, r].tolist(), int(following[seat])]
            if self.drafter is not None and taken:
                tokens[:taken] = self.drafter.vocab[drafts[:taken, r]].tolist()
            after[rows.starts[r] : rows.starts[r] + taken + 1] = tokens
            tokens = tokens[: self.max_tokens - len(output)]
            if self.target.end in tokens:
                tokens = tokens[: tokens.index(self.target.end) + 1]
            output += tokens
            emitted[seat] = len(tokens)
        self.position = self.position + np.where(self.active, accepted + 1, 0)
        self.newest = np.where(self.active, following, self.newest)
        newest = np.zeros_like(self.position)
        newest[seats] = rows.starts + accepted[seats]
        self.pending = _Pending(after, hidden, rows.slot, rows.position, newest)
        return emitted

    def _note_confidences(self, step: Step, seats: np.ndarray, admitted: np.ndarray, accepted: np.ndarray) -> None:
        if self.deciding.estimator is None or self.drafter is None:
            return
        live = self.deciding.live[:, 0]
        step.expected = 0.0
        for seat in seats.tolist():
            told = live[: admitted[seat], seat]
            step.expected += float(np.cumprod(told.astype(np.float64)).sum())
            for k in range(min(int(accepted[seat]) + 1, int(admitted[seat]))):
                step.slots.append((k, float(told[k]), int(k < accepted[seat])))

    def _leave(self) -> None:
        """Free the places of requests that are over, and seat the next ones."""
        for seat in np.flatnonzero(self.active).tolist():
            output = self.outputs[int(self.request[seat])]
            if len(output) >= self.max_tokens or output[-1] == self.target.end:
                self.active[seat] = False
        if not self.full:
            self._forget_leavers()
            self._fill()

    def _forget_leavers(self) -> None:
        """Drop the drafter's rows of requests that are over: their places may be another's in the next step."""
        rows = self.pending
        stays = self.active[rows.slot]
        index = np.cumsum(stays) - 1
        newest = np.where(self.active, index[np.minimum(rows.newest, len(index) - 1)], 0)
        self.pending = _Pending(
            rows.tokens[stays], rows.hidden[stays], rows.slot[stays], rows.position[stays], newest
        )  # fmt: skip

    def _fill(self) -> None:
        for seat in np.flatnonzero(~self.active).tolist():
            while self.waiting and not self.active[seat]:
                self._seat(seat, self.waiting.pop())

    def _seat(self, seat: int, request: int) -> None:
        prompt = self.prompts.computed(request)
        token = self.sampler.first_token(prompt.logits, request)
        self.outputs[request] = [token]
        if token == self.target.end or self.max_tokens == 1:
            return
        self.cache.copy_in(seat, prompt.cache)
        if self.draft_cache is not None and self.drafter is not None:
            self.draft_cache.copy_in(seat, self.prompts.drafted(request, self.drafter))
        self.active[seat] = self.entering[seat] = True
        self.request[seat], self.prompt_len[seat], self.newest[seat] = request, len(prompt.tokens), token
        self.position[seat] = self.age[seat] = 0
        # The drafter's first row of this request: the prompt's last state with output token 0.
        keep = self.pending
        keep.newest[seat] = len(keep.tokens)
        self.pending = _Pending(
            np.append(keep.tokens, token),
            np.concatenate([keep.hidden, prompt.hidden[-1:]]),
            np.append(keep.slot, seat),
            np.append(keep.position, len(prompt.tokens) - 1),
            keep.newest,
        )


@dataclass(slots=True)
class _Rows:
    """The packed rows of a step: request after request, newest token first.

    Attributes:
        starts: first row of each request, `[R]`; line, place: request and place in it of each row, `[n]`.
        slot, position: seat and absolute position of each row, `[n]`.
    """

    starts: np.ndarray
    line: np.ndarray
    place: np.ndarray
    slot: np.ndarray
    position: np.ndarray

    @classmethod
    def of(cls, seats: np.ndarray, count: np.ndarray, first: np.ndarray) -> _Rows:
        starts = np.cumsum(count) - count
        line = np.repeat(np.arange(len(seats)), count)
        place = np.arange(int(count.sum())) - starts[line]
        return cls(starts, line, place, seats[line], first[line] + place)

    @property
    def total(self) -> int:
        return len(self.line)


def measure_until(engine: Engine, tokens: int, steps: list[Any]) -> None:
    """Run an engine at full concurrency until it has emitted so many tokens, appending its steps."""
    while engine.full and engine.emitted < tokens:
        steps.append(engine.step())
