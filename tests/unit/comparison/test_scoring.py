"""Scores against a slow loop that meets one block after the other and keeps everything in dicts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from avsim import estimators, policies
from avsim.comparison import scoring
from avsim.comparison.scoring import BUCKET_STEPS, Scores, block_losses, fit_halves, predict_walk, score
from avsim.comparison.walk import Table, Walk, full_walk, simulated_walk
from avsim.costs import CostModel
from avsim.costs.linear import step_counter
from avsim.estimators import Estimator
from avsim.estimators.base import MEMORY, EstimatorState, advance
from avsim.simulate import Arm
from avsim.sources import Trace
from avsim.types import Observations
from avsim.workload import Pool

Events = dict[tuple[int, int], tuple[float, int, bool, bool]]
"""By (block of the walk, slot): confidence, label, whether reached, whether verified."""


@pytest.fixture(scope="module")
def table(greedy: Trace, greedy_pool: Pool) -> Table:
    """Every 50th row is masked."""
    whole = Table.of_pool(greedy_pool, greedy)
    return replace(whole, unfit=np.arange(len(whole.unit)) % 50 == 7)


@pytest.fixture(scope="module")
def trimmed(greedy_pool: Pool, b300: CostModel) -> Walk:
    """What `adaptive` verifies of 16 requests on 5 seats."""
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    return simulated_walk(greedy_pool, arm, np.arange(16), 5, b300)


@pytest.fixture(scope="module")
def whole(greedy_pool: Pool) -> Walk:
    return full_walk(greedy_pool, np.arange(len(greedy_pool.start))[::-1], 8, 2)


def one(table: Table, names: tuple[str, ...], row: int) -> dict[str, np.ndarray]:
    return {name: table.features[name][:, row : row + 1] for name in names}


def grade(table: Table, walk: Walk, number: int, features: dict[str, Any], p: np.ndarray, learned: bool) -> Any:
    row = int(walk.rows[number])
    known = min(int(walk.num_admitted[number]), int(table.num_known[row]))
    taken = np.array([min(int(table.num_accepted[row]), known)])
    return Observations.grade(features, p, np.array([known]), taken, np.array([0, 1]), np.array([not learned]))


def slow(estimator: Estimator, table: Table, walk: Walk, halves: Any = None, learned: Any = None) -> Events:
    """Predict, learn and remember block by block; learn at the end of each step, as a server does."""
    state, kept, events = estimator.start(table.num_slots), dict[int, np.ndarray](), Events()
    for step in range(walk.num_steps):
        graded = []
        for number in range(walk.step_starts[step], walk.step_starts[step + 1]):
            row, seat = int(walk.rows[number]), int(walk.seat[number])
            features = one(table, estimator.features, row)
            if estimator.memory_size:
                fresh = np.zeros((estimator.memory_size, 1), dtype=np.float32)
                features[MEMORY] = fresh if walk.fresh[number] else kept[seat]
            params = state.params if halves is None else halves[int(halves[2][row])].params
            p = np.array(estimator.predict(params, features, (table.num_slots, 1)))
            learn = not table.unfit[row] if learned is None else bool(learned[row])
            seen = grade(table, walk, number, features, p, learn)
            graded.append(seen)
            if estimator.memory_size:
                kept[seat] = estimator.remember(state.params, seen)
            for slot in range(table.num_slots):
                accepted, known = int(table.num_accepted[row]), int(table.num_known[row])
                reached = slot <= accepted and slot < known and not table.unfit[row]
                verified = slot < min(known, int(walk.num_admitted[number])) and not table.unfit[row]
                events[number, slot] = (float(p[slot, 0]), int(slot < accepted), reached, verified)
        for seen in graded:
            state = replace(state, stats=estimator.accumulate(state.stats, seen))
        state = advance(estimator, state, None, 1)
    return events


def nats(p: float, label: int) -> float:
    return -math.log(max(p if label else 1 - p, 2.0**-24))


def check(found: Scores, table: Table, walk: Walk, events: Events) -> None:
    """Compare everything that a score holds with sums over events."""
    units = {"conditional": dict[int, float](), "cumulative": dict[int, float]()}
    time = {kind: dict[int, list[float]]() for kind in units}
    categories = dict[int, list[float]]()
    beside = [0.0, 0.0]
    step_of = walk.step_of()
    for number in range(len(walk.rows)):
        row, product = int(walk.rows[number]), 1.0
        for slot in range(table.num_slots):
            p, label, reached, verified = events[number, slot]
            product *= p
            for kind, value, counted in (("conditional", p, reached), ("cumulative", product, verified)):
                if counted:
                    loss = nats(value, label)
                    unit = int(table.unit[row])
                    units[kind][unit] = units[kind].get(unit, 0.0) + loss
                    line = time[kind].setdefault(int(step_of[number]) // BUCKET_STEPS, [0.0, 0.0])
                    line[0], line[1] = line[0] + loss, line[1] + 1
            if reached:
                line = categories.setdefault(int(table.category[row]), [0.0, 0.0])
                line[0], line[1] = line[0] + nats(p, label), line[1] + 1
                cut = int(walk.num_admitted[number])
                if cut < table.num_known[row] and slot in (cut - 1, cut):
                    beside[0], beside[1] = beside[0] + nats(p, label), beside[1] + 1
    for kind, (name, calibration) in enumerate((("conditional", found.conditional), ("cumulative", found.cumulative))):
        expected = [units[name].get(unit, 0.0) for unit in range(table.num_units)]
        assert found.unit_loss[kind] == pytest.approx(expected, rel=2e-4, abs=1e-5)
        assert calibration.log_loss.sum() == pytest.approx(sum(expected), rel=1e-5)
        assert calibration.counts.sum() == sum(line[1] for line in time[name].values())
        buckets = [time[name].get(number, [0.0, 0.0]) for number in range(found.loss_over_time.shape[2])]
        assert found.loss_over_time[kind, 0] == pytest.approx([line[0] for line in buckets], rel=2e-4, abs=1e-5)
        assert found.loss_over_time[kind, 1].tolist() == [line[1] for line in buckets]
    for code, calibration in enumerate(found.by_category):
        loss, count = categories.get(code, [0.0, 0.0])
        assert calibration.counts.sum() == count
        assert calibration.log_loss.sum() == pytest.approx(loss, rel=1e-5)
    assert found.band.counts.sum() == beside[1]
    assert found.band.log_loss.sum() == pytest.approx(beside[0], rel=1e-5)


@pytest.mark.parametrize("spec", ["online-logistic", "position-rate:refit_interval=7", "request-adaptive"])
def test_scores_against_the_slow_loop(spec: str, table: Table, trimmed: Walk) -> None:
    estimator = estimators.make(spec)
    found = score(estimator, table, [trimmed])
    check(found, table, trimmed, slow(estimator, table, trimmed))
    assert found.refits == trimmed.num_steps // estimator.refit_interval > 1


def test_scores_where_every_slot_was_verified(easy: Trace) -> None:
    pool = Pool.from_trace(easy, ["log_odds"])
    table, walk = Table.of_pool(pool, easy), full_walk(pool, np.arange(12), 3)
    estimator = estimators.make("online-logistic:refit_interval=20")
    found = score(estimator, table, [walk])
    assert found.cumulative.counts.sum() == 3 * len(walk.rows)
    check(found, table, walk, slow(estimator, table, walk))
    assert found.band.counts.sum() == 0


def test_cross_fitted_scores_against_the_slow_loop(table: Table, trimmed: Walk) -> None:
    """Each half of the requests by a fit to the other one's verified slots, and to those that are fit only."""
    estimator = estimators.make("temperature-offline")
    second = table.unit % 2 == 1
    halves = fit_halves(estimator, table, trimmed, second)
    for number, half in enumerate((second, ~second)):
        rows = trimmed.rows[half[trimmed.rows]]
        known = np.minimum(trimmed.num_admitted[half[trimmed.rows]], table.num_known[rows])
        features = {name: table.features[name][:, rows] for name in estimator.features}
        p = np.zeros((table.num_slots, len(rows)), dtype=np.float32)
        taken = np.minimum(table.num_accepted[rows], known)
        seen = Observations.grade(features, p, known, taken, np.array([0, len(rows)]), table.unfit[rows])
        params = estimator.fit(table.num_slots, seen)
        for name, value in params.items():
            assert np.array_equal(halves[number].params[name], value)
    assert not np.array_equal(*(half.params["inverse_temperatures"] for half in halves[:2]))
    check(score(estimator, table, [trimmed], halves=halves), table, trimmed, slow(estimator, table, trimmed, halves))


