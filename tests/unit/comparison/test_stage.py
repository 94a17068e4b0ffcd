"""A trace made ready for comparing: which walks, which admission, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from avsim import estimators
from avsim.comparison import CompareConfig
from avsim.comparison.scoring import fit_walk, predict_walk
from avsim.comparison.stage import Stage, learn_from, stage
from avsim.errors import InputError
from avsim.sources import Trace, open_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

B300 = "deepseek-v4-flash-tp4-b300"
TRACES = Path(__file__).parent.parent.parent.parent / "traces"


def first_positions(item: Stage, trace: Trace) -> list[set[int]]:
    """The output positions at which each walk's requests begin."""
    position = trace.blocks().position
    return [set(position[walk.rows[walk.fresh]].tolist()) for walk in item.walks]


@pytest.mark.parametrize(
    ("offsets", "expected"), [(None, [0, 1, 2, 3]), (1, [0]), (2, [0, 2]), (3, [0, 1, 2]), (99, [0, 1, 2, 3])]
)
def test_one_walk_for_each_first_position(offsets: int | None, expected: list[int], easy: Trace) -> None:
    """By default K + 1 of them, since a step moves a request by at most K + 1."""
    item = stage(easy, CompareConfig(offsets=offsets, concurrency=4), [])
    assert first_positions(item, easy) == [{offset} for offset in expected]
    for walk in item.walks:
        assert set(np.unique(item.table.unit[walk.rows])) == set(range(40))
        assert np.diff(walk.step_starts).max() == 4


def test_at_most_eight_walks(tmp_path: Path) -> None:
    law = SyntheticLaw(num_requests=3, output_len=40, num_speculative_tokens=15)
    trace = write_synthetic(tmp_path / "deep", law)
    item = stage(trace, CompareConfig(concurrency=2), [])
    assert first_positions(item, trace) == [{offset} for offset in range(0, 16, 2)]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_no_walk_begins_past_the_end_of_every_output(length: int, tmp_path: Path) -> None:
    law = SyntheticLaw(num_requests=4, output_len=length, num_speculative_tokens=5)
    trace = write_synthetic(tmp_path / "short", law)
    item = stage(trace, CompareConfig(concurrency=2), [])
    assert first_positions(item, trace) == [{offset} for offset in range(length - 1)]


def test_full_admission_verifies_everything_and_a_policy_what_it_wants(easy: Trace) -> None:
    full = stage(easy, CompareConfig(offsets=1), ["log_odds"])
    fixed = stage(easy, CompareConfig(offsets=1, admission="fixed:2"), ["log_odds"])
    chosen = stage(
        easy, CompareConfig(offsets=1, admission="adaptive", cost=B300, what_if=True, concurrency=64), ["log_odds"]
    )
    assert [set(item.walks[0].num_admitted.tolist()) for item in (full, fixed)] == [{3}, {2}]
    assert chosen.walks[0].num_admitted.min() < chosen.walks[0].num_admitted.max()
    assert (full.cost, fixed.cost, full.foreign, chosen.foreign) == (None, None, False, True)
    assert chosen.cost is not None


def test_the_admissions_own_features_are_loaded(easy: Trace) -> None:
    config = CompareConfig(offsets=1, admission="adaptive", cost=B300, what_if=True)
    assert list(stage(easy, config, []).table.features) == ["log_odds"]
    by_rate = replace(config, admission_estimator="position-rate")
    assert list(stage(easy, by_rate, []).table.features) == []


def test_a_truncated_trace(greedy: Trace) -> None:
    item = stage(greedy, CompareConfig(offsets=1, num_slots=2), ["log_odds"])
    assert item.table.num_slots == len(item.table.features["log_odds"]) == 2
    assert item.walks[0].num_admitted.max() == item.table.num_accepted.max() == 2


def test_halves_are_of_whole_sources(greedy: Trace) -> None:
    item = stage(greedy, CompareConfig(offsets=1), [])
    second = set(item.table.unit[item.second_half].tolist())
    first = set(item.table.unit[~item.second_half].tolist())
    assert not first & second
    assert abs(len(first) - len(second)) <= 1
    assert len(first | second) == greedy.requests["source"].n_unique()


def test_an_on_policy_trace_is_taken_as_recorded() -> None:
    trace = open_trace(TRACES / "smollm2-adaptive-live")
    item = stage(trace, CompareConfig(concurrency=3), ["log_odds"])
    blocks = trace.blocks()
    assert blocks.step is not None
    (walk,) = item.walks
    assert np.array_equal(walk.num_admitted, blocks.num_admitted)
    assert walk.num_steps == blocks.step[-1] - blocks.step[0] + 1
    with pytest.raises(InputError, match="admitted as recorded; --admission fixed:1 needs a dense"):
        stage(trace, CompareConfig(admission="fixed:1"), [])
    with pytest.raises(InputError, match="admitted as recorded; --admission adaptive needs a dense"):
        stage(trace, CompareConfig(admission="adaptive"), [])


def test_what_is_refused(greedy: Trace) -> None:
    with pytest.raises(InputError, match="needs step costs: pass --cost"):
        stage(greedy, CompareConfig(admission="adaptive"), [])
    with pytest.raises(InputError, match="--what-if"):
        stage(greedy, CompareConfig(admission="adaptive", cost=B300), [])
    with pytest.raises(InputError, match="drafts nothing, so nothing would be labelled"):
        stage(greedy, CompareConfig(admission="none"), [])
    with pytest.raises(InputError, match="fixed:9 needs 9 draft slots"):
        stage(greedy, CompareConfig(admission="fixed:9"), [])
    with pytest.raises(InputError, match="confidence"):
        stage(greedy, CompareConfig(), ["confidence"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"estimators": ()}, "at least one estimator"),
        ({"loads": (8,)}, "pass --cost"),
        ({"loads": (8, 0), "cost": B300}, "at least 1, not 0"),
        ({"explain": True, "cost": B300}, "pass --loads"),
        ({"drift_steps": 99}, "at least 100, not 99"),
        ({"offsets": 0}, "at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CompareConfig(**options)  # type: ignore[arg-type]


def test_what_was_learned_before_continues_over_traces(easy: Trace, hard: Trace) -> None:
    """Two traces in turn are one long walk; an offline estimator knows the last one only."""
    both = [stage(trace, CompareConfig(concurrency=4), ["log_odds"]) for trace in (easy, hard)]
    estimator = estimators.make("online-logistic")
    found = learn_from(estimator, both)
    _, after_one = predict_walk(estimator, both[0].table, both[0].walks[0])
    _, expected = predict_walk(estimator, both[1].table, both[1].walks[0], start=after_one)
    assert found.to_json() == expected.to_json()
    assert found.to_json() != learn_from(estimator, both[1:]).to_json()
    offline = estimators.make("temperature-offline")
    fitted = fit_walk(offline, both[1].table, both[1].walks[0])
    assert learn_from(offline, both).to_json() == fitted.to_json()
    assert fitted.to_json() != offline.start(3).to_json()


def test_an_adaptive_walk_obeys_the_limit_on_logit_rows(easy: Trace) -> None:
    adaptive = CompareConfig(offsets=1, concurrency=4, admission="adaptive", cost=B300, what_if=True)
    free, bound = (
        stage(easy, config, ["log_odds"]).walks[0] for config in (adaptive, replace(adaptive, vocab=1 << 28))
    )
    assert free.num_admitted.any()
    assert not bound.num_admitted.any()  # one row at a time: none is left beside the bonus tokens
