"""What a summary says about itself: approximations, exactness, foreign costs, synthetic inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from avsim.config import ReplayConfig
from avsim.derive import derive_on_policy
from avsim.policies import FixedDepth
from avsim.report.console import print_replay, print_rows
from avsim.report.listing import LISTINGS
from avsim.runs import run_replay
from avsim.sources import Trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

TRACES = Path(__file__).parent.parent.parent.parent / "traces"
FAST = ReplayConfig(
    trace=str(TRACES / "smollm2-eagle1-sampled"),
    cost="deepseek-v4-flash-tp4-b300",
    what_if=True,
    concurrency=(2,),
    baselines=("none", "fixed:1"),
    bootstrap=20,
)


def notes(config: ReplayConfig) -> str:
    return "\n".join(run_replay(config, workers=1).summary["notes"])


def test_lossy_rules_are_marked_for_sampled_drafts_only() -> None:
    said = notes(replace(FAST, lag=0, policies=("adaptive", "prefix-scheduler", "prefix-scheduler:early_stop=false")))
    assert "LOSSY with sampled drafts: adaptive: its budget is a global argmax on live confidences" in said
    assert said.count("LOSSY") == 2
    greedy = notes(replace(FAST, lag=0, trace=str(TRACES / "smollm2-eagle1-greedy")))
    assert "LOSSY" not in greedy
    assert "leaves the output unchanged" in greedy


def test_the_bias_of_stale_sizing_is_named_below_eight_requests() -> None:
    assert "biased upward" in notes(FAST)
    assert "biased upward" not in notes(replace(FAST, concurrency=(16,)))


def test_an_estimator_that_reads_the_verdict_is_marked() -> None:
    summary = run_replay(replace(FAST, estimators=("oracle-label",)), workers=1).summary
    assert "reads the drawn token" in "\n".join(summary["notes"])
    assert [arm["unattainable"] for arm in summary["loads"][0]["arms"]] == [False, False, True]


def test_synthetic_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_synthetic(tmp_path / "s", SyntheticLaw(num_requests=40, output_len=30, num_speculative_tokens=3))
    summary = run_replay(replace(FAST, trace=str(tmp_path / "s")), workers=1).summary
    assert summary["synthetic"]
    assert summary["headline"].startswith("WHAT IF: acceptance of SYNTHETIC synthetic-")
    print_replay(summary)
    assert "SYNTHETIC TRACE" in capsys.readouterr().out


@pytest.mark.parametrize("trace", ["smollm2-dspark-greedy", "smollm2-eagle-greedy"])
def test_a_shallower_block_of_a_parallel_drafter_is_an_approximation(trace: str) -> None:
    said = notes(replace(FAST, trace=str(TRACES / trace), baselines=("none", "fixed:2", "fixed")))
    assert ("APPROXIMATE for fixed:k below K: dspark" in said) == ("dspark" in trace)


def test_few_requests_give_no_verdict(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "s", SyntheticLaw(num_requests=12, output_len=30, num_speculative_tokens=3))
    summary = run_replay(replace(FAST, trace=str(tmp_path / "s")), workers=1).summary
    assert {verdict["word"] for verdict in summary["loads"][0]["verdicts"]} == {"not enough requests"}


def test_an_open_loop_says_that_it_is_approximate(
    greedy: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    derive_on_policy(greedy, tmp_path / "d", FixedDepth(k=5), 8)
    run = run_replay(replace(FAST, trace=str(tmp_path / "d"), loop="open", baselines=("none", "fixed", "oracle")))
    said = "\n".join(run.summary["notes"])
    assert "APPROXIMATE (open loop)" in said
    assert "no engine ran it" in said
    (load,) = run.summary["loads"]
    assert load["concurrency"] is None
    rates = {arm["policy"]: arm["throughput_tok_s"] for arm in load["arms"]}
    assert rates["oracle"] == max(rates.values())
    print_replay(run.summary)
    assert "as recorded" in capsys.readouterr().out


def test_listings_name_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {name: listing(TRACES) for name, listing in LISTINGS.items()}
    assert {row["name"] for row in rows["policies"]} >= {"none", "fixed", "adaptive", "prefix-scheduler", "oracle"}
    assert len(rows["traces"]) == len(list(TRACES.glob("*/trace.json")))
    print_rows(rows["estimators"])
    print_rows(rows["policies"])
    print_rows([])
    out = capsys.readouterr().out
    assert "E[tokens]" in out  # square brackets are text, not markup
    assert "online-logistic" in out
    assert "nothing found" in out


def test_a_comparison_prints_its_reference(greedy: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    from avsim.comparison import CompareConfig, compare
    from avsim.report.comparison_console import print_comparison

    config = CompareConfig(estimators=("position-rate", "online-logistic"), offsets=1, bootstrap=100)
    (result,) = compare([greedy.path], config, workers=1)
    print_comparison(result)
    assert "change to position-rate" in capsys.readouterr().out
