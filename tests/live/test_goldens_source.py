"""The goldens of the ordinary suite come from the very files that the live tests run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vllm_reference as vllm

GOLDENS = sorted((Path(__file__).parent.parent / "golden" / "vllm").glob("*.json"))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_source_is_the_one_that_runs_here(path: Path) -> None:
    golden = json.loads(path.read_text(encoding="utf-8"))
    assert golden["vllm_version"] == vllm.VLLM_VERSION
    assert golden["source_sha256"] == vllm.source_sha256(Path(golden["source"]).stem)


def test_there_are_goldens() -> None:
    assert len(GOLDENS) >= 6
