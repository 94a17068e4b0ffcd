"""What a replay says about exactness comes from the same classification."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from avsim.config import ReplayConfig
from avsim.report.open_summary import left_out_blocks
from avsim.runs import run_replay
from avsim.sources import Trace, TraceCard, write_trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic

TRACES = Path(__file__).parent.parent.parent.parent / "traces"
FAST = ReplayConfig(
    trace=str(TRACES / "smollm2-eagle1-sampled"),
    cost="deepseek-v4-flash-tp4-b300",
    what_if=True,
    concurrency=(2,),
    policies=("adaptive",),
    baselines=("none", "oracle"),
    bootstrap=20,
)


def gappy(path: Path, draft_sampling: str, gaps: bool) -> tuple[Trace, int]:
    """Write an on-policy trace in which requests miss steps or do not, and count the blocks that follow a gap."""
    rng = np.random.default_rng(3)
    position, seen, rows, after_gap = dict.fromkeys(range(40), 0), {}, [], 0
    for step in range(5, 60):
        for request in range(40) if not gaps else sorted(rng.choice(40, size=30, replace=False).tolist()):
            accepted = int(rng.integers(0, 3))
            odds: dict[str, Any] = {f"log_odds_{slot}": float(rng.normal()) for slot in range(2)}
            verdict = {"num_drafted": 2, "num_admitted": 2, "num_accepted": accepted}
            rows.append({"step": step, "request": request, "position": position[request]} | verdict | odds)
            after_gap += request in seen and seen[request] < step - 1
            position[request] += accepted + 1
            seen[request] = step
    requests = pl.DataFrame({"request": range(40), "source": range(40)}).with_columns(
        prompt_len=pl.lit(5), output_len=pl.lit(400), temperature=pl.lit(1.0)
    )
    card = TraceCard(
        name="synthetic-gappy",
        kind="on-policy",
        target="t",
        drafter="d",
        drafter_kind="synthetic",
        num_speculative_tokens=2,
        draft_sampling=draft_sampling,  # type: ignore[arg-type]
        acceptance_rule="standard",
        temperature=1.0,
        synthetic=True,
        complete_blocks=True,
    )
    frame = pl.DataFrame(rows).with_columns(pl.col("^log_odds_.*$").cast(pl.Float32))
    return write_trace(path / "trace", card, requests, [frame]), after_gap


def open_run(path: Path, draft_sampling: str, gaps: bool) -> tuple[dict[str, Any], int]:
    trace, after_gap = gappy(path, draft_sampling, gaps)
    assert left_out_blocks(trace) == after_gap
    assert left_out_blocks(trace, min_rows=50) == after_gap
    config = replace(FAST, trace=str(trace.path), loop="open", warm_refits=0)
    return run_replay(config, workers=1).summary, after_gap


def test_an_open_loop_counts_the_blocks_that_follow_a_missed_step(tmp_path: Path) -> None:
    summary, after_gap = open_run(tmp_path, "probabilistic", True)
    assert after_gap > 100
    (note,) = [note for note in summary["notes"] if "LOSSY" in note]
    assert "adaptive: a request left out of one step is sized on its live confidences" in note
    assert f"({after_gap:,} blocks here)" in note
    arms = {arm["policy"]: arm["lossless"]["exact"] for arm in summary["loads"][0]["arms"]}
    assert arms == {"none": True, "oracle": False, "adaptive": False}


@pytest.mark.parametrize(("draft_sampling", "gaps"), [("probabilistic", False), ("greedy", True)])
def test_no_leak_without_missed_steps_or_with_greedy_drafts(draft_sampling: str, gaps: bool, tmp_path: Path) -> None:
    summary, after_gap = open_run(tmp_path, draft_sampling, gaps)
    assert (after_gap > 0) == gaps
    assert not any("LOSSY" in note for note in summary["notes"])
    (adaptive,) = [arm for arm in summary["loads"][0]["arms"] if arm["policy"] == "adaptive"]
    assert adaptive["lossless"]["exact"]


def test_a_closed_loop_holds_the_class_of_every_arm(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "s", SyntheticLaw(num_requests=12, output_len=20, num_speculative_tokens=3))
    card = tmp_path / "s" / "trace.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"draft_sampling": "probabilistic", "temperature": 1.0}))
    arms = run_replay(replace(FAST, trace=str(tmp_path / "s"), lag=0), workers=1).summary["loads"][0]["arms"]
    found = {arm["policy"]: arm["lossless"] for arm in arms}
    assert found["none"]["exact"]
    assert found["oracle"] == {"exact": False, "reason": "it reads the verdict"}
    assert found["adaptive"] == {"exact": False, "reason": "its budget is a global argmax on live confidences"}
