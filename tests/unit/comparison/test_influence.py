"""Whose labels move whose confidences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from avsim import estimators
from avsim.comparison.influence import influence
from avsim.comparison.scoring import score
from avsim.comparison.walk import Table, Walk, full_walk
from avsim.sources import Trace
from avsim.workload import Pool

ROWS, UNITS = 6000, 60


def made(inverted: str | None) -> tuple[Table, Walk]:
    """Three kinds of requests in equal shares; one may be accepted where the others are rejected."""
    rng = np.random.default_rng(4)
    log_odds = rng.normal(0, 2, (2, ROWS)).astype(np.float32)
    category = np.arange(ROWS) % 3
    accepted = rng.random((2, ROWS)) < 1 / (1 + np.exp(-log_odds))
    if inverted is not None:
        accepted ^= (category == "abc".index(inverted))[None]
    table = Table(
        2, {"log_odds": log_odds}, np.cumprod(accepted, axis=0).sum(axis=0), np.full(ROWS, 2),
        np.zeros(ROWS, dtype=bool), np.arange(ROWS) % UNITS, category, ("a", "b", "c"),
    )  # fmt: skip
    rows = np.arange(ROWS)
    return table, Walk(rows, np.full(ROWS, 2), rows % 6, np.ones(ROWS, dtype=bool), np.arange(0, ROWS + 1, 6))


def run(spec: str, table: Table, walk: Walk) -> dict[str, dict[str, Any]]:
    lines = influence(estimators.make(spec), table, [walk], bootstrap=200, seed=0)
    assert {line["estimator"] for line in lines} == {spec}
    return {line["group"]: line for line in lines}


def test_what_never_learns_is_not_influenced() -> None:
    for line in run("raw-confidence", *made("b")).values():
        assert (line["change_pct"], line["change_low_pct"], line["change_high_pct"]) == (0, 0, 0)


def test_a_category_with_inverted_labels_harms_all_others() -> None:
    found = run("online-logistic", *made("b"))
    assert list(found) == ["a", "b", "c"]
    assert found["b"]["change_pct"] > 1
    assert found["b"]["change_low_pct"] > 0
    assert found["b"]["share_of_rows"] == pytest.approx(1 / 3)
    assert found["a"]["change_pct"] < found["b"]["change_pct"]


def test_categories_of_one_law_hardly_matter_to_each_other() -> None:
    for line in run("online-logistic", *made(None)).values():
        assert abs(line["change_pct"]) < 1


def test_a_change_is_that_of_two_scores() -> None:
    table, walk = made("c")
    estimator, mine = estimators.make("online-logistic"), table.category == 2
    losses = [score(estimator, table, [walk], learn=learn, scored=~mine).unit_loss[0] for learn in (mine | True, ~mine)]
    expected = (losses[0].sum() / losses[1].sum() - 1) * 100
    assert run("online-logistic", table, walk)["c"]["change_pct"] == pytest.approx(expected)


def test_masked_rows_are_a_group_of_their_own() -> None:
    """Rows whose labels are wrong, and that the mask names: left out by default, and scored by nobody."""
    table, walk = made("b")
    masked = replace(table, unfit=table.category == 1, categories=("all",), category=np.zeros(ROWS, dtype=np.int64))
    found = run("online-logistic", masked, walk)
    assert list(found) == ["masked"]
    assert found["masked"]["share_of_rows"] == pytest.approx(1 / 3)
    assert found["masked"]["change_low_pct"] > 0
    flipped = replace(masked, num_accepted=np.where(masked.unfit, 2 - masked.num_accepted, masked.num_accepted))
    assert run("raw-confidence", flipped, walk) == run("raw-confidence", masked, walk)
    both = replace(table, unfit=np.arange(ROWS) % 5 == 0)
    assert list(run("position-rate", both, walk)) == ["a", "b", "c", "masked"]


def test_one_category_without_a_mask_has_nobody_to_influence(easy: Trace) -> None:
    pool = Pool.from_trace(easy, ["log_odds"])
    walk = full_walk(pool, np.arange(len(pool.start)), 4)
    assert influence(estimators.make("online-logistic"), Table.of_pool(pool, easy), [walk], bootstrap=100, seed=0) == []
