"""The documents' own code runs and keeps the laws that they name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from avsim.testing import check_estimator

ROOT = Path(__file__).parent.parent.parent


def first_python(name: str) -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_estimator_passes_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("contributing")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses looks its module up
    exec(first_python("CONTRIBUTING.md"), module.__dict__)
    check_estimator(module.SlotRate(), {"check_recovers_logistic_law": "reads no features"})


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(first_python("README.md"), {"__name__": "readme"})
    assert "slope" in capsys.readouterr().out
