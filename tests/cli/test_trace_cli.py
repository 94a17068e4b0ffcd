"""`avsim trace`, through the Typer app."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from avsim.cli.trace import app
from avsim.errors import InputError
from avsim.sources import Trace, TraceCard, write_trace

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


def test_synth_draws_lengths(tmp_path: Path) -> None:
    options = ["--output-len", "lognormal:mean=20,sigma=0.8,max=60", "--prompt-len", "geometric:mean=30"]
    card = json.loads(run("synth", tmp_path / "trace", "--requests", "9", *options, "--json"))["card"]
    assert "output_len~lognormal:mean=20.0,sigma=0.8,max=60 (drawn: mean " in card["notes"]
    assert "prompt_len~geometric:mean=30.0 (drawn: mean " in card["notes"]
    lengths = pl.read_parquet(tmp_path / "trace/requests.parquet")
    assert lengths["output_len"].n_unique() > 4
    assert card["num_blocks"] == (lengths["output_len"] - 1).sum()
    assert "unknown length 'lognorm'; did you mean 'lognormal'?" in refused(
        "synth", tmp_path / "x", "--output-len", "lognorm:mean=9"
    )
    assert "output_len: fixed: tokens must be at least 2 here" in refused("synth", tmp_path / "x", "--output-len", "1")
    assert not (tmp_path / "x").exists()


def test_import(tmp_path: Path) -> None:
    source = tmp_path / "data.jsonl"
    source.write_text(json.dumps({"prompt_token_ids": [1], "acc_ngram": {"acc_len": [1, 2]}}) + "\n")
    assert "1 requests, 2 blocks" in run("import", "specdecode-bench:drafter=ngram", source, tmp_path / "trace")
    assert ": valid" in run("validate", tmp_path / "trace")


def test_import_vllm_metrics(tmp_path: Path) -> None:
    counts = {"num_spec_tokens": 2, "per_step_accepted": [1, 0], "per_step_drafted": [2, 2], "num_spec_steps": 2}
    source = tmp_path / "served.jsonl"
    source.write_text(json.dumps({"id": "a", "model": "m", "metrics": {"speculative_decoding": counts}}) + "\n")
    assert "1 requests, 2 blocks" in run("import", "vllm-metrics:temperature=0", source, tmp_path / "trace")
    assert ": valid" in run("validate", tmp_path / "trace")
    assert "vllm-metrics needs temperature" in refused("import", "vllm-metrics", source, tmp_path / "other")


def test_merge(tmp_path: Path) -> None:
    parts = [tmp_path / "a", tmp_path / "b"]
    for seed, part in enumerate(parts):
        run("synth", part, "--kind", "on-policy", "--requests", "8", "--concurrency", "4", "--seed", str(seed))
    assert "16 requests" in run("merge", tmp_path / "out", *parts)
    assert ": valid, 16 requests" in run("validate", tmp_path / "out")
    assert "the trace exists" in refused("merge", tmp_path / "out", *parts)
    made = json.loads(run("merge", tmp_path / "out", *parts, "--overwrite", "--json", "--name", "synthetic-ab"))
    assert (made["card"]["name"], made["card"]["num_requests"]) == ("synthetic-ab", 16)
    run("synth", tmp_path / "k3", "--kind", "on-policy", "--requests", "8", "--concurrency", "4", "--k", "3")
    said = refused("merge", tmp_path / "new", parts[0], tmp_path / "k3")
    assert f"num_speculative_tokens is 7 in {parts[0]}, but 3 in {tmp_path / 'k3'}" in said


@pytest.mark.parametrize("to", ["csv", "jsonl"])
def test_convert(to: str, tmp_path: Path, greedy: Trace) -> None:
    out = tmp_path / "text"
    assert f"blocks.{to}, card.json, manifest.json, requests.{to}" in run("convert", greedy.path, out, "--to", to)
    read = pl.read_csv if to == "csv" else pl.read_ndjson
    blocks = read(out / f"blocks.{to}", infer_schema_length=None)
    assert blocks.height == greedy.num_blocks
    assert blocks["num_accepted"].sum() == int(greedy.blocks().num_accepted.sum())
    assert "exists; choose another folder" in refused("convert", greedy.path, out, "--to", to)
    files = json.loads(run("convert", greedy.path, out, "--to", to, "--overwrite", "--json"))["files"]
    assert files == [f"blocks.{to}", "card.json", "manifest.json", f"requests.{to}"]
    assert "--to is 'xml'; it is csv or jsonl" in refused("convert", greedy.path, tmp_path / "x", "--to", "xml")


def test_info_warns_and_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run("synth", tmp_path / "few", "--requests", "5")
    text = run("info", tmp_path / "few")
    assert "warning: only 5 requests with different content" in text
    tables = text[text.index("Dense rows") :]
    assert max(map(len, tables.splitlines())) <= 80
    assert "dense rows overlap" in tables.replace("\n", " ")
    assert tables.count(" slot  accepted") == 2
    (warning,) = json.loads(run("info", tmp_path / "few", "--json"))["warnings"]
    assert warning == {"name": "few-requests", "text": warning["text"], "values": {"sources": 5}}


def test_info_prints_every_denominator_of_trimmed_blocks(tmp_path: Path) -> None:
    rows = {"step": range(4), "request": [0] * 4, "position": [0, 3, 4, 6], "num_drafted": [2] * 4}
    blocks = pl.DataFrame(rows | {"num_admitted": [2, 2, 1, 0], "num_accepted": [2, 0, 1, 0]})
    requests = pl.DataFrame({"request": [0], "source": [0], "prompt_len": [1], "output_len": [9], "temperature": [0.0]})
    card = TraceCard(
        name="trimmed",
        kind="on-policy",
        target="[none]",
        drafter="none",
        drafter_kind="unknown",
        num_speculative_tokens=2,
        draft_sampling="greedy",
        acceptance_rule="greedy-match",
        temperature=0.0,
        adaptive_verification=True,
    )
    text = run("info", write_trace(tmp_path / "trimmed", card, requests, [blocks]).path)
    cells = [line.split() for line in text.splitlines() if line.strip().startswith(("0 ", "1 "))]
    assert [[word for word in line if word[0] not in "[" and "]" not in word] for line in cells] == [
        ["0", "2", "50.0", "66.7", "66.7"],
        ["1", "1", "25.0", "50.0", "100.0"],
    ]
    assert "labels are censored: 37.5 % of the drafted slots" in text
    assert "[none]" in text


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
