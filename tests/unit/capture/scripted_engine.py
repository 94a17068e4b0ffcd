"""An engine that is only a script: it reports random steps to a recorder, and knows what the trace must hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

FACTS = {
    "target": "toy-target",
    "drafter": "toy-drafter",
    "drafter_kind": "eagle",
    "draft_sampling": "greedy",
    "acceptance_rule": "standard",
    "engine": "script",
    "adaptive_verification": True,
    "seed": 3,
}
STEP = {
    "num_reqs": 1,
    "num_target_tokens": 2,
    "num_prefill_tokens": 0,
    "kv_tokens": None,
    "forward_ms": 1.5,
    "drafter_ms": None,
    "graph_mode": "full",
}
TRIMMED = 0.69


def facts(num_slots, **changes):
    return {**FACTS, "num_speculative_tokens": num_slots, **changes}


@dataclass
class Draft:
    drafted: int
    features: dict
    ids: np.ndarray
    step: int
    checked: bool  # a verdict reported in the same step says where its block must start


@dataclass
class Request:
    key: str
    number: int
    values: dict
    target_len: int
    aborts: bool
    position: int = -1
    draft: Draft | None = None
    blocks: list = field(default_factory=list)


class Script:
    """Plays random steps into a recorder.

    69 % of the drafts are trimmed, half of the requests are aborted, requests are left out of steps, keys are used
    again, and verdicts arrive before or after the proposals of their step. Some are wrong: drafts that were swapped
    or never reported, steps that were not reported, impossible counts.

    Attributes:
        blocks: `(step, request, position, drafted, admitted, accepted, mask, features)` that the trace must hold.
        dropped, unverified: what the recorder must count.
        ended: request number to `(output_len, aborted)`.
    """

    def __init__(self, recorder, seed, num_slots, num_running, *, ahead, with_ids, with_positions=False, faults=True):
        self.recorder = recorder
        self.rng = np.random.default_rng(seed)
        self.num_slots, self.num_running = num_slots, num_running
        self.ahead, self.with_ids, self.with_positions, self.faults = ahead, with_ids, with_positions, faults
        self.running: list[Request] = []
        self.requests: list[Request] = []
        self.free_keys: list[str] = []
        self.dropped: Counter[str] = Counter()
        self.unverified = 0
        self.ended: dict[int, tuple[int, bool]] = {}
        self.step = 0

    @property
    def blocks(self):
        return [block for request in self.requests for block in request.blocks]

    def run(self, num_steps):
        for _ in range(num_steps):
            self.one_step()

    def close(self):
        """End the run; whatever is ungraded stays so."""
        self.unverified += sum(request.draft is not None for request in self.running)
        self.recorder.close()

    def one_step(self):
        self._admit()
        taking_part = [request for request in self.running if self.rng.random() < 0.8]
        ahead = self.ahead and bool(self.rng.random() < 0.9)
        early = [request for request in taking_part if request.aborts and self.rng.random() < 0.3]
        verdicts, made = [], []
        for request in taking_part:
            self._work(request, request in early, verdicts, made)
        if ahead:
            self._propose(made)
            self._abort(early)
            self._verify(verdicts)
        else:
            self._abort(early)
            self._verify(verdicts)
            made = [(request, draft) for request, draft in made if request not in early]
            self._propose(made)
        for request in taking_part:
            if request in self.running and request.position + 1 >= request.target_len and self.rng.random() < 0.7:
                self._finish(request, request.target_len, False)
        self.recorder.end_step(**{**STEP, "num_reqs": len(taking_part)})
        self.step += 1

    def _chance(self, share):
        return self.faults and bool(self.rng.random() < share)

    def _admit(self):
        rng = self.rng
        for request in self.running:
            if self._chance(0.02):  # preempted, and goes on
                self.recorder.start_request(request.key, **request.values)
                self.unverified += request.draft is not None
                request.draft = None
        while len(self.running) < self.num_running:
            number = len(self.requests)
            reused = bool(self.free_keys) and bool(rng.random() < 0.5)
            key = self.free_keys.pop() if reused else f"request-{number}"
            values = {
                "prompt_len": int(rng.integers(0, 50)),
                "temperature": float(rng.choice([0.0, 0.7])),
                "top_p": None if rng.random() < 0.5 else 0.9,
                "category": None if rng.random() < 0.5 else "chat",
                "arrival_s": float(number),
            }
            request = Request(key, number, values, int(rng.integers(1, 30)), bool(rng.random() < 0.5))
            self.recorder.start_request(key, **values)
            self.requests.append(request)
            self.running.append(request)

    def _work(self, request, aborted, verdicts, made):
        """Run one request for a step: what it reports goes to `verdicts` and `made`."""
        rng, draft = self.rng, request.draft
        if request.position < 0:  # prefill
            request.position = 0
            self._draft(request, made, False)
            return
        if self._chance(0.04) and draft is not None and draft.checked and not aborted:
            request.position += 1  # a step that was not reported at all
            if draft.step < self.step:
                draft.step = -1  # stale from now on
            return
        if self._chance(0.04) and not aborted:  # a plain step: no verdict, and a new draft replaces the old one
            request.position += 1
            self.unverified += draft is not None
            request.draft = None
            self._draft(request, made, False, reported=True)
            return
        position, drafted = request.position, self.num_slots if draft is None else draft.drafted
        admitted = int(rng.binomial(drafted, 1 - TRIMMED))
        accepted = int(rng.integers(0, admitted + 1))
        scheduled = rng.integers(0, 9, self.num_slots) if draft is None else draft.ids.copy()
        mask = "grammar" if rng.random() < 0.1 else None
        row = [request, position, admitted, accepted, scheduled, mask]
        reason, believed = None, True
        if aborted:
            reason = "unknown_request"
            self.unverified += draft is not None
        elif draft is not None and self._chance(0.03):
            row[3], reason, believed = admitted + 1, "inconsistent", False
        elif draft is None:
            reason = "missing"
        elif draft.step < 0:
            reason = "stale"
        elif self._chance(0.03):
            row[2], reason = drafted + 1, "inconsistent"
        elif self.with_ids and admitted and self._chance(0.05):
            scheduled[int(rng.integers(0, admitted))] += 100
            reason = "mismatch"
        if reason is None:
            counts = (draft.drafted, admitted, accepted)
            request.blocks.append((self.step, request.number, position, *counts, mask, draft.features))
        else:
            self.dropped[reason] += 1
        verdicts.append(row)
        request.draft = None
        request.position += accepted + 1
        self._draft(request, made, believed)

    def _draft(self, request, made, checked, *, reported=False):
        rng, shape = self.rng, self.num_slots
        features = {
            "log_odds": rng.normal(size=shape).astype(np.float32),
            "entropy": rng.random(shape).astype(np.float32),
        }
        drafted = int(rng.integers(0, shape + 1)) if rng.random() < 0.3 else shape
        draft = Draft(drafted, features, rng.integers(0, 9, shape), self.step, checked or self.with_positions)
        if reported or not self._chance(0.04):
            made.append((request, draft))

    def _propose(self, made):
        made = [made[at] for at in self.rng.permutation(len(made))]
        for request, draft in made:
            request.draft = draft
        self.recorder.propose(
            [request.key for request, _ in made],
            np.array([draft.drafted for _, draft in made], dtype=np.int64),
            {
                name: np.array([draft.features[name] for _, draft in made]).reshape(len(made), self.num_slots)
                for name in ("log_odds", "entropy")
            },
            self._ids([draft.ids for _, draft in made]),
            [request.position for request, _ in made] if self.with_positions else None,
        )

    def _verify(self, verdicts):
        verdicts = [verdicts[at] for at in self.rng.permutation(len(verdicts))]
        self.recorder.verify(
            [row[0].key for row in verdicts],
            *(np.array([row[at] for row in verdicts], dtype=np.int64) for at in (1, 2, 3)),
            self._ids([row[4] for row in verdicts]),
            mask=[row[5] for row in verdicts],
        )

    def _ids(self, rows):
        return np.array(rows).reshape(len(rows), self.num_slots) if self.with_ids else None

    def _abort(self, requests):
        for request in requests:
            self._finish(request, request.position + 1, True)

    def _finish(self, request, output_len, aborted):
        self.unverified += request.draft is not None
        request.draft = None
        self.recorder.finish_request(request.key, output_len, aborted)
        self.ended[request.number] = (output_len, aborted)
        self.running.remove(request)
        self.free_keys.append(request.key)
