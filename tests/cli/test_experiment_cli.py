"""`avsim experiment run`: exit codes, what goes to stdout and stderr, and bad input in one line."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from avsim.cli.main import main
from tests.unit.experiments.making import make_experiment, make_sweep, make_trace


def run(*args: object) -> tuple[int, str, str]:
    """Run the command line in this process; return exit code, stdout and stderr."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["avsim", "experiment", "run", *map(str, args)])
        patch.setenv("NO_COLOR", "1")
        patch.delenv("AVSIM_DEBUG", raising=False)
        patch.delenv("AVSIM_REFERENCE", raising=False)
        try:
            main()
        except SystemExit as stopped:
            return int(stopped.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def test_passed_and_skipped(tmp_path: Path) -> None:
    make_experiment(tmp_path / "a", id="A")
    make_experiment(tmp_path / "b", id="B", needs=["a.csv"])
    code, out, err = run(tmp_path)
    assert code == 0, err
    assert "AVSIM_REFERENCE is not set" in " ".join(out.split())
    assert out.count("passed") == 1
    assert out.count("skipped") == 1
    assert sorted(line.partition(" ")[2].partition(" (")[0] for line in err.splitlines()) == ["A passed", "B skipped"]


def test_a_failed_check_is_exit_code_1_and_named(tmp_path: Path) -> None:
    make_experiment(tmp_path / "a", "name='the sum', got=3.0, expected=1.0, unit='ms'", id="A")
    code, out, err = run(tmp_path)
    assert code == 1
    assert "failed: A: the sum · 1 ms · 3 ms · +2 · 0" in out
    assert err.splitlines()[-1] == "avsim: 1 of 1 experiments failed: A"


def test_a_crash_is_exit_code_1_and_no_traceback(tmp_path: Path) -> None:
    make_experiment(tmp_path / "a", id="A", script="raise KeyError('lost')")
    code, out, err = run(tmp_path)
    assert code == 1
    assert "KeyError: 'lost'" in " ".join(out.split())
    assert "Traceback" not in out + err


def test_json(tmp_path: Path) -> None:
    make_experiment(tmp_path / "a", id="A")
    code, out, _ = run(tmp_path, "--json")
    (found,) = json.loads(out)["experiments"]
    assert code == 0
    assert (found["id"], found["status"], found["checks"][0]["passed"]) == ("A", "passed", True)


@pytest.mark.parametrize("args", [["--workers", "0"], ["--nope"], []])
def test_usage(args: list[str], tmp_path: Path) -> None:
    code, out, err = run(*([tmp_path, *args] if args else []))
    assert code == 2
    assert "Traceback" not in out + err


def test_bad_input_is_exit_code_2_and_one_line(tmp_path: Path) -> None:
    for folder, said in ((tmp_path / "none", "no such folder"), (tmp_path, "holds an experiment.toml")):
        code, out, err = run(folder)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert said in err
    make_experiment(tmp_path / "a", kind="guess")
    code, out, err = run(tmp_path)
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_a_script_with_bad_input_is_exit_code_2(tmp_path: Path) -> None:
    script = "import sys; print('avsim: no such curve', file=sys.stderr); sys.exit(2)"
    make_experiment(tmp_path / "a", id="A", script=script)
    make_experiment(tmp_path / "b", id="B")
    code, out, err = run(tmp_path)
    assert code == 2
    assert "passed" in out
    assert err.splitlines()[-1] == "avsim: A: no such curve"


def test_a_sweep(tmp_path: Path) -> None:
    make_trace(tmp_path / "trace")
    make_sweep(tmp_path / "sweep", grid={"num_slots": [1, 2], "concurrency": [2]})
    code, out, err = run(tmp_path / "sweep", "--workers", "1")
    assert code == 0, err
    assert err.splitlines()[0] == "0/2 0 kept from before, 2 to run"
    assert err.splitlines()[-1] == "2/2 num_slots=2 concurrency=2"
    assert "against none" in " ".join(out.split())
    assert (tmp_path / "sweep/runs/table.csv").exists()
