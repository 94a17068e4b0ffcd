"""`avsim trace`, through the Typer app."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from avsim.cli.trace import app
from avsim.errors import InputError
from avsim.sources import Trace

RUN = CliRunner()


def run(*arguments: str | Path) -> str:
    result = RUN.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path) -> str:
    with pytest.raises(InputError) as error:
        RUN.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_info_labels_both_weightings_of_a_dense_trace(greedy: Trace) -> None:
    text = run("info", greedy.path)
    assert "Dense rows: a block at every output position; they overweight easy positions" in text
    assert "Walked path from position 0: the blocks that a run visits" in text
    assert "68 (66 with different content)" in text
    assert "conditional" in text
    assert "\x1b" not in text


def test_info_json_is_a_group_by_of_the_rows(greedy: Trace, reference: Path) -> None:
    rows = pl.read_parquet(reference / "traces/smollm2-eagle1-dense/rows.parquet")
    reached = rows.filter(pl.col("mode") == "greedy", pl.col("reached")).sort("slot")
    plain = reached.group_by("slot", maintain_order=True).agg(pl.col("accept").mean())
    found = json.loads(run("info", greedy.path, "--json"))
    assert found["summary"]["rows"]["conditional"]["rate"] == pytest.approx(plain["accept"].to_list(), rel=1e-12)
    assert found["summary"]["path"]["num_blocks"] == 5752
    assert sum(found["summary"]["path"]["counts"]["accepted"]) == 3173
    assert found["card"]["name"] == "smollm2-eagle1-greedy"


def test_synth_validate_info(tmp_path: Path) -> None:
    out = tmp_path / "trace"
    assert "20 requests" in run("synth", out, "--kind", "on-policy", "--requests", "20", "--concurrency", "4")
    assert ": valid, 20 requests" in run("validate", out)
    data = json.loads(run("validate", out, "--json"))
    assert data["valid"]
    assert data["findings"] == ["the trace is synthetic: results hold for its law only"]
    summary = json.loads(run("info", out, "--json"))["summary"]
    assert summary["path"] is None
    assert summary["rows"]["num_blocks"] > 0
    assert "The blocks of the trace" in run("info", out)
    assert "the trace exists" in refused("synth", out)
    card = json.loads(run("synth", out, "--overwrite", "--json", "--k", "3", "--seed", "5"))["card"]
    assert (card["kind"], card["num_speculative_tokens"], card["seed"]) == ("dense", 3, 5)


def test_import(tmp_path: Path) -> None:
    source = tmp_path / "data.jsonl"
    source.write_text(json.dumps({"prompt_token_ids": [1], "acc_ngram": {"acc_len": [1, 2]}}) + "\n")
    assert "1 requests, 2 blocks" in run("import", "specdecode-bench:drafter=ngram", source, tmp_path / "trace")
    assert ": valid" in run("validate", tmp_path / "trace")


def test_bad_input_is_one_line(tmp_path: Path, greedy: Trace) -> None:
    assert "no trace folder" in refused("info", tmp_path / "missing")
    assert "no trace folder" in refused("validate", tmp_path / "missing")
    assert "did you mean 'specdecode-bench'" in refused("import", "specdecode-bnch", tmp_path, tmp_path / "out")
    assert "it is dense or on-policy" in refused("synth", tmp_path / "out", "--kind", "sparse")
    assert "the trace exists" in refused("synth", greedy.path)


def test_help_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, avsim.cli.trace; print([m for m in ('polars', 'numpy', 'scipy', 'sklearn') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
