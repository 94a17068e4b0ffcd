"""The rules of pairing one by one, and what the outbox tells the writer when it has dropped steps."""

from __future__ import annotations

import queue
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from avsim.capture.batch import Figures
from avsim.capture.events import Finish, Proposals, Start, Verdicts
from avsim.capture.outbox import Outbox
from avsim.capture.pairing import REASONS, Pairing

FIGURES = Figures(1, 1, 0, None, None, None, None)


def propose(value=1.0, drafted=2, ids=None, position=None):
    features = {"log_odds": np.full((1, 2), value, dtype=np.float32)}
    at = None if position is None else np.array([position])
    return Proposals(["a"], np.array([drafted]), features, None if ids is None else np.array([ids]), at)


def verify(position=0, admitted=2, accepted=1, ids=None):
    counts = (np.array([value]) for value in (position, admitted, accepted))
    return Verdicts(["a"], *counts, None if ids is None else np.array([ids]))


def played(*steps):
    """Play steps of events, numbered from 0; None is a gap. Return the pairing and the features of its blocks."""
    pairing, values = Pairing(2), []
    pairing.play(0, [Start("a", 0)])
    for step, events in enumerate(steps):
        if events is None:
            pairing.forget_proposals()
            continue
        values += [float(rows.features[0, 0, 0]) for rows in pairing.play(step, events)]
    return pairing, values


@pytest.mark.parametrize(
    ("steps", "blocks", "dropped", "unverified"),
    [
        ([[propose(1)], [verify(), propose(2)], [verify(2)]], [1, 2], {}, 0),
        ([[propose(1)], [propose(2), verify()], [propose(3), verify(2)]], [1, 2], {}, 0),
        ([[propose(1)], [propose(2), verify()], [verify(2)]], [1, 2], {}, 0),
        ([[propose(1)], [], [], [verify()]], [1], {}, 0),
        ([[propose(1)], [propose(2)], [verify()]], [2], {}, 1),
        ([[propose(1), propose(2)], [verify()]], [2], {}, 1),
        ([[propose(1), verify()]], [], {"missing": 1}, 0),
        ([[propose(1)], [verify(), verify(2)]], [1], {"missing": 1}, 0),
        ([[propose(1)], None, [verify(1)]], [], {"missing": 1}, 1),
        ([[propose(1)], [verify(4), propose(2)], [verify(7)]], [1], {"stale": 1}, 0),
        ([[propose(1)], [propose(2), verify(4)], [verify(7)]], [1], {"stale": 1}, 0),
        ([[propose(1, position=3)], [verify(4)]], [], {"stale": 1}, 0),
        ([[propose(1)], [verify(4)], [propose(2)], [verify(4)]], [1], {"stale": 1}, 0),
        ([[propose(1)], [verify(4)], [propose(2)], [verify(3)], [propose(3)], [verify(5)]], [1, 3], {"stale": 1}, 0),
        ([[propose(1, ids=[5, 6])], [verify(ids=[5, 6])]], [1], {}, 0),
        ([[propose(1, ids=[5, 6])], [verify(ids=[5, 7])]], [], {"mismatch": 1}, 0),
        ([[propose(1, ids=[5, 6])], [verify(admitted=1, ids=[5, 7])]], [1], {}, 0),
        ([[propose(1, ids=[5, 6])], [verify(ids=[5])]], [], {"mismatch": 1}, 0),
        ([[propose(1, drafted=1)], [verify()]], [], {"inconsistent": 1}, 0),
        ([[propose(1)], [verify(accepted=3)]], [], {"inconsistent": 1}, 0),
        ([[propose(1)], [verify(accepted=-1)]], [], {"inconsistent": 1}, 0),
        ([[propose(1)], [verify(position=-1)]], [], {"inconsistent": 1}, 0),
        ([[propose(1)], [Finish("a"), verify()]], [], {"unknown_request": 1}, 1),
        ([[propose(1), Finish("a"), Start("a", 1)], [verify()]], [], {"missing": 1}, 1),
        ([[propose(1)], [Start("a", 0), verify()]], [], {"missing": 1}, 1),
    ],
)
def test_pairing(steps, blocks, dropped, unverified):
    pairing, values = played(*steps)
    assert values == blocks
    assert +pairing.dropped == Counter(dropped)
    assert pairing.unverified == unverified
    assert dropped.keys() <= REASONS.keys()


def outbox(queue_steps):
    writer = SimpleNamespace(queue=queue.SimpleQueue(), running=True, lost={"overflow": 0, "unclosed_step": 0})
    counts = {"steps": 0, "dropped_steps": 0}
    return Outbox(writer, counts, queue_steps), writer, counts


def test_a_gap_is_told_with_the_next_step_that_fits():
    made, writer, counts = outbox(4)
    for step in range(6):
        made.add(verify())
        if step == 5:
            made.add(Start("b", 1))
        made.end_step(FIGURES)
    assert counts == {"steps": 6, "dropped_steps": 2}
    assert writer.lost["overflow"] == 2
    # It takes a queue that is half empty to go on, so one free place is not enough.
    writer.queue.get()
    made.end_step(FIGURES)
    assert counts["dropped_steps"] == 3
    for _ in range(3):
        writer.queue.get()
    made.add(verify())
    made.end_step(FIGURES)
    made.end_step(FIGURES)
    first, second = writer.queue.get(), writer.queue.get()
    assert (first.step, first.after_gap) == (7, True)
    assert [type(event) for event in first.events] == [Start, Verdicts]
    assert (second.step, second.after_gap) == (8, False)


def test_requests_that_come_between_steps_do_not_wait_but_those_within_keep_their_place():
    made, writer, _ = outbox(4)
    made.add(Start("a", 0))
    assert [type(event) for event in writer.queue.get().events] == [Start]
    made.add(verify())
    made.add(Finish("a"))
    assert writer.queue.empty()
    made.end_step(FIGURES)
    assert [type(event) for event in writer.queue.get().events] == [Verdicts, Finish]
