"""`avsim replay` as a serving engine: arrivals, prompts, prices and traces of steps from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from tests.cli.test_bad_input import avsim, fails

B300 = ("--cost", "deepseek-v4-flash-tp4-b300", "--what-if")
FAST = ("--baseline", "none,fixed:1", "--policy", "fixed:2", "--bootstrap", "20", "--workers", "1")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("serving") / "trace"
    law = SyntheticLaw(kind="dense", num_requests=32, output_len=8, num_speculative_tokens=2, prompt_len=30)
    write_synthetic(folder, law)
    return str(folder)


def test_arrivals_repeat_from_their_manifest(trace: str, tmp_path: Path) -> None:
    args = ("--arrivals", "poisson:5;bursty:5,cv=2", "--max-num-seqs", "4", "--max-num-batched-tokens", "64")
    out = tmp_path / "run"
    first = avsim("replay", trace, *B300, *FAST, *args, "--out", str(out), "--json")
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert [load["load"] for load in summary["loads"]] == ["poisson:5", "bursty:5,cv=2"]
    assert (summary["prompts"], summary["max_num_batched_tokens"]) == ("scheduled", 64)
    assert {load["max_num_seqs"] for load in summary["loads"]} == {4}
    assert avsim("replay", "--manifest", str(out), "--workers", "1", "--json").stdout == first.stdout
    report = (out / "report.html").read_text()
    assert "--arrivals poisson:5,bursty:5,cv=2 --max-num-seqs 4 --max-num-batched-tokens 64" in report
    assert "--concurrency" not in report


def test_a_closed_loop_can_schedule_prompts_and_price_tokens(trace: str) -> None:
    args = ("--concurrency", "2", "--prompts", "scheduled", "--no-chunked-prefill", "--price", "2.5")
    shown = avsim("replay", trace, *B300, *FAST, *args)
    assert shown.returncode == 0, shown.stderr
    for words in ("TTFT p50 / p95 / p99", "cost per million", "each within one step (8,192 tokens a step)"):
        assert words in " ".join(shown.stdout.split()), words
    summary = json.loads(avsim("replay", trace, *B300, *FAST, *args, "--json").stdout)
    (load,) = summary["loads"]
    arm = load["arms"][0]
    assert arm["ttft_ms"]["p50"] > 0
    assert arm["waiting_ms"] is None
    spent = arm["economy"]
    assert spent["gpu_seconds_per_million_tokens"] == pytest.approx(4e6 / arm["throughput_tok_s"])
    assert spent["cost_per_million_tokens"] == pytest.approx(spent["gpu_seconds_per_million_tokens"] / 3600 * 2.5)


def test_prompts_are_free_unless_asked_for(trace: str) -> None:
    summary = json.loads(avsim("replay", trace, *B300, *FAST, "--concurrency", "2", "--json").stdout)
    assert summary["prompts"] == "free"
    assert summary["loads"][0]["arms"][0]["ttft_ms"] is None
    assert "Prompts cost nothing here: no prefill, no TTFT." in summary["notes"]


def test_more_clients_than_max_num_seqs_wait(trace: str) -> None:
    summary = json.loads(
        avsim("replay", trace, *B300, *FAST, "--concurrency", "8", "--max-num-seqs", "2", "--json").stdout
    )
    (load,) = summary["loads"]
    arm = load["arms"][0]
    assert arm["running"]["max"] == 2
    assert 5 < arm["waiting"]["mean"] <= 6
    assert arm["ttft_ms"]["p50"] == arm["waiting_ms"]["p50"] > 0
    alone = json.loads(avsim("replay", trace, *B300, *FAST, "--concurrency", "2", "--json").stdout)
    assert arm["step_ms"] == pytest.approx(alone["loads"][0]["arms"][0]["step_ms"], rel=1e-6)


def test_steps_are_written_as_a_trace(trace: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    args = ("--concurrency", "1,3", "--chrome-trace", str(path), "--chrome-trace-of", "fixed:1@3")
    shown = avsim("replay", trace, *B300, *FAST, *args, "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(path.read_text())
    assert document["otherData"]["title"] == "fixed:1 at 3"
    steps = [event for event in document["traceEvents"] if event.get("cat") == "step"]
    arm = next(a for a in json.loads(shown.stdout)["loads"][1]["arms"] if a["policy"] == "fixed:1")
    full = [step for step in steps if step["args"]["num_reqs"] == 3]
    assert len(full) == arm["steps_at_full_concurrency"]
    assert sum(step["dur"] for step in full) / len(full) / 1e3 == pytest.approx(arm["step_ms"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--arrivals", "poison:4"], ["unknown arrival process", "did you mean 'poisson'"]),
        (["--arrivals", "poisson"], ["poisson needs rate"]),
        (["--arrivals", "poisson:4,poisson:4.0"], ["names a load twice"]),
        (["--arrivals", "recorded"], ["does not record when its requests arrived", "poisson:4"]),
        (["--num-requests", "5"], ["num-requests is for loads with arrivals"]),
        (["--max-num-seqs", "0"], ["max-num-seqs must be at least 1"]),
        (["--prompts", "cheap"], ["--prompts must be free or scheduled"]),
        (["--no-chunked-prefill"], ["pass --prompts scheduled"]),
        (["--max-num-batched-tokens", "2"], ["a token budget of 2 cannot hold one request's 3 tokens"]),
        (
            ["--prompts", "scheduled", "--no-chunked-prefill", "--max-num-batched-tokens", "20"],
            ["a prompt of", "never fits a token budget of 20"],
        ),
        (["--loop", "open", "--arrivals", "poisson:4"], ["arrivals is for the simulated engine"]),
        (["--av-overhead-us-per-req", "-1"], ["µs per request"]),
        (["--price", "0"], ["above 0 per GPU-hour"]),
        (["--gpus", "0"], ["gpus must be at least 1"]),
        (["--chrome-trace-of", "none"], ["--chrome-trace FILE"]),
        (["--chrome-trace", "x.json", "--chrome-trace-of", "nobody"], ["no arm 'nobody'"]),
        (["--chrome-trace", "x.json", "--chrome-trace-of", "none@7"], ["no load '7'", "known: 2"]),
        (["--chrome-trace", "/dev/null/x.json"], ["cannot write it"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if value[0].startswith("--") else "",
)
def test_bad_serving_arguments(args: list[str], said: list[str], trace: str, tmp_path: Path) -> None:
    concurrency = () if "--arrivals" in args else ("--concurrency", "2")
    fails(avsim("replay", trace, *B300, *FAST, *concurrency, *args, cwd=tmp_path), *said)
    assert not list(tmp_path.iterdir())
