"""Which verdict belongs to which proposal: the one place where a captured block gets its label.

A verdict of step s grades the newest proposal that was made before step s. Whether a step reports its own new
proposals before or after its verdicts (engines that schedule ahead do the former) therefore makes no difference.
Whatever does not fit is dropped and counted under one of `REASONS`; nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.capture.events import Proposals, Rows, Start, Verdicts
from avsim.types import F32Array

__all__ = ["REASONS", "Pairing"]

REASONS = {
    "unknown_request": "a verdict on a request that was never announced, or has finished",
    "missing": "a verdict without an earlier proposal",
    "stale": "the proposal was made for another position, or the position does not rise",
    "mismatch": "the tokens that were verified are not the ones that were proposed",
    "inconsistent": "not 0 ≤ accepted ≤ admitted ≤ drafted, or a negative position",
    "features_changed": "its features are not those that the first proposals of the run had",
    "overflow": "its step was dropped whole, as the writer could not keep up",
    "unclosed_step": "the capture was closed before the step was",
    "stopped": "it came after a limit or an error had stopped the writer",
}
"""Why a verdict did not become a block."""


@dataclass(slots=True, eq=False)
class _Made:
    """Proposals of one step: features float32 `[F, B, K]` in the order of `names`, ids `[B, K]`."""

    names: tuple[str, ...]
    features: F32Array
    draft_ids: NDArray[np.int64] | None


@dataclass(slots=True, eq=False)
class _Draft:
    batch: _Made
    row: int
    step: int
    drafted: int
    position: int | None  # where its block must start, if the step that made it also said so


@dataclass(slots=True, eq=False)
class _Live:
    number: int
    last_position: int = -1
    next_position: int = -1
    next_step: int = -1
    older: _Draft | None = None
    newest: _Draft | None = None


@dataclass(slots=True)
class Pairing:
    """The state between steps: the live requests, each with at most two ungraded proposals.

    Attributes:
        num_slots: K.
        names: feature names, in order; those of the first proposals with a drafted slot.
        dropped: verdicts that did not become blocks, by reason.
        unverified: proposals that no verdict ever graded.
    """

    num_slots: int
    names: tuple[str, ...] | None = None
    # Every reason is there from the start: another thread may read while this one counts.
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))
    unverified: int = 0
    _live: dict[str, _Live] = field(default_factory=dict)

    def play(self, step: int, events: Sequence[Any]) -> list[Rows]:
        """Take a step's events in the order in which they were reported; return the blocks that they complete.

        Raises:
            ValueError: arrays of the wrong shape.
        """
        done: list[Rows] = []
        for event in events:
            if isinstance(event, Verdicts):
                if (rows := self._verify(step, event)) is not None:
                    done.append(rows)
            elif isinstance(event, Proposals):
                self._propose(step, event)
            elif isinstance(event, Start):
                self._start(event)
            else:
                self._forget(self._live.pop(event.key, None))
        return done

    def forget_proposals(self) -> None:
        """Drop every ungraded proposal: the run is over, or a step is missing, which may have replaced any of them."""
        for live in self._live.values():
            self._forget(live)
            live.older = live.newest = None

    def _start(self, event: Start) -> None:
        live = self._live.get(event.key)
        self._forget(live)
        if live is None or live.number != event.number:
            self._live[event.key] = _Live(event.number)
        else:
            live.older = live.newest = None

    def _forget(self, live: _Live | None) -> None:
        if live is not None:
            self.unverified += (live.older is not None) + (live.newest is not None)

    def _propose(self, step: int, event: Proposals) -> None:
        event.check(self.num_slots)
        names = tuple(sorted(event.features))
        if self.names is None and event.num_drafted.any():
            self.names = names
        features = np.full((len(names), len(event.keys), self.num_slots), np.nan, dtype=np.float32)
        for at, name in enumerate(names):
            features[at, :, : event.features[name].shape[1]] = event.features[name]
        made = _Made(names, features, self._padded(event.draft_ids))
        for row, (key, drafted) in enumerate(zip(event.keys, event.num_drafted.tolist(), strict=True)):
            live = self._live.get(key)
            if live is None:
                continue  # graded, it would be counted as unknown_request
            if live.newest is not None:
                if live.newest.step < step:
                    self.unverified += live.older is not None
                    live.older = live.newest
                else:
                    self.unverified += 1
            position = live.next_position if live.next_step == step else None
            if event.positions is not None:
                position = int(event.positions[row])
            live.newest = _Draft(made, row, step, drafted, position)

    def _padded(self, ids: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        if ids is None:
            return None
        padded = np.full((len(ids), self.num_slots), -1, dtype=np.int64)
        padded[:, : ids.shape[1]] = ids[:, : self.num_slots]
        return padded

    def _verify(self, step: int, event: Verdicts) -> Rows | None:
        event.check()
        kept: list[int] = []
        numbers: list[int] = []
        drafts: list[_Draft] = []
        counts = zip(
            event.keys, event.positions.tolist(), event.num_admitted.tolist(), event.num_accepted.tolist(), strict=True
        )
        for row, (key, position, admitted, accepted) in enumerate(counts):
            live = self._live.get(key)
            if live is None:
                self.dropped["unknown_request"] += 1
                continue
            draft = self._take(live, step)
            if not 0 <= accepted <= admitted or position < 0:
                self.dropped["inconsistent"] += 1
                continue
            live.next_position, live.next_step = position + accepted + 1, step
            if live.newest is not None and live.newest.step == step and live.newest.position is None:
                live.newest.position = live.next_position
            reason = self._misfit(event, row, draft, live, position, admitted)
            if reason is not None or draft is None:
                self.dropped[reason or "missing"] += 1
                continue
            live.last_position = position
            kept.append(row)
            numbers.append(live.number)
            drafts.append(draft)
        return self._gather(event, kept, numbers, drafts) if kept else None

    def _take(self, live: _Live, step: int) -> _Draft | None:
        draft, live.older = live.older, None
        if live.newest is not None and live.newest.step < step:
            self.unverified += draft is not None
            draft, live.newest = live.newest, None
        return draft

    def _misfit(
        self, event: Verdicts, row: int, draft: _Draft | None, live: _Live, position: int, admitted: int
    ) -> str | None:
        if draft is None:
            return "missing"
        if position <= live.last_position or (draft.position is not None and draft.position != position):
            return "stale"
        if admitted > draft.drafted:
            return "inconsistent"
        if draft.drafted and draft.batch.names != self.names:
            return "features_changed"
        proposed = draft.batch.draft_ids
        if event.scheduled_ids is not None and proposed is not None:
            scheduled = event.scheduled_ids[row, :admitted]
            if len(scheduled) < admitted or not np.array_equal(scheduled, proposed[draft.row, :admitted]):
                return "mismatch"
        return None

    def _gather(self, event: Verdicts, kept: list[int], numbers: list[int], drafts: list[_Draft]) -> Rows:
        rows = np.array(kept, dtype=np.int64)
        names, num_slots = self.names or (), self.num_slots
        features: F32Array = np.full((len(names), len(kept), num_slots), np.nan, dtype=np.float32)
        no_ids = all(draft.batch.draft_ids is None for draft in drafts)
        ids = None if no_ids else np.full((len(kept), num_slots), -1, dtype=np.int64)
        by_batch: dict[int, list[int]] = {}
        for at, draft in enumerate(drafts):
            by_batch.setdefault(id(draft.batch), []).append(at)
        for places in by_batch.values():
            batch = drafts[places[0]].batch
            source = [drafts[at].row for at in places]
            if batch.names == names:  # otherwise none of its slots was drafted
                features[:, places] = batch.features[:, source]
            if ids is not None and batch.draft_ids is not None:
                ids[places] = batch.draft_ids[source]
        return Rows(
            request=np.array(numbers, dtype=np.int64),
            position=event.positions[rows],
            num_drafted=np.array([draft.drafted for draft in drafts], dtype=np.int64),
            num_admitted=event.num_admitted[rows],
            num_accepted=event.num_accepted[rows],
            features=features,
            draft_ids=ids,
            mask=[None] * len(kept) if event.mask is None else [event.mask[row] for row in kept],
        )
