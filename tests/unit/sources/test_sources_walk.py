from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from avsim.sources.walk import walked


@given(st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=6))
def test_is_the_plain_walk(requests: list[list[int]]) -> None:
    expected = []
    for accepted in requests:
        visited = [0] * len(accepted)
        position = 0
        while position < len(accepted):
            visited[position] = 1
            position += accepted[position] + 1
        expected += visited
    flat = np.array([a for accepted in requests for a in accepted], dtype=np.int64)
    position = np.array([p for accepted in requests for p in range(len(accepted))], dtype=np.int64)
    counts = np.array([len(accepted) for accepted in requests], dtype=np.int64)
    assert walked(counts, position, flat).astype(int).tolist() == expected
