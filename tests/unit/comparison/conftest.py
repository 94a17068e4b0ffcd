"""What the tests of the comparison share: a trace that drafts raggedly, and two small worlds of a known law."""

from __future__ import annotations

from pathlib import Path

import pytest

from avsim.sources import Trace, open_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.workload import Pool

TRACES = Path(__file__).parent.parent.parent.parent / "traces"


@pytest.fixture(scope="session")
def ngram_pool() -> Pool:
    """Drafts of 0 … K slots."""
    return Pool.from_trace(open_trace(TRACES / "smollm2-ngram-greedy"))


@pytest.fixture(scope="session")
def easy(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    law = SyntheticLaw(num_requests=40, output_len=41, num_speculative_tokens=3, intercept=1.5, seed=1)
    return write_synthetic(tmp_path_factory.mktemp("easy") / "trace", law)


@pytest.fixture(scope="session")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    law = SyntheticLaw(num_requests=40, output_len=41, num_speculative_tokens=3, intercept=-2.5, seed=2)
    return write_synthetic(tmp_path_factory.mktemp("hard") / "trace", law)
