"""A check's error and verdict, rule by rule, and the script's entry point."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.experiments import Check
from avsim.experiments.checks import read_result


@pytest.mark.parametrize(
    ("values", "error", "passed"),
    [
        ({"got": 1.0, "expected": 1.0}, 0.0, True),
        ({"got": 1.0 + 1e-12, "expected": 1.0}, 1e-12, False),
        ({"got": 1.2, "expected": 1.0, "tolerance": 0.25}, 0.2, True),
        ({"got": 0.7, "expected": 1.0, "tolerance": 0.25}, -0.3, False),
        ({"got": 202.0, "expected": 200.0, "rule": "relative", "tolerance": 0.02}, 0.01, True),
        ({"got": 202.0, "expected": 200.0, "rule": "relative", "tolerance": 0.005}, 0.01, False),
        ({"got": 5, "expected": 5, "rule": "at least"}, 0.0, True),
        ({"got": 4, "expected": 5, "rule": "at least"}, -1.0, False),
        ({"got": 4, "expected": 5, "rule": "at least", "tolerance": 1}, -1.0, True),
        ({"got": 9, "expected": 5, "rule": "at least"}, 4.0, True),
        ({"got": 9, "expected": 5, "rule": "at most"}, 4.0, False),
        ({"got": 4, "expected": 5, "rule": "at most"}, -1.0, True),
        ({"got": 0.5, "expected": (0.4, 0.8)}, 0.0, True),
        ({"got": 0.9, "expected": (0.4, 0.8)}, 0.1, False),
        ({"got": 0.3, "expected": (0.4, 0.8), "tolerance": 0.11}, -0.1, True),
        ({"got": 0.9, "expected": (0.4, 0.8), "rule": "reported"}, 0.1, None),
        ({"got": 3.0, "rule": "reported"}, None, None),
    ],
)
def test_rules(values: dict[str, Any], error: float | None, passed: bool | None) -> None:
    check = Check(name="x", **values)
    assert check.error == (None if error is None else pytest.approx(error))
    assert check.passed is passed
    assert Check.from_json(json.loads(json.dumps(check.to_json()))) == check


def test_numpy_scalars_become_plain_numbers() -> None:
    check = Check(
        name="x", got=np.float32(0.5), expected=(np.int64(0), np.float64(1)), low=np.float32(0), high=np.int8(1)
    )
    assert json.dumps(check.to_json())
    assert check.expected == (0.0, 1.0)


def test_a_verdict_in_a_file_is_not_believed(tmp_path: Path) -> None:
    forged = Check(name="x", got=2.0, expected=1.0).to_json() | {"passed": True, "error": 0.0}
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"finding": "", "inputs": {}, "checks": [forged]}))
    (check,) = read_result(path).checks
    assert check.passed is False
    assert check.error == 1.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"got": 1.0}, "rule 'within' needs an expected value"),
        ({"got": math.nan, "expected": 1.0}, "every number must be finite"),
        ({"got": 1.0, "expected": (0.0, math.inf)}, "every number must be finite"),
        ({"got": 1.0, "expected": 1.0, "rule": "around"}, "rule is 'around'"),
        ({"got": 1.0, "expected": 1.0, "tolerance": -1}, "tolerance must be ≥ 0"),
        ({"got": 1.0, "expected": 1.0, "tolerance": 1, "rule": "reported"}, "0 where it is only reported"),
        ({"got": 1.0, "expected": 0.0, "rule": "relative"}, "other than 0"),
        ({"got": 1.0, "expected": (1.0, 2.0), "rule": "relative"}, "needs one expected number"),
        ({"got": 1.0, "expected": 1.0, "low": 0.5}, "needs both ends"),
    ],
)
def test_what_is_no_check(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"check x: .*{said}"):
        Check(name="x", **values)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"finding": "", "inputs": {}, "checks": [{"name": "x"}]}'])
def test_what_is_no_result(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=r"result\.json: not the result of an experiment"):
        read_result(tmp_path / "result.json")
