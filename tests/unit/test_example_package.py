"""The example package: found through its entry point, under contract, ranked by `compare`, and quoted as it is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.example_packages import ROOT, install, run

EXAMPLE = ROOT / "docs" / "example-estimator"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    return install(EXAMPLE, tmp_path)


def test_the_entry_point_lists_it(installed: dict[str, str]) -> None:
    result = run(installed, "avsim", "list", "estimators", "--json")
    assert result.returncode == 0, result.stderr
    (row,) = [row for row in json.loads(result.stdout) if row["name"] == "fading-rate"]
    assert "half_life=20.0" in row["options"]


def test_compare_ranks_it(installed: dict[str, str]) -> None:
    trace, names = "traces/smollm2-eagle1-greedy", "online-logistic,fading-rate:half_life=5"
    result = run(installed, "avsim", "compare", trace, "--estimators", names, "--bootstrap", "100", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)
    assert re.search(r'"estimator": "fading-rate:half_life=5.0"', result.stdout)


def test_it_passes_its_own_contract_test(installed: dict[str, str]) -> None:
    result = run(
        installed, "pytest", str(EXAMPLE), "-q", "-p", "no:cacheprovider", "-c", str(EXAMPLE / "pyproject.toml")
    )
    assert result.returncode == 0, result.stdout
    assert re.search(r"\d\d passed", result.stdout)


def test_it_stays_an_example() -> None:
    assert len((EXAMPLE / "fading_rate.py").read_text(encoding="utf-8").splitlines()) <= 45


def test_the_page_quotes_it() -> None:
    page = (ROOT / "docs" / "add-an-estimator.md").read_text(encoding="utf-8")
    assert f"```python\n{(EXAMPLE / 'fading_rate.py').read_text(encoding='utf-8')}```" in page
    group = '[project.entry-points."avsim.estimators"]\n'
    (line,) = PROJECT["entry-points"]["avsim.estimators"].items()
    assert f'{group}{line[0]} = "{line[1]}"\n' in page
    assert "docs/add-an-estimator.md" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
