"""`avsim capture dense` on bad input: one line, exit code 2, nothing written."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(folder, *arguments):
    words = [sys.executable, "-m", "avsim", "capture", "dense", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter", "eagel:x"], "did you mean 'eagle'"),
        (["--drafter", "ngram", "--draft-sampling", "probabilistic"], "temperature above 0"),
        (["--drafter", "ngram", "--draft-sampling", "sometimes"], "greedy or probabilistic"),
        (["--drafter", "ngram"], "bad.jsonl row 1: not valid JSON"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
    (tmp_path / "bad.jsonl").write_text("{\n")
    done = run(tmp_path, "--target", "none", "--prompts", "bad.jsonl", "--out", "trace", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]
