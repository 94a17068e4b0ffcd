"""`avsim cost`, through the Typer app."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from avsim.cli.cost import app
from avsim.costs import load
from avsim.errors import InputError

RUN = CliRunner()
LIVE = Path(__file__).parents[2] / "traces/smollm2-eagle-live"


def run(*arguments: str | Path) -> str:
    result = RUN.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path) -> str:
    with pytest.raises(InputError) as error:
        RUN.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["curve", "linear"])
def test_fit_prints_both_forms_and_writes_one(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "live.json"
    text = run("fit", LIVE, "--kind", kind, "--out", out)
    assert f"{kind} cost model 'live', fitted" in text.replace("\n", "")
    assert "Closer on held-out timings: " in text
    assert ("Points of the curve" in text) == (kind == "curve")
    assert ("Coefficients" in text) == (kind == "linear")
    assert "left out: 61 with prompt tokens" in text
    assert "\x1b" not in text
    assert load(out).name == kind
    assert "held-out error" in run("show", out).replace("\n", " ")


def test_fit_json_is_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "live.json"
    printed = run("fit", LIVE, "--out", out, "--json", "--name", "mine", "--by", "context", "--hardware", "a toaster")
    assert json.loads(printed) == json.loads(out.read_text(encoding="utf-8"))
    data = json.loads(printed)
    assert (data["card"]["name"], data["card"]["hardware"]) == ("mine", "a toaster")
    groups = [item["group"] for item in data["fit"]["verify"]["held_out"]["errors_pct"]["curve"]]
    assert groups[0] == "all"
    assert groups[1].endswith("KV tokens a request")


def test_fit_of_a_profile(tmp_path: Path) -> None:
    verify, draft, out = tmp_path / "verify.csv", tmp_path / "draft.csv", tmp_path / "made.json"
    verify.write_text("num_tokens,ms\n1,2.0\n8,2.5\n16,9.0\n", encoding="utf-8")
    draft.write_text("num_reqs,ms\n1,1.0\n8,1.5\n", encoding="utf-8")
    profile = ("fit", "--verify", verify, "--draft", draft, "--out", out)
    assert "say it with --model" in refused(*profile)
    assert not out.exists(), "nothing is written where something is wrong"
    text = run(*profile, "--model", "m", "--hardware", "h", "--context", "8192")
    assert "fit again with --capture-limit 8" in text.replace("\n", " ")
    made = load(out)
    assert (made.card.kind, made.card.context_tokens) == ("measured", 8192)
    assert made.tables(8, 16).verify.tolist() == [2.0, 2.0, *[2.5] * 7, *[9.0] * 8]


def test_fit_refuses_before_it_works(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    out.write_text("mine", encoding="utf-8")
    assert "pass --overwrite" in refused("fit", "no-such-file.csv", "--out", out)
    assert out.read_text(encoding="utf-8") == "mine"
    assert "No such file" in refused("fit", "no-such-file.csv", "--out", tmp_path / "y.json")
    assert "--capture-sizes must be whole numbers" in refused(
        "fit", LIVE, "--out", tmp_path / "y.json", "--capture-sizes", "1,two"
    )
    assert RUN.invoke(app, ["fit", str(LIVE)]).exit_code == 2, "--out is needed"
