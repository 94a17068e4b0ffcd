"""Acceptance from marginal rates, conditional rates and lengths, against closed forms and a brute-force fit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avsim.errors import InputError
from avsim.planning.acceptance import Acceptance

RATES = [0.8, 0.5, 0.9, 0.6]


def antitonic(values: np.ndarray) -> np.ndarray:
    """Return the nearest falling sequence, by the min-max formula over all windows."""
    n = range(len(values))
    return np.array([min(max(values[a : b + 1].mean() for b in n if b >= k) for a in n if a <= k) for k in n])


def lengths_of(marginal: np.ndarray) -> np.ndarray:
    return 1 + np.cumsum(marginal)


def test_conditional_rates_multiply_to_marginal_ones() -> None:
    found = Acceptance.from_conditional(RATES)
    assert found.marginal == pytest.approx([0.8, 0.4, 0.36, 0.216])
    assert found.acceptance_length == pytest.approx(2.776)
    assert found.num_slots == 4


def test_marginal_rates_give_back_the_conditional_ones() -> None:
    found = Acceptance.from_marginal(np.cumprod(RATES).tolist())
    assert found.conditional == pytest.approx(RATES)
    assert found.notes == ()


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
def test_lengths_of_a_geometric_law_give_its_rate(rate: float) -> None:
    depths = np.arange(1, 7)
    lengths = (1 - rate ** (depths + 1)) / (1 - rate)
    found = Acceptance.from_lengths(lengths.tolist())
    assert found.conditional == pytest.approx(np.full(6, rate))
    assert found.acceptance_length == pytest.approx(lengths[-1])
    assert found.notes == ()


def test_lengths_with_a_falling_tail_give_the_nearest_law_and_a_note() -> None:
    lengths = np.array([1.8, 2.5, 2.9, 3.1, 3.05, 2.9])
    found = Acceptance.from_lengths(lengths.tolist())
    rises = np.diff(np.concatenate(([1.0], lengths)))
    nearest = np.maximum(antitonic(rises), 1e-3)
    assert found.marginal == pytest.approx(nearest, abs=1e-5)
    assert (np.diff(found.marginal) < 0).all()
    worst = np.abs(lengths_of(nearest) - lengths).max()
    assert len(found.notes) == 1
    assert f"{worst:.2f} tokens away" in found.notes[0]


def test_lengths_that_rise_faster_than_before_are_averaged() -> None:
    found = Acceptance.from_lengths([1.5, 2.2])
    assert found.marginal == pytest.approx([0.6, 0.6], abs=1e-5)
    assert found.notes


def test_published_lengths_with_any_tail_are_taken(reference: Path) -> None:
    frame = pl.read_csv(reference / "reference/golden_al.csv")
    columns = [name for name in frame.columns if name.startswith("k")]
    falling = 0
    for row in frame.iter_rows(named=True):
        lengths = [float(row[name]) for name in columns]
        found = Acceptance.from_lengths(lengths)
        rises = np.diff([1.0, *lengths])
        lawful = all(b <= a for a, b in pairwise(rises)) and rises[-1] > 0
        assert bool(found.notes) != lawful, row["model"]
        assert found.marginal == pytest.approx(np.clip(antitonic(rises), 1e-3, 1 - 1e-3), abs=1e-4)
        falling += lengths[-1] < max(lengths)
    assert falling >= 3, "the file no longer holds the falling tails that this test is for"


@pytest.mark.parametrize(
    ("make", "values", "said"),
    [
        (Acceptance.from_marginal, [0.5, 0.5], "position 1 has 0.5 after 0.5"),
        (Acceptance.from_marginal, [0.4, 0.6], "--conditional"),
        (Acceptance.from_marginal, [1.2, 0.5], "position 0 is 1.2"),
        (Acceptance.from_conditional, [0.5, 1.0], "position 1 is 1 "),
        (Acceptance.from_conditional, [0.0], "position 0 is 0 "),
        (Acceptance.from_conditional, [], "one finite number per position"),
        (Acceptance.from_conditional, [0.5, float("nan")], "one finite number per position"),
        (Acceptance.from_lengths, [2.1], "between 1 and K + 1"),
        (Acceptance.from_lengths, [0.9], "between 1 and K + 1"),
    ],
)
def test_impossible_numbers_are_refused(make, values, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as error:
        make(values)
    assert said in str(error.value)
