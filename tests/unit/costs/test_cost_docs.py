"""docs/cost-models.md shows the presets as they are, and its example of a cost model passes the contract."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from avsim.costs.shape_tables import markdown

PAGE = (Path(__file__).parents[3] / "docs/cost-models.md").read_text(encoding="utf-8")


def test_the_example_passes_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    module = ModuleType("cost_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses looks its module up
    exec(found[1], module.__dict__)


def test_the_presets_on_the_page_are_those_shipped() -> None:
    assert f"<!-- presets -->\n{markdown()}\n<!-- /presets -->" in PAGE, "run `python -m avsim.costs.shape_tables`"
