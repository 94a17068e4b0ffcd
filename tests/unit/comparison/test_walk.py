"""The order of service: the closed loop's for dense traces, the engine's own for on-policy ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avsim import policies
from avsim.comparison.walk import Table, Walk, chain_lengths, full_walk, recorded_walk, simulated_walk
from avsim.costs.linear import step_counter
from avsim.simulate import Arm
from avsim.sources import Trace, TraceCard, write_trace
from avsim.workload import Pool, request_sequences


def order(pool: Pool) -> np.ndarray:
    return request_sequences([np.arange(len(pool.start))], 1, [[3]])[0]


def same(one: Walk, other: Walk) -> None:
    for name in ("rows", "num_admitted", "seat", "fresh", "step_starts"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("seats", "offset", "rounds"), [(2, 0, 1), (3, 2, 1), (8, 5, 1), (40, 1, 1), (40, 0, 2)])
def test_the_full_walk_is_the_closed_loop_block_for_block(
    ragged: bool, seats: int, offset: int, rounds: int, greedy_pool: Pool, ngram_pool: Pool
) -> None:
    pool = ngram_pool if ragged else greedy_pool
    sequence = np.tile(order(pool)[:25], rounds)
    arm = Arm(policies.FixedDepth(k=pool.num_slots))
    walk = full_walk(pool, sequence, seats, offset)
    same(walk, simulated_walk(pool, arm, sequence, seats, step_counter(), offset))
    drafted = pool.num_drafted[walk.rows]
    assert (drafted.min() < pool.num_slots) == ragged
    assert np.array_equal(walk.num_admitted, drafted)
    assert walk.seat.max() < min(seats, len(sequence))


def test_requests_that_are_over_before_the_offset_never_take_a_seat(greedy_pool: Pool) -> None:
    """One seat and one long offset: only the requests that reach it are served, without idle steps."""
    offset = int(greedy_pool.output_len.min()) + 5
    walk = full_walk(greedy_pool, order(greedy_pool), 1, offset)
    request = np.searchsorted(greedy_pool.start, walk.rows, side="right") - 1
    assert len(set(request.tolist())) < len(greedy_pool.start)
    assert set(request.tolist()) == set(np.flatnonzero(greedy_pool.output_len - 1 > offset).tolist())
    assert (np.diff(walk.step_starts) == 1).all()
    assert set((walk.rows - greedy_pool.start[request])[walk.fresh].tolist()) == {offset}


@pytest.mark.parametrize("offset", [0, 3])
def test_a_trimmed_walk_visits_what_its_own_verdicts_lead_to(offset: int, greedy_pool: Pool) -> None:
    """fixed:2 against one request after the other in plain Python."""
    walk = simulated_walk(greedy_pool, Arm(policies.FixedDepth(k=2)), order(greedy_pool), 5, step_counter(), offset)
    visited: dict[int, list[int]] = {}
    for row, admitted in zip(walk.rows.tolist(), walk.num_admitted.tolist(), strict=True):
        request = int(np.searchsorted(greedy_pool.start, row, side="right")) - 1
        visited.setdefault(request, []).append(row - int(greedy_pool.start[request]))
        assert admitted == 2
    for request, length in enumerate(greedy_pool.output_len.tolist()):
        expected, position = [], offset
        while position < length - 1:
            expected.append(position)
            position += min(int(greedy_pool.num_accepted[greedy_pool.start[request] + position]), 2) + 1
        assert visited.get(request, []) == expected


def test_chain_lengths_against_a_plain_loop(ngram_pool: Pool) -> None:
    pool = ngram_pool
    expected = []
    for first, length in zip(pool.start.tolist(), pool.output_len.tolist(), strict=True):
        position = blocks = 0
        while position < length - 1:
            row = first + position
            position += min(int(pool.num_accepted[row]), int(pool.num_drafted[row])) + 1
            blocks += 1
        expected.append(blocks)
    assert chain_lengths(pool).tolist() == expected


def test_a_restricted_walk_keeps_steps_seats_and_what_is_fresh(greedy_pool: Pool) -> None:
    walk = full_walk(greedy_pool, order(greedy_pool), 4)
    picked = np.random.default_rng(0).random(len(walk.rows)) < 0.3
    picked[walk.step_starts[10] : walk.step_starts[12]] = False
    part = walk.restricted(picked)
    assert part.num_steps == walk.num_steps
    assert np.array_equal(part.step_of(), walk.step_of()[picked])
    assert np.diff(part.step_starts)[10:12].tolist() == [0, 0]
    for name in ("rows", "num_admitted", "seat", "fresh"):
        assert np.array_equal(getattr(part, name), getattr(walk, name)[picked])


def on_policy(path: Path) -> Trace:
    """Steps 5 … 9 of four requests, two of them of one source; nobody drafts in step 7, and a request skips step 6."""
    rows = [
        # step, request, position, admitted, accepted, mask
        (5, 10, 0, 2, 1, None),
        (5, 12, 0, 2, 2, None),
        (6, 10, 2, 1, 1, "penalties"),
        (8, 10, 4, 2, 0, None),
        (8, 12, 3, 0, 0, None),
        (8, 13, 0, 2, 1, None),
        (9, 11, 0, 2, 2, None),
        (9, 13, 2, 2, 2, None),
    ]
    columns = ("step", "request", "position", "num_admitted", "num_accepted", "mask")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns[:-1], pl.Int64) | {"mask": pl.String}, orient="row")
    frame = frame.with_columns(
        num_drafted=pl.lit(2), log_odds_0=pl.col("step").cast(pl.Float32), log_odds_1=pl.col("request").cast(pl.Float32)
    )
    requests = pl.DataFrame(
        {
            "request": [10, 11, 12, 13],
            "source": [7, 7, 9, 8],
            "prompt_len": 3,
            "output_len": 40,
            "temperature": 0.0,
            "category": ["chat", "code", "chat", None],
        }
    )
    card = TraceCard(
        name="synthetic-steps", kind="on-policy", target="t", drafter="d", drafter_kind="synthetic",
        num_speculative_tokens=2, draft_sampling="greedy", acceptance_rule="standard", temperature=0.0, synthetic=True,
        complete_blocks=True,
    )  # fmt: skip
    return write_trace(path, card, requests, [frame])


def test_a_recorded_walk_is_the_engines_own(tmp_path: Path) -> None:
    table, walk = recorded_walk(on_policy(tmp_path / "trace"), ["log_odds", "label"])
    # The gap at step 7 is an empty step: it counts towards a refit as it did in the engine.
    assert walk.step_starts.tolist() == [0, 2, 3, 3, 6, 8]
    assert walk.step_of().tolist() == [0, 0, 1, 3, 3, 3, 4, 4]
    assert walk.num_admitted.tolist() == [2, 2, 1, 2, 0, 2, 2, 2]
    assert walk.seat.tolist() == [0, 2, 0, 0, 2, 3, 1, 3]
    assert walk.fresh.tolist() == [True, True, False, False, False, True, True, False]
    assert walk.rows.tolist() == list(range(8))
    assert table.num_accepted.tolist() == [1, 2, 1, 0, 0, 1, 2, 2]
    assert table.num_known.tolist() == walk.num_admitted.tolist()
    assert table.unit.tolist() == [0, 2, 0, 0, 2, 1, 0, 1]
    assert [table.categories[code] for code in table.category] == [
        "chat", "chat", "chat", "chat", "chat", "(none)", "code", "(none)",
    ]  # fmt: skip
    assert table.unfit.tolist() == [False, False, True, False, False, False, False, False]
    assert table.features["log_odds"].T[2].tolist() == [6.0, 10.0]
    assert table.features["label"].T.astype(int).tolist()[:4] == [[1, 0], [1, 1], [1, 0], [0, 0]]


def test_verdicts_reach_the_first_rejection_and_nothing_that_was_not_verified(tmp_path: Path) -> None:
    table, walk = recorded_walk(on_policy(tmp_path / "trace"), [])
    accepted, reached = table.verdicts(walk.rows)
    assert accepted.T.astype(int).tolist() == [[1, 0], [1, 1], [1, 0], [0, 0], [0, 0], [1, 0], [1, 1], [1, 1]]
    # Row 2 is masked, row 4 was trimmed to nothing; row 3's second slot lies beyond its rejection.
    assert reached.T.astype(int).tolist() == [[1, 1], [1, 1], [0, 0], [1, 0], [0, 0], [1, 1], [1, 1], [1, 1]]


def test_a_truncated_recorded_walk(tmp_path: Path) -> None:
    table, walk = recorded_walk(on_policy(tmp_path / "trace"), ["log_odds"], 1)
    assert table.num_slots == 1
    assert walk.num_admitted.tolist() == [1, 1, 1, 1, 0, 1, 1, 1]
    assert table.num_accepted.tolist() == [1, 1, 1, 0, 0, 1, 1, 1]


def test_a_dense_table_knows_request_unit_and_category_of_every_row(greedy: Trace, greedy_pool: Pool) -> None:
    table = Table.of_pool(greedy_pool, greedy)
    blocks = greedy.blocks()
    names = greedy.requests["category"].to_numpy()
    assert [table.categories[code] for code in table.category] == names[blocks.request].tolist()
    assert np.array_equal(table.unit, greedy_pool.unit[blocks.request])
    assert np.array_equal(table.num_known, blocks.num_drafted)