def test_a_half_is_never_predicted_by_its_own_labels(table: Table, whole: Walk) -> None:
    estimator = estimators.make("temperature-offline")
    second = table.unit % 2 == 1
    flipped = replace(table, num_accepted=np.where(second, table.num_known - table.num_accepted, table.num_accepted))
    before, after = (
        predict_walk(estimator, item, whole, halves=fit_halves(estimator, item, whole, second))[0]
        for item in (table, flipped)
    )
    mine = second[whole.rows]
    assert np.array_equal(before[:, mine], after[:, mine])
    assert not np.array_equal(before[:, ~mine], after[:, ~mine])


def test_only_verified_slots_are_learned_from(greedy: Trace, greedy_pool: Pool) -> None:
    """fixed:1 verifies one slot: deeper ones are never labelled, but they are scored."""
    arm = Arm(policies.make("fixed:1"))
    walk = simulated_walk(greedy_pool, arm, np.arange(len(greedy_pool.start)), 8, step_counter())
    found = score(estimators.make("position-rate:prior=0.3"), Table.of_pool(greedy_pool, greedy), [walk])
    slots = found.conditional.summary()["slots"]
    assert slots[0]["mean_confidence"] != pytest.approx(0.3, abs=0.01)
    for slot in slots[1:]:
        assert slot["mean_confidence"] == pytest.approx(0.3, abs=2e-4)
        assert slot["count"] > 0
    assert [slot["count"] for slot in found.cumulative.summary()["slots"]][1:] == [0] * 4


