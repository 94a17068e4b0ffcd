"""The staircase against a loop written from its docstring."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from avsim.costs import staircase


@st.composite
def curves(draw):
    sizes = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=8)))
    ms = draw(st.lists(st.floats(0.01, 100), min_size=len(sizes), max_size=len(sizes)))
    limit = draw(st.one_of(st.just(0), st.sampled_from(sizes), st.integers(1, 50)))
    return list(zip(sizes, ms, strict=True)), limit


def slow_value(size: int, points: list[tuple[int, float]], capture_limit: int) -> float:
    tops = [(at, max(ms for other, ms in points if other <= at)) for at, _ in points]
    if size > tops[-1][0]:
        if len(tops) == 1:
            return tops[0][1]
        (x0, y0), (x1, y1) = tops[-2:]
        return y1 + (y1 - y0) / (x1 - x0) * (size - x1)
    padded = next((at, ms) for at, ms in tops if at >= size)
    above = [(at, ms) for at, ms in tops if at > capture_limit]
    if not capture_limit or size <= capture_limit or not above or size <= above[0][0]:
        return padded[1]
    x0, y0 = next((at, ms) for at, ms in reversed(above) if at <= size)
    x1, y1 = padded
    return y0 if x0 == x1 else y0 + (y1 - y0) / (x1 - x0) * (size - x0)


@given(curves(), st.integers(0, 90))
def test_staircase_equals_the_slow_reference(curve, limit):
    points, capture_limit = curve
    table = staircase(limit, points, capture_limit)
    expected = [slow_value(size, points, capture_limit) for size in range(limit + 1)]
    np.testing.assert_allclose(table, expected, rtol=1e-12)


@given(curves())
def test_staircase_never_falls(curve):
    points, capture_limit = curve
    assert (np.diff(staircase(120, points, capture_limit)) >= -1e-9).all()


@given(curves(), st.integers(0, 60))
def test_a_longer_table_starts_with_the_shorter_one(curve, limit):
    points, capture_limit = curve
    longer = staircase(limit + 30, points, capture_limit)
    assert staircase(limit, points, capture_limit).tolist() == longer[: limit + 1].tolist()
