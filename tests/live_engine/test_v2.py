"""Model Runner V2: traces from an engine under Triton's interpreter, and the parts of its hooks that need no engine.

Runs in the environment that `setup_v2.py` makes, which has Triton.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from conftest import MODELS, REPOSITORY, Run, engine_environment
from prompts import PROMPTS

from avsim.capture import vllm_v2
from avsim.capture.reduce import feature_names, reduce_logits
from avsim.capture.vllm_v2_device import DeviceTables

K = 3
CUT = {"method": "draft_model", "model": str(MODELS / "first-26-layers"), "num_speculative_tokens": K}
ITSELF = CUT | {"model": str(MODELS / "target"), "draft_sample_method": "probabilistic"}
COSTS = {"draft_ms": [[1, 2.0], [8, 3.0]], "verify_ms": [[1, 3.0], [4, 3.2], [8, 4.0], [16, 6.0], [32, 11.0]]}
JOBS = {
    "plain": {"speculative": None},
    "cut": {"speculative": CUT},
    "adaptive": {"speculative": CUT, "adaptive": COSTS, "async_scheduling": True},
    "itself-sampled": {"speculative": ITSELF, "temperature": 0.8, "max_tokens": 10},
}
RECORDED = ["cut", "adaptive", "itself-sampled"]


@pytest.fixture(scope="module")
def v2_runs(package, tmp_path_factory):
    """`v2_runs(name)` runs an engine, once."""
    folder = tmp_path_factory.mktemp("v2")
    done: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in done:
            assert not (folder / name).exists(), "the run failed before"
            done[name] = run_engine(name, folder / name, package)
        return done[name]

    return run


def run_engine(name, folder, package):
    folder.mkdir()
    # More requests than run at a time, some of which stop before their limit.
    job = {"model": str(MODELS / "target"), "prompts": PROMPTS[:6], "max_num_seqs": 4, "max_tokens": 14}
    (folder / "job.json").write_text(json.dumps(job | {"stop_token_ids": [30]} | JOBS[name]))
    environment = engine_environment(package, AVSIM_TRACE_TOP_M="1", AVSIM_TRACE_DIR=str(folder / "capture"))
    words = [sys.executable, str(REPOSITORY / "tests/live_engine/run_engine_v2.py"), str(folder / "job.json")]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return Run(folder, environment, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr)


@pytest.mark.parametrize("name", RECORDED)
def test_counts_are_those_of_the_engine(v2_runs, name):
    run = v2_runs(name)
    blocks, counters = run.blocks, run.said["counters"]
    accepted, admitted = np.asarray(blocks.num_accepted), np.asarray(blocks.num_admitted)
    adaptive = name == "adaptive"
    # The engine counts what it scheduled; with adaptive verification less than that is verified.
    assert counters["num_drafts"] == (len(accepted) if adaptive else (admitted > 0).sum()) > 8
    assert (
        (admitted.sum() < counters["num_draft_tokens"])
        if adaptive
        else (admitted.sum() == counters["num_draft_tokens"])
    )
    assert counters["num_accepted_tokens"] == accepted.sum()
    assert list(counters["num_accepted_tokens_per_pos"]) == [(accepted > slot).sum() for slot in range(K)]
    assert "dropped" not in run.trace.card.notes


@pytest.mark.parametrize("name", RECORDED)
def test_blocks_tell_every_output_token(v2_runs, name):
    run = v2_runs(name)
    lengths = [len(ids) for ids in run.said["output_ids"]]
    assert run.trace.requests["prompt_len"].to_list() == [len(ids) for ids in run.said["prompt_ids"]]
    assert run.trace.requests["output_len"].to_list() == lengths
    assert "6 finished" in run.trace.card.notes
    for request, length in enumerate(lengths):
        mine = np.flatnonzero(run.blocks.request == request)
        expected = 0  # the prefill's token
        for position, accepted in zip(run.blocks.position[mine], run.blocks.num_accepted[mine], strict=True):
            assert position == expected < length - 1
            expected = position + accepted + 1
        assert expected >= length - 1


@pytest.mark.parametrize("name", ["cut", "adaptive"])
def test_greedy_output_is_that_without_speculation(v2_runs, name):
    plain, run = v2_runs("plain").said, v2_runs(name).said
    assert set(plain["finish"]) == {"stop", "length"}
    assert run["output_ids"] == plain["output_ids"]
    assert run["async_scheduling"] is (name == "adaptive")


def test_blocks_are_what_the_engines_estimator_saw(v2_runs):
    run = v2_runs("adaptive")
    checked = 0
    for request, observed in enumerate(run.said["observed"]):
        mine = np.flatnonzero(run.blocks.request == request)
        # The first is the prefill's; the engine goes on past the end of an output.
        for row, entry in zip(mine, observed[1:], strict=False):
            assert run.blocks.num_admitted[row] == entry["admitted"]
            assert run.blocks.num_accepted[row] == entry["accepted"]
            features = [run.blocks.features["log_odds_f32"][slot][row] for slot in range(K)]
            assert features == pytest.approx(entry["features"], rel=1e-5, abs=1e-5)
            confidences = [run.blocks.features["confidence"][slot][row] for slot in range(K)]
            assert confidences == pytest.approx(entry["predictions"], rel=1e-6)
            checked += 1
    assert checked == len(run.blocks.request)


def test_card_says_what_ran(v2_runs):
    for name in RECORDED:
        card = v2_runs(name).trace.card
        assert card.adaptive_verification is (name == "adaptive")
        assert card.draft_sampling == ("probabilistic" if name == "itself-sampled" else "greedy")
        assert (card.drafter_kind, card.acceptance_rule) == ("draft-model", "standard")
        assert card.num_speculative_tokens == K


def test_a_model_that_drafts_for_itself_is_nearly_always_accepted(v2_runs):
    blocks = v2_runs("itself-sampled").blocks
    assert blocks.num_accepted.sum() > 0.93 * blocks.num_admitted.sum()
    drafted = np.arange(K)[:, None] < blocks.num_drafted
    logprob, top, total = (
        np.array(blocks.features[name])[drafted] for name in ("draft_logprob", "top_logit_0", "logsumexp")
    )
    drawn = logprob < top - total - 1e-4  # not the likeliest token
    assert (logprob <= top - total + 1e-4).all()
    assert 0.05 < drawn.mean() < 0.9


def test_steps_are_known(v2_runs):
    steps = v2_runs("adaptive").trace.steps()
    assert steps["num_prefill_tokens"].sum() == sum(len(ids) for ids in v2_runs("adaptive").said["prompt_ids"])
    assert steps["kv_tokens"][0] == 0
    assert steps["kv_tokens"][1] == steps["num_prefill_tokens"][0]
    assert steps["forward_ms"].min() > 0
    assert steps["drafter_ms"].min() > 0


def test_padded_rows_of_a_graph_leave_the_table_alone():
    tables = DeviceTables(4, K, feature_names(2), 2, torch.device("cpu"))
    logits, temperature = torch.randn(3, 40), torch.tensor([0.0, 0.5, 0.0, 2.0])
    tables.write(logits, torch.tensor([3, -1, 1]), torch.tensor(2), temperature)
    written = tables.table[:4].isfinite().all(dim=2)
    assert written.nonzero().tolist() == [[1, 2], [3, 2]]
    expected = reduce_logits(logits[:1], torch.tensor([2.0]), 2)
    assert tables.table[3, 2].tolist() == pytest.approx([expected[name].item() for name in tables.names])


def test_a_whole_block_may_be_drafted_in_one_pass():
    tables = DeviceTables(4, K, feature_names(0), 0, torch.device("cpu"))
    logits = torch.randn(2 * K, 40)
    tables.write(logits, torch.tensor([2] * K + [0] * K), torch.arange(K).repeat(2), torch.zeros(4))
    expected = reduce_logits(logits, None, 0)["log_odds"].view(2, K)
    assert torch.equal(tables.table[[2, 0], :, 0], expected)


def test_draft_logprob_is_of_the_drawn_token():
    tables = DeviceTables(4, K, feature_names(0), 0, torch.device("cpu"))
    cache, temperature = torch.randn(4, K, 40), torch.tensor([0.0, 0.7, 0.0, 0.0])
    for slot in range(K):
        tables.write(cache[[1], slot], torch.tensor([1]), torch.tensor(slot), temperature)
    ids = torch.tensor([[5, 6, 7]])
    step = tables.copy(torch.tensor([1]), [ids], (cache, ids, temperature))
    expected = (cache[1] / 0.7).log_softmax(dim=1).gather(1, ids.T)[:, 0]
    assert step.feature(tables.names.index("draft_logprob"))[0] == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_module_without_the_methods_is_left_alone():
    module = ModuleType("runner")
    assert vllm_v2.install(module, "0.33.0") == ["GPUModelRunner", "DraftModelSpeculator"]
    module.GPUModelRunner = type("GPUModelRunner", (), dict.fromkeys(("load_model", "sample_tokens"), print))
    module.DraftModelSpeculator = type("DraftModelSpeculator", (), {"_maybe_predict_acceptance": print})
    before = dict(vars(module.GPUModelRunner))
    assert vllm_v2.install(module, "0.33.0") == ["GPUModelRunner.execute_model"]
    assert dict(vars(module.GPUModelRunner)) == before


def test_an_engine_without_speculation_is_not_recorded(v2_runs):
    run = v2_runs("plain")
    assert run.log.count("speculative decoding is off") == 1
    assert not (run.folder / "capture").exists()
