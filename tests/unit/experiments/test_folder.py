"""A whole folder: the table, what is written where, and what `--update` may touch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avsim.errors import InputError
from avsim.experiments.folder import run_folder
from tests.unit.experiments.making import make_experiment, make_sweep, make_trace


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, but for what sweeps keep."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "runs" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, check in (
        (1, "name='a|b', got=1.0, expected=1.0"),
        (2, "name='two', got=2.2, expected=2, tolerance=0.5"),
    ):
        make_experiment(tmp_path / f"all/x{number}", check, id=f"X{number}", fast=number == 1)
    return tmp_path / "all"


def test_without_options_nothing_is_written(folder: Path) -> None:
    before = contents(folder)
    outcomes = run_folder(folder)
    assert [item.status for item in outcomes] == ["passed", "passed"]
    assert contents(folder) == before


def test_fast_leaves_the_others_out(folder: Path) -> None:
    assert [item.experiment.id for item in run_folder(folder, fast=True)] == ["X1"]
    with pytest.raises(InputError, match="no experiment there is marked fast"):
        run_folder(folder / "x2", fast=True)


def test_out_holds_everything_and_the_folder_nothing(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    run_folder(folder, out=tmp_path / "out")
    assert contents(folder) == before
    written = contents(tmp_path / "out")
    assert set(written) == {"manifest.json", "results.md", "results.json"} | {
        f"X{number}/{name}" for number in (1, 2) for name in ("plot.svg", "result.json")
    }
    document = json.loads(written["results.json"])
    assert [item["checks"][0]["passed"] for item in document["experiments"]] == [True, True]
    assert document["manifest"]["command"] == "experiment run"
    table = written["results.md"].decode()
    assert "2 experiments: 2 passed." in table
    assert (
        "| X2 | one is one | exact | nothing | one | it is | 1/1 | +0.2 (allowed ±0.5) | **passed**. found it |"
        in table
    )
    run_folder(folder, out=tmp_path / "out")
    assert contents(tmp_path / "out") == written


def test_a_folder_with_other_things_in_it_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(InputError, match="mine holds files"):
        run_folder(folder, out=tmp_path / "mine")
    with pytest.raises(InputError, match="cannot write it"):
        run_folder(folder, out=tmp_path / "mine/notes.txt/below")
    assert contents(tmp_path / "mine") == {"notes.txt": b"keep"}


def test_update_writes_results_and_the_readme_block_only(folder: Path) -> None:
    before = contents(folder)
    run_folder(folder, update=True)
    after = contents(folder)
    assert set(after) - set(before) == {"results.md", "results.json"} | {
        f"x{number}/{name}" for number in (1, 2) for name in ("plot.svg", "result.json")
    }
    assert [name for name in before if after[name] != before[name]] == ["x1/README.md", "x2/README.md"]
    readme = after["x1/README.md"].decode()
    assert readme.startswith("# X\n\n<!-- result -->\n- Kind: exact\n")
    assert readme.endswith("<!-- /result -->\n\nThat is all.\n")
    assert "| a\\|b | 1 | 1 | 0 | 0 | passed |" in readme
    assert "[X1](x1/README.md)" in after["results.md"].decode()
    run_folder(folder, update=True)
    assert contents(folder) == after


def test_updating_one_leaves_the_common_table(folder: Path) -> None:
    run_folder(folder / "x1", update=True)
    assert (folder / "x1/result.json").exists()
    assert not (folder / "results.md").exists()
    assert not (folder / "x1/results.md").exists()


def test_a_failure_is_stored_and_a_crash_is_not(folder: Path) -> None:
    run_folder(folder, update=True)
    good = contents(folder)
    script = folder / "x2/run.py"
    text = script.read_text()
    script.write_text("raise SystemExit(3)")
    assert [item.status for item in run_folder(folder, update=True)] == ["passed", "crashed"]
    assert (folder / "x2/result.json").read_bytes() == good["x2/result.json"]
    assert "**crashed" in (folder / "results.md").read_text()
    script.write_text(text.replace("got=2.2", "got=3.0"))
    assert [item.status for item in run_folder(folder, update=True)] == ["passed", "failed"]
    assert "**FAILED**" in (folder / "x2/README.md").read_text()


def test_what_update_refuses(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)
    with pytest.raises(InputError, match="leave --fast and --out out"):
        run_folder(folder, update=True, fast=True)
    with pytest.raises(InputError, match="leave --fast and --out out"):
        run_folder(folder, update=True, out=tmp_path / "out")
    assert contents(folder) == before
    (folder / "x2/README.md").write_text("no markers")
    with pytest.raises(InputError, match="one pair of lines <!-- result -->"):
        run_folder(folder, update=True)
    assert not (folder / "x1/result.json").exists()
    (folder / "x2/README.md").write_bytes(before["x2/README.md"])
    make_experiment(folder / "x3", id="X3", needs=["a.csv"])
    monkeypatch.delenv("AVSIM_REFERENCE", raising=False)
    with pytest.raises(InputError, match="X3 would be skipped"):
        run_folder(folder, update=True)
    assert [item.status for item in run_folder(folder)] == ["passed", "passed", "skipped"]


def test_sweeps_run_beside_experiments(folder: Path, tmp_path: Path) -> None:
    make_trace(tmp_path / "all/trace")
    make_sweep(folder / "sweep", grid={"num_slots": [1, 2], "concurrency": [2]})
    outcomes = {item.experiment.id: item for item in run_folder(folder, workers=1, update=True)}
    assert {name: item.status for name, item in outcomes.items()} == {"S": "done", "X1": "passed", "X2": "passed"}
    assert (folder / "sweep/table.csv").read_bytes() == (folder / "sweep/runs/table.csv").read_bytes()
    assert "against none: " in (folder / "sweep/README.md").read_text()
    out = tmp_path / "out"
    run_folder(folder / "sweep", workers=1, out=out)
    assert (out / "S/runs/table.csv").read_bytes() == (folder / "sweep/table.csv").read_bytes()


def test_a_malformed_sweep_does_not_stop_the_others(folder: Path, tmp_path: Path) -> None:
    make_sweep(folder / "sweep", grid={"num_slots": [1], "concurrency": [2]})
    outcomes = {item.experiment.id: item for item in run_folder(folder)}
    assert outcomes["S"].status == "bad input"
    assert "trace" in outcomes["S"].message
    assert outcomes["X1"].status == "passed"
