"""The example policy's package: found through its entry point, under contract, judged by `replay`, quoted as it is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.example_packages import ROOT, install, run

EXAMPLE = ROOT / "docs" / "example-policy"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    return install(EXAMPLE, tmp_path)


def test_the_entry_point_lists_it(installed: dict[str, str]) -> None:
    result = run(installed, "avsim", "list", "policies", "--json")
    assert result.returncode == 0, result.stderr
    (row,) = [row for row in json.loads(result.stdout) if row["name"] == "recent-length"]
    assert row["options"] == "margin=1, half_life=20.0"
    assert row["what"].startswith("An example")


def test_replay_judges_it(installed: dict[str, str], tmp_path: Path) -> None:
    command = ["avsim", "replay", "traces/smollm2-eagle1-greedy", "--cost", "deepseek-v4-flash-tp4-b300", "--what-if"]
    arms = ["--policy", "recent-length:margin=2", "--baseline", "none", "--concurrency", "4", "--bootstrap", "20"]
    result = run(installed, *command, *arms, "--out", str(tmp_path / "run"), "--json")
    assert result.returncode == 0, result.stderr
    (load,) = json.loads(result.stdout)["loads"]
    (arm,) = [arm for arm in load["arms"] if arm["policy"] == "recent-length:margin=2"]
    assert arm["lossless"]["exact"]
    assert [verdict["against"] for verdict in load["verdicts"]] == ["none"]


def test_it_passes_its_own_contract_test(installed: dict[str, str]) -> None:
    result = run(
        installed, "pytest", str(EXAMPLE), "-q", "-p", "no:cacheprovider", "-c", str(EXAMPLE / "pyproject.toml")
    )
    assert result.returncode == 0, result.stdout
    assert re.search(r"\d\d passed", result.stdout)


def test_it_is_shown_to_be_exact(installed: dict[str, str]) -> None:
    result = run(installed, "avsim", "check", "lossless", "--policy", "recent-length", "--models", "40", "--json")
    assert result.returncode == 0, result.stderr


def test_the_page_quotes_it() -> None:
    page = (ROOT / "docs" / "add-a-policy.md").read_text(encoding="utf-8")
    module = (EXAMPLE / "recent_length.py").read_text(encoding="utf-8")
    assert f"```python\n{module}```" in page
    assert len(module.splitlines()) <= 50
    group = '[project.entry-points."avsim.policies"]\n'
    (line,) = PROJECT["entry-points"]["avsim.policies"].items()
    assert f'{group}{line[0]} = "{line[1]}"\n' in page
