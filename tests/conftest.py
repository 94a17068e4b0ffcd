"""What several tests share: the shipped traces, and the folder of published measurements where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from avsim.costs import CostModel, load
from avsim.sources import Trace, open_trace
from avsim.workload import Pool

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder that holds `reference/` and `traces/` with published data, from AVSIM_REFERENCE."""
    folder = os.environ.get("AVSIM_REFERENCE")
    if not folder:
        pytest.skip("AVSIM_REFERENCE is not set: the published measurements are not part of the repository")
    return Path(folder)


@pytest.fixture(scope="session")
def greedy() -> Trace:
    return open_trace(REPOSITORY / "traces/smollm2-eagle1-greedy")


@pytest.fixture(scope="session")
def sampled() -> Trace:
    return open_trace(REPOSITORY / "traces/smollm2-eagle1-sampled")


@pytest.fixture(scope="session")
def greedy_pool(greedy: Trace) -> Pool:
    return Pool.from_trace(greedy, ["log_odds", "label"])


@pytest.fixture(scope="session")
def b300() -> CostModel:
    return load("deepseek-v4-flash-tp4-b300")
