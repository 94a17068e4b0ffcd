"""Experiments are run by hand, so nothing else would notice that a name they import is gone."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"
SCRIPTS = sorted(path for path in EXPERIMENTS.rglob("*.py") if "runs" not in path.parts)


def imported(script: Path) -> list[tuple[str, str]]:
    """Return what a script imports from avsim, as (module, name)."""
    nodes = ast.walk(ast.parse(script.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("avsim")]
    return [(str(node.module), alias.name) for node in found for alias in node.names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(EXPERIMENTS)))
def test_what_it_imports_exists(script: Path) -> None:
    missing = []
    for module, name in imported(script):
        if not hasattr(importlib.import_module(module), name):
            try:
                importlib.import_module(f"{module}.{name}")
            except ModuleNotFoundError:
                missing.append(f"{module}.{name}")
    assert not missing
