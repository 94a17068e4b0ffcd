"""`avsim compare` on the command line: results, files, and every bad option in one line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from avsim.cli.main import main
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

TRACES = Path(__file__).parent.parent.parent / "traces"
GREEDY, LIVE = TRACES / "smollm2-eagle1-greedy", TRACES / "smollm2-adaptive-live"
COST = ("--cost", "deepseek-v4-flash-tp4-b300")
FAST = ("--offsets", "1", "--bootstrap", "100", "--workers", "1")
TWO = ("--estimators", "online-logistic,position-rate")


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    law = SyntheticLaw(num_requests=20, output_len=30, num_speculative_tokens=3)
    return write_synthetic(tmp_path_factory.mktemp("small") / "trace", law).path


def compare(*args: object, cwd: Path | None = None) -> Result:
    """Run the command line in this process, which is much faster than starting one for each case."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["avsim", "compare", *map(str, args)])
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", "160")
        patch.delenv("AVSIM_DEBUG", raising=False)
        with pytest.raises(SystemExit) as stopped:
            main()
    code = stopped.value.code
    return Result(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def fails(args: Sequence[object], *said: str, cwd: Path | None = None) -> None:
    result = compare(*args, cwd=cwd)
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in said:
        assert part in result.stderr, result.stderr


def test_a_table_and_its_notes(small: Path) -> None:
    result = compare(small, *FAST, *TWO)
    assert (result.returncode, result.stderr) == (0, "")
    first = result.stdout.splitlines()[0]
    assert first.startswith("SYNTHETIC synthetic-dense-k3-seed0: full admission, 8 requests at once, ")
    assert first.endswith("20 distinct requests")
    for part in ("change to online-logistic", "survival: change", "│ position-rate", "· intervals: 95 %"):
        assert part in result.stdout


def test_json_is_the_result_and_nothing_else(small: Path) -> None:
    result = compare(small, *FAST, *TWO, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    (found,) = json.loads(result.stdout)
    assert [row["estimator"] for row in found["rows"]] == ["online-logistic", "position-rate"]
    assert compare(small, *FAST, *TWO, "--json").stdout == result.stdout


def test_several_traces_and_their_files(small: Path, tmp_path: Path) -> None:
    files = ("--report", tmp_path / "new/r.html", "--csv", tmp_path / "c.csv")
    result = compare(small, GREEDY, *FAST, *TWO, *files)
    assert result.returncode == 0, result
    assert result.stderr == f"report: {tmp_path / 'new/r.html'}\n"
    with (tmp_path / "c.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["trace"], line["estimator"]) for line in lines] == [
        (trace, name)
        for trace in ("synthetic-dense-k3-seed0", "smollm2-eagle1-greedy")
        for name in ("online-logistic", "position-rate")
    ]
    html = (tmp_path / "new/r.html").read_text()
    assert "Acceptance estimators on 2 traces" in html
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["c.csv", "r.html"]


def test_a_saved_state_is_where_the_next_run_starts(small: Path, tmp_path: Path) -> None:
    saved, again = tmp_path / "states.json", tmp_path / "again.json"
    cold = compare(small, *FAST, *TWO, "--json", "--save-states", saved)
    assert cold.returncode == 0, cold
    assert list(json.loads(saved.read_text())) == ["online-logistic", "position-rate"]
    (before,) = json.loads(cold.stdout)
    assert before["states"] == json.loads(saved.read_text())
    warm = compare(small, *FAST, *TWO, "--json", "--states", saved, "--save-states", again)
    (after,) = json.loads(warm.stdout)
    assert {row["start"] for row in before["rows"]} == {"cold"}
    assert {row["start"] for row in after["rows"]} == {"given"}
    first = [found["rows"][1]["over_time"][0]["log_loss"] for found in (before, after)]
    assert first[1] < first[0]
    states = [json.loads(path.read_text())["position-rate"]["stats"]["observed"]["values"] for path in (saved, again)]
    assert states[1] == [2 * value for value in states[0]]  # the same walk once more
    partly = compare(small, *FAST, "--estimators", "online-logistic,raw-confidence", "--json", "--states", saved)
    assert [row["start"] for row in json.loads(partly.stdout)[0]["rows"]] == ["given", "cold"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--estimators", "online-logstic"), "did you mean 'online-logistic'?"),
        (("--estimators", "confidence-head"), "confidence-head reads confidence, which the trace did not record"),
        (("--estimators", "online-logistic:l2=-1"), "l2 must be > 0"),
        (("--estimators", " , "), "at least one estimator"),
        (("--loads", "8"), "needs step costs: pass --cost"),
        (("--loads", "8", *COST), "pass --what-if"),
        (("--loads", "8,x", *COST), "--loads must be whole numbers"),
        (("--loads", "0", *COST, "--what-if"), "loads must be at least 1"),
        (("--loads", "8", "--cost", "nothing"), "no cost preset or file 'nothing'"),
        (("--explain",), "pass --loads as well"),
        (("--belief", "deepseek-v4-flash-tp4-b300"), "pass --loads as well"),
        (("--admission", "adaptive"), "needs step costs: pass --cost"),
        (("--admission", "adaptive", *COST), "pass --what-if"),
        (("--admission", "none"), "drafts nothing"),
        (("--admission", "nothing"), "unknown policy 'nothing'"),
        (("--admission", "fixed:9"), "K = 5"),
        (("--admission", "adaptive", *COST, "--what-if", "--admission-estimator", "x"), "unknown estimator 'x'"),
        (("--k", "9"), "9 slots asked for"),
        (("--k", "0"), "0 slots asked for"),
        (("--offsets", "0"), "offsets must be at least 1"),
        (("--seed", "-1"), "seed must be at least 0"),
        (("--masked", "maybe"), "--masked must be exclude or include"),
        (("--then", "category=nothing"), "no category 'nothing' to change to; it has gsm8k_test"),
        (("--then", "nothing"), "no trace folder 'nothing'"),
        (("--then", str(LIVE)), "traffic changes to dense ones only"),
        (("--drift-steps", "50"), "drift_steps must be at least 100"),
        (("--prior", "nothing"), "no trace folder 'nothing'"),
        (("--prior", str(GREEDY)), "is the trace to compare on"),
        (("--states", "nothing.json"), "nothing.json: cannot read it"),
        ((str(GREEDY),), "is given twice"),
        (("nothing",), "no trace folder 'nothing'"),
        (("--save-states", "s.json", str(LIVE)), "--save-states takes one trace"),
    ],
)
def test_a_bad_option_is_one_line(args: tuple[str, ...], said: str, tmp_path: Path) -> None:
    fails((GREEDY, *FAST, *args), said, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_on_policy_trace_was_admitted_as_it_was() -> None:
    fails((LIVE, *FAST, "--admission", "adaptive"), "admitted as recorded", "needs a dense trace")
    fails((LIVE, *FAST, "--admission", "fixed:1"), "admitted as recorded")


def test_shallower_traces_cannot_follow_or_come_before(small: Path) -> None:
    fails((GREEDY, *FAST, "--then", small), "K = 3, but", "pass --k")
    fails((GREEDY, *FAST, "--prior", small), "K = 3, but", "pass --k")
    assert compare(GREEDY, *FAST, *TWO, "--prior", small, "--k", "3").returncode == 0


@pytest.mark.parametrize("text", ["", "[1]", "null", '{"online-logistic": {}}', '{"online-logistic": 1}', "\xff"])
def test_a_wrong_file_of_states(text: str, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "states.json"
    path.write_bytes(text.encode("latin-1"))
    fails((small, *FAST, *TWO, "--states", path), "state")


def test_states_of_other_estimators_or_another_k(small: Path, tmp_path: Path) -> None:
    saved = tmp_path / "states.json"
    assert compare(small, *FAST, "--estimators", "position-rate", "--save-states", saved).returncode == 0
    fails((small, *FAST, "--estimators", "online-logistic", "--states", saved), "no estimator that is compared")
    fails((GREEDY, *FAST, *TWO, "--states", saved), "state of position-rate does not fit it at K = 5")


@pytest.mark.parametrize("option", ["--report", "--csv", "--save-states"])
def test_existing_files_are_kept_unless_asked(option: str, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.write_text("mine")
    fails((small, *FAST, *TWO, option, path), "taken exists; choose another name or pass --overwrite")
    assert path.read_text() == "mine"
    assert compare(small, *FAST, *TWO, option, path, "--overwrite").returncode == 0
    assert path.read_text() != "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("option", ["--report", "--csv", "--save-states"])
def test_a_path_that_cannot_be_written(option: str, small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    fails((small, *FAST, *TWO, option, tmp_path / "file/below"), "cannot write it")
    if option != "--report":  # drawing takes longer than writing
        fails((small, *FAST, *TWO, option, tmp_path, "--overwrite"), "cannot write it")
        fails((small, *FAST, *TWO, option, ".", "--overwrite"), "cannot write it", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "x"


def test_what_typer_refuses(small: Path) -> None:
    for args in (("--concurrency", "0"), ("--bootstrap", "10"), ("--replicates", "1"), ("--workers", "0"), ("--nope",)):
        result = compare(small, *FAST, *args)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
    assert compare().returncode == 2
