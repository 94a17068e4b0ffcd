"""`avsim cost table`, and costs that are named by a spec."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from avsim.cli.main import main

SPEC = "roofline:model=llama-3.1-8b,gpu=h200,tp=1,drafter=eagle,dtype=bf16,context=4096"
Run = Callable[..., tuple[int, str, str]]

SIZES = ("--max-reqs", "64", "--max-tokens", "2048", "--context", "3000", "--k", "4")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("AVSIM_DEBUG", raising=False)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["avsim", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    return call


def test_a_table_is_written_and_shown_as_a_cost(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "table.json"
    code, out, _ = run("cost", "table", SPEC, *SIZES, "--out", str(path))
    assert (code, "what a real step costs" in out, str(path) in out) == (0, True, True)
    code, out, _ = run("cost", "show", str(path), "--json")
    assert code == 0
    assert json.loads(out)["verify"] == json.loads(path.read_text(encoding="utf-8"))["verify"]
    code, _, err = run("cost", "table", SPEC, *SIZES, "--out", str(path))
    assert (code, "pass --overwrite" in err) == (2, True)


def test_json_on_stdout(run: Run) -> None:
    code, out, _ = run("cost", "table", "deepseek-v4-flash-tp4-b300", *SIZES, "--as-profiled", "--json")
    data = json.loads(out)
    assert (code, data["engine"]["capture_limit"], data["made_by"]) == (
        0,
        1024,
        "what vLLM's start-up profile would measure",
    )


def test_a_spec_is_shown_with_what_it_assumes(run: Run) -> None:
    code, out, _ = run("cost", "show", SPEC)
    assert code == 0
    assert "roofline" in out
    assert "An estimate. Assumed: 80% of the bandwidth" in out
    code, out, _ = run("list", "costs")
    assert (code, "gpu=h200" in out, "model=gpt-oss-120b" in out, "roofline:…" in out) == (0, True, True, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((SPEC.replace("h200", "h20"), *SIZES), "no gpu preset or file 'h20'; did you mean 'h200'"),
        ((SPEC, *SIZES, "--capture-limit", "0"), "capture_limit must be at least 1"),
        ((SPEC, *SIZES, "--overhead-ms", "-1"), "the overhead finite"),
        (("rooflin:model=x", *SIZES), "no cost preset or file 'rooflin:model=x'"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], message: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "table.json"
    code, out, err = run("cost", "table", *args, "--out", str(path))
    assert (code, out, path.exists()) == (2, "", False)
    assert message in err
    assert len(err.strip().splitlines()) == 1
