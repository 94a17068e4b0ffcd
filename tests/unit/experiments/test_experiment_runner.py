"""What becomes of a script: passed, failed, reported, skipped, bad input, crashed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from avsim.experiments import read_experiment
from avsim.experiments.runner import Outcome, run_experiment, run_experiments, stored_outcome
from tests.unit.experiments.making import make_experiment, quiet

FAILING = "name='one', got=2.0, expected=1.0"
SHOWN = "name='one', got=2.0, expected=1.0, rule='reported'"


def run(folder: Path) -> Outcome:
    return run_experiment(read_experiment(folder), folder.parent / "out" / folder.name)


@pytest.mark.parametrize(
    ("kind", "check", "status"),
    [
        ("exact", "name='one', got=1.0, expected=1.0", "passed"),
        ("predicted", FAILING, "failed"),
        ("reported", SHOWN, "reported"),
        ("reported", FAILING, "failed"),
        ("exact", SHOWN, "crashed"),
    ],
)
def test_the_checks_decide(kind: str, check: str, status: str, tmp_path: Path) -> None:
    folder = make_experiment(tmp_path / "x", check, kind=kind)
    before = sorted(path.name for path in folder.iterdir())
    outcome = run(folder)
    assert outcome.status == status
    assert sorted(path.name for path in folder.iterdir()) == before
    if status == "crashed":
        assert "none of its checks can pass or fail" in outcome.message
    else:
        assert outcome.result.finding == "found it"
        assert sorted(path.name for path in (tmp_path / "out/x").iterdir()) == ["plot.svg", "result.json"]


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("raise ZeroDivisionError('by zero')", "crashed", "ZeroDivisionError: by zero"),
        ("import sys; sys.exit(7)", "crashed", "exit code 7 and no message"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crashed", "exit code -9"),
        ("import sys; print('avsim: no such thing', file=sys.stderr); sys.exit(2)", "bad input", "no such thing"),
        ("pass", "crashed", "must leave plot.svg"),
        ("import sys; open(sys.argv[1] + '/plot.svg', 'w')", "crashed", "result.json: cannot read it"),
        ("import sys; [open(f'{sys.argv[1]}/{n}.svg', 'w') for n in ('plot', 'more')]", "crashed", "one plot"),
    ],
)
def test_scripts_that_end_badly(script: str, status: str, said: str, tmp_path: Path) -> None:
    outcome = run(make_experiment(tmp_path / "x", script=script))
    assert outcome.status == status
    assert said in outcome.message
    assert list((tmp_path / "out").iterdir()) == []


def test_it_is_skipped_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_experiment(tmp_path / "x", needs=["a.csv"])
    monkeypatch.delenv("AVSIM_REFERENCE", raising=False)
    assert (run(folder).status, run(folder).message) == ("skipped", "AVSIM_REFERENCE is not set")
    monkeypatch.setenv("AVSIM_REFERENCE", str(tmp_path))
    assert run(folder).status == "bad input"
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference/a.csv").write_text("1\n")
    outcome = run(folder)
    assert outcome.status == "passed"
    assert list(outcome.result.inputs) == ["a.csv"]


def test_an_earlier_result_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path / "x")
    (tmp_path / "out/x").mkdir(parents=True)
    (tmp_path / "out/x/stale.csv").write_text("old")
    assert run(folder).status == "passed"
    assert not (tmp_path / "out/x/stale.csv").exists()
    (folder / "run.py").write_text("raise SystemExit(1)")
    assert run(folder).status == "crashed"
    assert (tmp_path / "out/x/result.json").exists()


def test_several_at_once_come_back_in_order(tmp_path: Path) -> None:
    slow = "import time; time.sleep(0.3)\n"
    for number in (1, 2, 3):
        folder = make_experiment(tmp_path / f"x{number}", id=f"X{number}")
        if number == 1:
            (folder / "run.py").write_text(slow + (folder / "run.py").read_text())
    seen: list[tuple[int, int]] = []
    found = run_experiments(
        [read_experiment(tmp_path / f"x{number}") for number in (1, 2, 3)],
        tmp_path / "out",
        workers=2,
        progress=lambda done, total, what: seen.append((done, total)),
    )
    assert [item.experiment.id for item in found] == ["X1", "X2", "X3"]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_script_can_be_run_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_experiment(tmp_path / "x", script="import sys; print(sys.argv)\nfrom avsim.experiments import main\n"
                             "import sys; sys.argv.pop()\nmain(None)")  # fmt: skip
    monkeypatch.chdir(os.sep)
    outcome = run(folder)
    assert outcome.status == "bad input"
    assert outcome.message.startswith("usage: python")


def test_stored_outcomes(tmp_path: Path) -> None:
    folder = make_experiment(tmp_path / "x")
    run_experiments([read_experiment(folder)], tmp_path / "out", progress=quiet)
    (tmp_path / "out/X1/result.json").rename(folder / "result.json")
    assert stored_outcome(read_experiment(folder)).status == "passed"
