"""`avsim check lossless`, through the Typer app."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

from avsim import estimators
from avsim.cli.check import app
from avsim.errors import CheckFailed, InputError
from tests.lossy_scores import OwnToken

RUN = CliRunner()


def run(*arguments: str) -> Result:
    return RUN.invoke(app, ["lossless", *arguments], catch_exceptions=False)


@dataclass(frozen=True)
class Declared(OwnToken):
    name: ClassVar[str] = "declared"
    uses_drawn_token: ClassVar[bool] = True


@dataclass(frozen=True)
class Elsewhere(OwnToken):
    name: ClassVar[str] = "elsewhere"

    @property
    def features(self) -> tuple[str, ...]:
        return ("top_logit_9",)


def test_the_whole_table() -> None:
    result = run("--models", "200")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any(line.split()[1::2][:5] == ["adaptive", "online-logistic", "0", "sampled", "lossy"] for line in lines)
    assert "FAIL" not in result.stdout
    assert "\x1b" not in result.stdout


def test_one_combination_as_json() -> None:
    args = ("--policy", "adaptive", "--lag", "0", "--models", "80", "--k", "2", "--vocab", "2", "--seed", "3", "--json")
    first, again = run(*args), run(*args)
    assert first.stdout == again.stdout
    document = json.loads(first.stdout)
    assert {"k": 2, "vocab": 2, "seed": 3, "not_checked": []}.items() <= document.items()
    (row,) = document["rows"]
    assert (row["policy"], row["estimator"], row["lag"]) == ("adaptive", "online-logistic", 0)
    assert row["models"] == 80
    assert not row["expected"]["exact"]
    assert row["largest_total_variation"] > 1e-3
    assert row["passed"]


def test_greedy_drafts_and_a_missed_step() -> None:
    for more in (["--left-out"], ["--draft-sampling", "greedy", "--lag", "0"]):
        (row,) = json.loads(run("--policy", "adaptive", *more, "--json").stdout)["rows"]
        assert row["passed"]
        assert row["left_out"] == ("--left-out" in more)
        assert row["expected"]["exact"] == ("greedy" in more)


def test_a_users_estimator_that_leaks_fails_unless_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(estimators.BUILTIN, "own-token", OwnToken)
    monkeypatch.setitem(estimators.BUILTIN, "declared", Declared)
    with pytest.raises(CheckFailed, match="1 of 1 combinations are not what their class says"):
        run("--policy", "adaptive", "--estimator", "own-token")
    result = run("--policy", "adaptive", "--estimator", "declared")
    assert result.exit_code == 0
    assert "lossy" in result.stdout


def test_what_toy_models_lack_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(estimators.BUILTIN, "elsewhere", Elsewhere)
    assert "elsewhere reads top_logit_9, which toy models lack" in run("--models", "200").stdout
    with pytest.raises(InputError, match="elsewhere reads top_logit_9"):
        run("--policy", "adaptive", "--estimator", "elsewhere")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--policy", "adaptve"], "did you mean 'adaptive'"),
        (["--policy", "adaptive", "--estimator", "online"], "online-logistic"),
        (["--policy", "adaptive", "--lag", "-1"], "lag must be at least 0"),
        (["--draft-sampling", "wild"], "greedy or probabilistic"),
        (["--models", "0"], "at least 1"),
        (["--k", "9"], "joint drafts"),
    ],
)
def test_bad_input(args: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*args)