def test_labels_behind_the_cut_or_the_mask_change_nothing_that_is_predicted(table: Table, trimmed: Walk) -> None:
    """What was trimmed, and what is masked, may say anything."""
    estimator = estimators.make("request-adaptive:refit_interval=10")
    admitted = np.full(len(table.unit), 0)
    admitted[trimmed.rows] = trimmed.num_admitted
    behind = table.num_accepted >= np.minimum(admitted, table.num_known)
    other = np.where(behind, np.minimum(table.num_accepted + 1, table.num_known), table.num_accepted)
    other = np.where(table.unfit, 0, other)
    changed = replace(table, num_accepted=other)
    assert (changed.num_accepted != table.num_accepted)[trimmed.rows].sum() > 50
    before, after = (predict_walk(estimator, item, trimmed)[0] for item in (table, changed))
    assert np.array_equal(before, after)


def test_masked_rows_are_learned_from_on_request_only_and_are_never_scored(table: Table, whole: Walk) -> None:
    estimator = estimators.make("position-rate")
    everything = np.ones(len(table.unit), dtype=bool)
    left_out, included = score(estimator, table, [whole]), score(estimator, table, [whole], learn=everything)
    unmasked = score(estimator, replace(table, unfit=~everything), [whole])
    assert left_out.conditional.counts.sum() == included.conditional.counts.sum() < unmasked.conditional.counts.sum()
    assert left_out.state is not None
    assert included.state is not None
    assert unmasked.state is not None
    labels = [found.state.stats["observed"].sum() for found in (left_out, included, unmasked)]
    assert labels[0] < labels[1] == labels[2]
    check(included, table, whole, slow(estimator, table, whole, learned=everything))


def test_scored_rows_do_not_change_what_is_learned(table: Table, whole: Walk) -> None:
    estimator = estimators.make("online-logistic")
    some = table.category == 1
    part, everything = score(estimator, table, [whole], scored=some & ~table.unfit), score(estimator, table, [whole])
    assert part.unit_loss[0].sum() == pytest.approx(everything.by_category[1].log_loss.sum())
    assert part.state is not None
    assert everything.state is not None
    assert part.state.to_json() == everything.state.to_json()


