"""`avsim deploy`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from avsim.cli.main import main
from avsim.costs.base import CostCard
from avsim.costs.curve import CurveCost
from avsim.costs.table import Engine, table_document, write_table

TRACE = str(Path(__file__).parents[2] / "traces" / "smollm2-adaptive-live")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("AVSIM_DEBUG", raising=False)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["avsim", "deploy", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    return call


@pytest.fixture
def bundle(tmp_path: Path, run: Run) -> Path:
    path = tmp_path / "bundle.json"
    names = ("--target", "my/target", "--drafter", "my/drafter")
    code, out, err = run("bundle", TRACE, "--estimator", "multi-logistic", *names, "-o", str(path))
    assert (code, "my/drafter" in out, f"AVSIM_DEPLOY={path}" in err) == (0, True, True)
    return path


def cost_table(path: Path, *, model: str = "SmolLM2-135M-Instruct", k: int = 3) -> Path:
    card = CostCard("made up", model, "none", "synthetic", "this test", context_tokens=512)
    cost = CurveCost(verify=((1, 1.0), (8, 2.0)), draft=((1, 0.5), (8, 0.6)), capture_limit=8, card=card)
    engine = Engine(max_num_reqs=8, max_num_tokens=64, capture_limit=8, context_tokens=512, num_speculative_tokens=k)
    write_table(table_document(cost, engine), path)
    return path


def test_a_bundle_is_shown_and_checked(bundle: Path, run: Run) -> None:
    code, out, _ = run("show", str(bundle))
    assert code == 0
    assert "1,461 blocks" in out
    assert "vLLM's own profile" in out
    code, out, _ = run("show", str(bundle), "--json")
    assert json.loads(out) == json.loads(bundle.read_text(encoding="utf-8"))
    code, out, _ = run("check", str(bundle), "--json")
    rows = {row["check"]: row["passed"] for row in json.loads(out)}
    assert (code, rows["content hash"], rows["avsim version"]) == (0, True, True)


def test_a_bundle_of_another_avsim_fails_the_check(bundle: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avsim.deploy.check.__version__", "99.0")
    code, out, err = run("check", str(bundle))
    assert code == 1
    assert "this is 99.0" in out
    assert "avsim version" in err


def test_a_cost_table_goes_into_the_bundle(tmp_path: Path, run: Run) -> None:
    table, path = cost_table(tmp_path / "table.json"), tmp_path / "b.json"
    args = ("bundle", TRACE, "--estimator", "online-logistic", "--cost-table", str(table), "-o", str(path))
    code, out, _ = run(*args)
    assert (code, "what a real step costs" in out) == (0, True)
    held = json.loads(path.read_text(encoding="utf-8"))["cost_table"]
    assert held == json.loads(table.read_text(encoding="utf-8"))


@pytest.mark.parametrize("wrong", ["altered", "model", "k", "kind", "csv"])
def test_cost_tables_that_do_not_fit(wrong: str, tmp_path: Path, run: Run) -> None:
    table = tmp_path / ("table.csv" if wrong == "csv" else "table.json")
    cost_table(table, model="another" if wrong == "model" else "SmolLM2-135M-Instruct", k=5 if wrong == "k" else 3)
    if wrong in ("altered", "kind"):
        data = json.loads(table.read_text(encoding="utf-8"))
        data["verify"][0][1] = 0.01
        table.write_text(json.dumps(data if wrong == "altered" else {"kind": "curve"}), encoding="utf-8")
    path = tmp_path / "b.json"
    code, _, err = run("bundle", TRACE, "--estimator", "online-logistic", "--cost-table", str(table), "-o", str(path))
    messages = {
        "altered": "altered: its points",
        "model": "another model's costs",
        "k": "made for K = 5",
        "kind": "not a cost table",
        "csv": "not a cost table",
    }
    assert code == 2
    assert messages[wrong] in err
    assert not path.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("bundle", TRACE, "--estimator", "position-rate"), "has no kernels"),
        (("bundle", TRACE, "--estimator", "multi-logistc"), "did you mean 'multi-logistic'"),
        (("bundle", "nowhere", "--estimator", "multi-logistic"), "no trace folder"),
        (("bundle", TRACE, "--estimator", "multi-logistic", "--cold", "--freeze"), "choose one"),
        (("show", TRACE), "cannot read it"),
        (("check", "nowhere.json"), "cannot read it"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], message: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "b.json"
    code, out, err = run(*args, *(("-o", str(path)) if args[0] == "bundle" else ()))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not path.exists()


def test_an_existing_file_is_kept(bundle: Path, run: Run) -> None:
    before = bundle.read_bytes()
    args = ("bundle", TRACE, "--estimator", "online-logistic", "-o", str(bundle))
    assert run(*args)[0] == 2
    assert bundle.read_bytes() == before
    assert run(*args, "--overwrite", "--freeze")[0] == 0
    assert bundle.read_bytes() != before
