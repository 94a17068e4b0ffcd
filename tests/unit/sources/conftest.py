"""Small traces of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from avsim.sources import Trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic


@pytest.fixture
def dense(tmp_path: Path) -> Trace:
    law = SyntheticLaw(num_requests=5, output_len=9, num_speculative_tokens=3)
    return write_synthetic(tmp_path / "dense", law)


@pytest.fixture
def on_policy(tmp_path: Path) -> Trace:
    law = SyntheticLaw(kind="on-policy", num_requests=9, output_len=20, num_speculative_tokens=3, num_reqs=4)
    return write_synthetic(tmp_path / "on-policy", law)