def test_walks_pool_and_each_starts_anew(table: Table, whole: Walk, trimmed: Walk) -> None:
    estimator = estimators.make("online-logistic")
    both = score(estimator, table, [trimmed, whole])
    apart = [score(estimator, table, [walk]) for walk in (trimmed, whole)]
    assert both.unit_loss == pytest.approx(apart[0].unit_loss + apart[1].unit_loss)
    assert np.array_equal(both.conditional.counts, apart[0].conditional.counts + apart[1].conditional.counts)
    for kind in range(2):
        total = apart[1].loss_over_time[kind].copy()
        total[:, : apart[0].loss_over_time.shape[2]] += apart[0].loss_over_time[kind]
        assert both.loss_over_time[kind] == pytest.approx(total)
    assert both.state is not None
    assert apart[0].state is not None
    assert both.state.to_json() == apart[0].state.to_json()
    assert both.refits == apart[0].refits


def cut(walk: Walk, step: int) -> tuple[Walk, Walk]:
    at = int(walk.step_starts[step])
    parts = []
    for rows, starts in ((slice(0, at), walk.step_starts[: step + 1]), (slice(at, None), walk.step_starts[step:] - at)):
        columns = [column[rows] for column in (walk.rows, walk.num_admitted, walk.seat, walk.fresh)]
        parts.append(Walk(*columns, starts))
    return parts[0], parts[1]


@pytest.mark.parametrize("step", [1, 99, 100, 237])
def test_a_walk_cut_in_two_is_the_same_walk(step: int, table: Table, whole: Walk) -> None:
    estimator = estimators.make("online-logistic")
    together, end = predict_walk(estimator, table, whole)
    first, second = cut(whole, step)
    one_half, state = predict_walk(estimator, table, first)
    stored = EstimatorState.from_json(state.to_json())
    other_half, last = predict_walk(estimator, table, second, start=stored)
    assert np.array_equal(together, np.concatenate((one_half, other_half), axis=1))
    assert last.to_json() == end.to_json()


def test_steps_without_blocks_count_towards_a_refit(table: Table, whole: Walk) -> None:
    one_block = whole.restricted(np.arange(len(whole.rows)) == 3)
    _, state = predict_walk(estimators.make("online-logistic"), table, one_block)
    assert state.refits == whole.num_steps // 100
    assert state.steps_since_refit == whole.num_steps % 100


def test_every_estimator_is_scored_on_the_same_slots(table: Table, trimmed: Walk) -> None:
    names = ("online-logistic", "position-rate", "raw-confidence", "oracle-label", "request-adaptive")
    found = [score(estimators.make(name), table, [trimmed]) for name in names]
    for kind in ("conditional", "cumulative", "band"):
        assert len({getattr(item, kind).counts.sum() for item in found}) == 1
    losses = [item.conditional.log_loss.sum() for item in found]
    assert losses[3] == 0 < losses[0] < losses[1]


def test_scores_do_not_depend_on_the_pieces(table: Table, trimmed: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = estimators.make("online-logistic")
    known = np.minimum(trimmed.num_admitted, table.num_known[trimmed.rows])
    assert (known == table.num_known[trimmed.rows]).any()  # some blocks have no cut
    at_once = score(estimator, table, [trimmed])
    monkeypatch.setattr(scoring, "_CHUNK", 3)
    pieces = score(estimator, table, [trimmed])
    for kind in ("conditional", "cumulative", "band"):
        assert np.array_equal(getattr(at_once, kind).counts, getattr(pieces, kind).counts), kind
    assert pieces.unit_loss == pytest.approx(at_once.unit_loss)


def test_block_losses() -> None:
    p = np.array([[0.25, 1.0, 0.5], [0.5, 0.0, 0.125]], dtype=np.float32)
    accepted = np.array([[True, False, True], [False, True, False]])
    scored = np.array([[True, True, False], [True, True, False]])
    least = 24 * math.log(2)
    assert block_losses(p, accepted, scored) == pytest.approx([math.log(4) + math.log(2), 2 * least, 0])
