"""A walk through a dense trace is the run of a real engine on the same prompts, block by block."""

from __future__ import annotations

import json

import numpy as np
from conftest import MODELS, K
from prompts import PROMPTS

from avsim.capture.dense.run import DenseSettings, run_dense


def trace(folder, temperature):
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    settings = DenseSettings(
        target=str(MODELS / "target"),
        drafter=f"draft-model:{MODELS / 'first-26-layers'}",
        prompts=(str(prompts),),
        num_slots=K,
        temperature=temperature,
        max_tokens=24,
        raw=True,
    )
    return run_dense(settings, folder / "dense")


def test_the_walk_is_the_live_run(runs, tmp_path):
    live = runs("cut-greedy")
    dense = trace(tmp_path, 0.0)
    assert dense.requests["prompt_len"].to_list() == live.trace.requests["prompt_len"].to_list()
    assert dense.requests["output_len"].to_list() == live.trace.requests["output_len"].to_list()
    walked = dense.blocks(("log_odds",))
    row_of = {
        (request, position): row
        for row, (request, position) in enumerate(zip(walked.request.tolist(), walked.position.tolist(), strict=True))
    }
    of_live = [
        row_of[request, position]
        for request, position in zip(live.blocks.request.tolist(), live.blocks.position.tolist(), strict=True)
    ]
    admitted = np.asarray(live.blocks.num_admitted)
    assert len(of_live) > 100
    # The engine drafts less where an output is about to reach its limit.
    assert (admitted == K).mean() > 0.8
    accepted = np.minimum(np.asarray(walked.num_accepted)[of_live], admitted)
    assert accepted.tolist() == np.asarray(live.blocks.num_accepted).tolist()
    first = live.blocks.features["log_odds"][0]
    drafted = np.isfinite(first)
    np.testing.assert_allclose(first[drafted], walked.features["log_odds"][0][of_live][drafted], atol=2e-3)


def test_sampled_runs_accept_alike(runs, tmp_path):
    """At T > 0 outputs differ, but accepted tokens per block on the path must agree within their noise."""
    live = runs("cut-sampled")
    dense = trace(tmp_path, 0.8)
    blocks = dense.blocks()
    accepted, position, request = (np.asarray(x) for x in (blocks.num_accepted, blocks.position, blocks.request))
    walked = []
    for one in range(len(PROMPTS)):
        at, mine = 0, dict(zip(position[request == one].tolist(), accepted[request == one].tolist(), strict=True))
        while at in mine:
            walked.append(mine[at])
            at += mine[at] + 1
    full = np.asarray(live.blocks.num_admitted) == K
    seen = np.asarray(live.blocks.num_accepted)[full]
    noise = np.sqrt(np.var(walked) / len(walked) + np.var(seen) / len(seen))
    assert noise < 0.25
    assert abs(np.mean(walked) - np.mean(seen)) < 4 * noise
