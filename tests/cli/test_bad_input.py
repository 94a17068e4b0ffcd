"""Bad input: one clear line on stderr, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import polars as pl
import pytest

from avsim.cli.main import main
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

TRACES = Path(__file__).parent.parent.parent / "traces"
GREEDY = TRACES / "smollm2-eagle1-greedy"
B300 = ("--cost", "deepseek-v4-flash-tp4-b300", "--what-if")


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def avsim(*args: str, cwd: Path | None = None) -> Result:
    """Run the command line in this process, which is much faster than starting one for each case."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["avsim", *args])
        patch.setenv("NO_COLOR", "1")
        patch.delenv("AVSIM_DEBUG", raising=False)
        with pytest.raises(SystemExit) as stopped:
            main()
    code = stopped.value.code
    return Result(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def fails(result: Result, *said: str) -> None:
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in said:
        assert part in result.stderr, result.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(GREEDY, tmp_path / "trace")
    return tmp_path / "trace"


def edit(column: str, row: int, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = next(folder.glob("blocks*.parquet"))
        frame = pl.read_parquet(path)
        values = frame[column].to_list()
        values[row] = value
        frame.with_columns(pl.Series(column, values, dtype=frame.schema[column])).write_parquet(path)

    return change


def truncate(folder: Path) -> None:
    path = next(folder.glob("blocks*.parquet"))
    path.write_bytes(path.read_bytes()[:1000])


def remove(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.glob(name):
            path.unlink()

    return change


def retype(folder: Path) -> None:
    path = next(folder.glob("blocks*.parquet"))
    pl.read_parquet(path).with_columns(pl.col("position").cast(pl.String)).write_parquet(path)


def duplicate(folder: Path) -> None:
    path = next(folder.glob("blocks*.parquet"))
    frame = pl.read_parquet(path)
    pl.concat([frame[:5], frame[4:]]).write_parquet(path)


def empty(folder: Path) -> None:
    path = next(folder.glob("blocks*.parquet"))
    pl.read_parquet(path)[:0].write_parquet(path)


def card(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "trace.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove("blocks*"), ["blocks"]),
        (remove("requests.parquet"), ["requests.parquet"]),
        (truncate, ["blocks-", ".parquet"]),
        (retype, ["position"]),
        (edit("log_odds_1", 7, float("nan")), ["row 7", "log_odds_1"]),
        (edit("log_odds_2", 9, float("inf")), ["row 9", "log_odds_2"]),
        (edit("num_accepted", 3, 6), ["row 3", "num_accepted"]),
        (edit("num_admitted", 3, 6), ["row 3", "num_admitted"]),
        (edit("position", 5, 4), ["row 5", "position"]),
        (duplicate, ["8899 blocks"]),
        (empty, ["no blocks"]),
        (card(schema_version=99), ["schema_version", "update avsim"]),
        (card(kind="thick"), ["kind"]),
        (lambda folder: (folder / "trace.json").write_text("{"), ["trace.json"]),
    ],
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else "+".join(value),
)
@pytest.mark.parametrize("command", ["validate", "replay"])
def test_broken_traces(command: str, change: Callable[[Path], None], said: list[str], copy: Path) -> None:
    change(copy)
    if command == "validate":
        fails(avsim("trace", "validate", str(copy)), *said)
        return
    out = copy.parent / "run"
    fails(avsim("replay", str(copy), *B300, "--concurrency", "2", "--out", str(out)), *said)
    assert not list(copy.parent.glob("*run*"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere", *B300], ["nowhere"]),
        ([str(GREEDY)], ["--cost"]),
        ([], ["--cost"]),
        ([str(GREEDY), "--cost", "deepseek-v4-flash-tp4-b300"], ["--what-if", "DeepSeek", "SmolLM2"]),
        ([str(GREEDY), "--cost", "deepseek-v4-flash"], ["did you mean 'deepseek-v4-flash-tp4-b300'"]),
        ([str(GREEDY), *B300, "--concurrency", "0"], ["concurrency", "at least 1"]),
        ([str(GREEDY), *B300, "--concurrency", "1,two"], ["whole numbers", "1,two"]),
        ([str(GREEDY), *B300, "--concurrency", "4,4"], ["twice"]),
        ([str(GREEDY), *B300, "--policy", "fixed:7"], ["fixed:7", "K = 5"]),
        ([str(GREEDY), *B300, "--policy", "fixed:0"], ["fixed:0"]),
        ([str(GREEDY), *B300, "--policy", "fixed:x"], ["fixed", "'x'"]),
        ([str(GREEDY), *B300, "--policy", "adaptve"], ["did you mean 'adaptive'"]),
        ([str(GREEDY), *B300, "--policy", "adaptive:depth=3"], ["adaptive"]),
        ([str(GREEDY), *B300, "--estimator", "online-logistics"], ["did you mean 'online-logistic'"]),
        ([str(GREEDY), *B300, "--estimator", "online-logistic:dampening=1"], ["did you mean 'damping'"]),
        ([str(GREEDY), *B300, "--estimator", "online-logistic:feature=log_odds_f32"], ["log_odds_f32"]),
        ([str(GREEDY), *B300, "--k", "9"], ["K = 5"]),
        ([str(GREEDY), *B300, "--k", "0"], ["at least 1"]),
        ([str(GREEDY), *B300, "--lag", "-1"], ["lag"]),
        ([str(GREEDY), *B300, "--bootstrap", "3"], ["at least 20"]),
        ([str(GREEDY), *B300, "--loop", "open"], ["closed"]),
        ([str(GREEDY), *B300, "--loop", "ajar"], ["ajar"]),
        ([str(GREEDY), *B300, "--av-overhead-ms", "-2"], ["overhead"]),
        ([str(GREEDY), *B300, "--out", str(TRACES)], ["exists"]),
        (["--manifest", "nowhere.json"], ["nowhere.json"]),
        ([str(GREEDY), *B300, "--manifest", "x.json"], ["--manifest"]),
    ],
    ids=lambda value: "-".join(value[-2:]) if isinstance(value, list) else None,
)
def test_bad_replay_arguments(args: list[str], said: list[str], tmp_path: Path) -> None:
    fails(avsim("replay", *args, cwd=tmp_path), *said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ["not valid JSON"]),
        ("[]", ["malformed"]),
        ('{"kind": "curv"}', ["did you mean 'curve'"]),
        ('{"kind": "curve", "card": {"name": "x"}}', ["x.json"]),
    ],
)
def test_broken_cost_files(text: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    fails(avsim("replay", str(GREEDY), "--cost", str(tmp_path / "x.json")), *said)


@pytest.mark.parametrize(
    ("verify", "said"),
    [
        ([[1, 5.0], [1, 6.0]], "rise strictly"),
        ([[1, -5.0]], "> 0 ms"),
        ([], "no points"),
        ([[1, float("nan")]], "finite"),
    ],
)
def test_broken_curves(verify: list[list[float]], said: str, tmp_path: Path) -> None:
    shown = avsim("cost", "show", "deepseek-v4-flash-tp4-b300", "--json")
    data = json.loads(shown.stdout) | {"verify": verify}
    (tmp_path / "x.json").write_text(json.dumps(data))
    fails(avsim("cost", "show", str(tmp_path / "x.json")), said)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["cost", "show", "b300"], "no cost preset"),
        (["list", "polices"], "did you mean 'policies'"),
        (["compare", str(GREEDY), "--estimators", ""], "at least one"),
        (["compare", str(GREEDY), "--admission", "nune"], "did you mean 'none'"),
        (["trace", "info", "nowhere"], "nowhere"),
        (["replay", str(GREEDY), *B300, "--estimator", "offline-gbdt"], "fitted offline"),
        (
            ["compare", str(GREEDY), *B300, "--admission", "adaptive", "--admission-estimator", "temperature-offline"],
            "fitted offline",
        ),
    ],
)
def test_bad_arguments_elsewhere(args: list[str], said: str) -> None:
    fails(avsim(*args), said)


def test_a_manifest_of_another_trace_is_refused(tmp_path: Path) -> None:
    trace, run = tmp_path / "trace", tmp_path / "run"
    write_synthetic(trace, SyntheticLaw(num_requests=32, output_len=8, num_speculative_tokens=2))
    fast = ("--concurrency", "2", "--baseline", "none", "--policy", "fixed:1", "--bootstrap", "20", "--workers", "1")
    assert avsim("replay", str(trace), *B300, *fast, "--out", str(run)).returncode == 0
    again = avsim("replay", "--manifest", str(run), "--json")
    assert again.stdout == (run / "summary.json").read_text()
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["inputs"]["trace"] = "0" * 64
    (run / "manifest.json").write_text(json.dumps(manifest))
    fails(avsim("replay", "--manifest", str(run)), "not the one of the recorded run")


def test_the_process_exits_with_the_code() -> None:
    command = [sys.executable, "-m", "avsim", "cost", "show", "b300"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("avsim: no cost preset or file 'b300'")


def test_usage_errors_exit_with_2() -> None:
    command = [sys.executable, "-m", "avsim", "replay", "--nonsense"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
