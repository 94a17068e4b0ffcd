"""A replay from config to folder: same inputs, same bytes; losses are told; choices are made on other requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from avsim.config import ReplayConfig
from avsim.errors import InputError
from avsim.manifest import json_text, read_manifest
from avsim.runs import ReplayRun, run_replay, write_run
from avsim.study import build_arms, max_total_logits
from avsim.workload import Pool, request_sequences, resample_units, split_units

TRACES = Path(__file__).parent.parent.parent / "traces"


@pytest.fixture(scope="module")
def config() -> ReplayConfig:
    return ReplayConfig(
        trace=str(TRACES / "smollm2-eagle1-greedy"),
        cost="deepseek-v4-flash-tp4-b300",
        concurrency=(8, 64),
        baselines=("none", "fixed:1", "fixed:3", "oracle"),
        what_if=True,
        bootstrap=20,
    )


@pytest.fixture(scope="module")
def run(config: ReplayConfig) -> ReplayRun:
    return run_replay(config, workers=1)


def test_the_result_does_not_depend_on_workers(config: ReplayConfig, run: ReplayRun) -> None:
    assert json_text(run_replay(config, workers=2).summary) == json_text(run.summary)


def test_a_run_folder_is_whole_and_repeats(config: ReplayConfig, run: ReplayRun, tmp_path: Path) -> None:
    write_run(run, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "manifest.json", "config.toml", "summary.json", "steps.parquet", "calibration.parquet", "report.html"
    }  # fmt: skip
    recorded = read_manifest(tmp_path / "run")
    again = run_replay(ReplayConfig.from_json(recorded["config"]), expect=recorded, workers=1)
    assert json_text(again.summary).encode() == (tmp_path / "run" / "summary.json").read_bytes()
    steps = pl.read_parquet(tmp_path / "run" / "steps.parquet")
    arm = next(a for a in run.summary["loads"][0]["arms"] if a["policy"] == "adaptive")
    mine = steps.filter((pl.col("policy") == "adaptive") & (pl.col("concurrency") == 8) & (pl.col("num_reqs") == 8))
    assert mine["emitted_tokens"].sum() / mine["step_ms"].sum() * 1e3 == pytest.approx(arm["throughput_tok_s"])
    with pytest.raises(InputError, match="exists"):
        write_run(run, tmp_path / "run")
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match=r"no manifest\.json"):
        write_run(run, tmp_path / "other", overwrite=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_manifest_refuses_other_inputs(config: ReplayConfig, run: ReplayRun) -> None:
    other = replace(config, trace=str(TRACES / "smollm2-eagle1-sampled"))
    with pytest.raises(InputError, match="not the one of the recorded run"):
        run_replay(other, expect=run.manifest)


def test_gains_and_losses_are_both_told(run: ReplayRun) -> None:
    """At 64 requests this drafter does not pay on this machine; adaptive verification cannot hide that."""
    at_64 = run.summary["loads"][1]
    words = {verdict["against"].split(" (")[0]: verdict["word"] for verdict in at_64["verdicts"]}
    assert words["none"] == "loss"
    assert words["best fixed"] in {"gain", "gain withheld"}
    assert "WHAT IF" in run.summary["headline"]
    for verdict in at_64["verdicts"]:
        assert verdict["low"] < verdict["ratio"] < verdict["high"]


def test_the_oracle_is_not_beaten_by_what_drafts(run: ReplayRun) -> None:
    for load in run.summary["loads"]:
        for arm in load["arms"]:
            if arm["policy"] not in {"none", "oracle"}:
                assert arm["throughput_regret_to_oracle_pct"] > 0
            if arm["policy"] == "oracle":
                assert arm["step_regret_pct"] == pytest.approx(0, abs=1e-9)
            if arm["policy"] == "adaptive":
                assert arm["step_regret_pct"] > 0
                assert arm["confidence"]["auc"] > 0.7


def test_overhead_is_charged_to_adaptive_only(config: ReplayConfig, run: ReplayRun) -> None:
    charged = run_replay(replace(config, av_overhead_ms=5.0, concurrency=(8,)), workers=1)
    free, heavy = (r.summary["loads"][0]["verdicts"][0] for r in (run, charged))
    assert heavy["word"] == "loss"
    assert heavy["ratio"] < free["ratio"]
    assert heavy["break_even_overhead_ms"] == pytest.approx(free["break_even_overhead_ms"])


def test_summary_is_plain_json(run: ReplayRun) -> None:
    assert json.loads(json_text(run.summary)) == run.summary


def test_arms_are_named_once() -> None:
    config = ReplayConfig(trace="t", cost="c", policies=("adaptive", "fixed:2"), baselines=("none", "fixed"))
    arms = build_arms(config, 3)
    assert [arm.name for arm in arms] == ["none", "fixed:1", "fixed:2", "fixed:3", "adaptive"]
    assert [arm.judged for arm in arms] == [False, False, True, False, True]
    two = build_arms(replace(config, estimators=("online-logistic", "position-rate")), 3)
    assert [arm.name for arm in two][-2:] == ["adaptive + online-logistic", "adaptive + position-rate"]


def test_the_logit_limit_follows_the_vocabulary() -> None:
    assert (max_total_logits(129_280), max_total_logits(262_144), max_total_logits(2**31)) == (2076, 1024, 1)


def test_identical_requests_are_one_unit(greedy_pool: Pool) -> None:
    assert (len(greedy_pool.start), greedy_pool.num_units) == (68, 66)
    calibration, judged = split_units(greedy_pool.unit, 0)
    assert not set(greedy_pool.unit[calibration]) & set(greedy_pool.unit[judged])
    assert len(calibration) + len(judged) == 68
    drawn = resample_units(np.arange(68), greedy_pool.unit, np.random.default_rng(3))
    twins = [np.flatnonzero(greedy_pool.unit == unit) for unit in np.unique(greedy_pool.unit)]
    for twin in (twin for twin in twins if len(twin) > 1):
        assert len({int((drawn == request).sum()) for request in twin}) == 1


def test_sequences_are_whole_permutations() -> None:
    sample = np.array([4, 7, 9])
    sequence = request_sequences([sample, sample[:2]], 8, [[1], [2]])
    assert sequence.shape == (2, 9)
    for start in range(0, 9, 3):
        assert sorted(sequence[0, start : start + 3]) == [4, 7, 9]
    assert (sequence[1, 8:] == -1).all()
    np.testing.assert_array_equal(sequence[:1], request_sequences([sample], 8, [[1]]))
