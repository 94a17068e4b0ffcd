"""Transformers' assisted generation, recorded, against plain generation and the models' own logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MODELS
from prompts import PROMPTS
from transformers import AutoModelForCausalLM, AutoTokenizer

from avsim.capture.assisted import record_assisted
from avsim.errors import InputError
from avsim.features import log_odds, log_odds_f32
from avsim.sources.importers import import_trace

K = 4
LENGTH = 24


@pytest.fixture(scope="module")
def target():
    return AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def assistant():
    model = AutoModelForCausalLM.from_pretrained(MODELS / "first-26-layers", dtype=torch.float32).eval()
    model.generation_config.assistant_confidence_threshold = 0.0
    return model


@pytest.fixture(scope="module")
def prompts():
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    return [tokenizer(prompt, return_tensors="pt") for prompt in PROMPTS[:5]]


def generate(model, prompts, **options):
    torch.manual_seed(0)
    return [model.generate(**prompt, max_new_tokens=LENGTH, **options)[0].tolist() for prompt in prompts]


def captured(folder):
    trace = import_trace("capture", folder / "capture", folder / "trace")
    return trace, trace.blocks(trace.card.recorded)


def test_every_output_token_is_told_and_outputs_stay_the_same(target, assistant, prompts, tmp_path):
    plain = generate(target, prompts, do_sample=False)
    with record_assisted(tmp_path / "capture", target, num_speculative_tokens=K, category="own") as capture:
        assert generate(target, prompts, do_sample=False, assistant_model=assistant) == plain
    assert "_get_candidate_generator" not in vars(target)
    assert capture.recorder.counters["dropped_blocks"] == {}
    trace, blocks = captured(tmp_path)
    lengths = [len(ids) - prompt["input_ids"].shape[1] for ids, prompt in zip(plain, prompts, strict=True)]
    assert trace.requests["output_len"].to_list() == lengths
    assert trace.requests["category"].to_list() == ["own"] * len(prompts)
    assert (trace.card.engine, trace.card.drafter, trace.card.drafter_kind) == (
        "transformers",
        "first-26-layers",
        "draft-model",
    )
    checked = 0
    for request, (ids, prompt) in enumerate(zip(plain, prompts, strict=True)):
        mine = np.flatnonzero(blocks.request == request)
        expected = int(blocks.position[mine[0]])
        for row in mine:
            position, accepted = int(blocks.position[row]), int(blocks.num_accepted[row])
            assert position == expected
            expected = position + accepted + 1
            prefix = ids[: prompt["input_ids"].shape[1] + position + 1]
            if row % 3 == 0:
                checked += check_block(assistant, prefix, ids, blocks, row)
        assert expected >= lengths[request] - 1
    assert checked > 20


def check_block(assistant, prefix, output, blocks, row):
    """Draft the block again, one token at a time; return how many slots were compared."""
    matches = True
    for slot in range(int(blocks.num_drafted[row])):
        with torch.inference_mode():
            logits = assistant(torch.tensor([prefix])).logits[:, -1].numpy()
        recorded = {name: values[slot][row] for name, values in blocks.features.items()}
        assert recorded["log_odds"] == pytest.approx(log_odds(logits)[0], abs=2e-3)
        assert recorded["log_odds_f32"] == pytest.approx(log_odds_f32(logits)[0], abs=2e-3, rel=1e-3)
        token = int(logits[0].argmax())
        if slot < blocks.num_admitted[row]:
            matches = matches and output[len(prefix)] == token
            assert matches == (slot < blocks.num_accepted[row])
        prefix = [*prefix, token]
    return int(blocks.num_drafted[row])


def test_a_model_that_drafts_for_itself_is_always_accepted(target, prompts, tmp_path):
    itself = AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32).eval()
    itself.generation_config.assistant_confidence_threshold = 0.0
    with record_assisted(tmp_path / "capture", target, num_speculative_tokens=K):
        generate(target, prompts, do_sample=True, temperature=1.0, top_k=0, assistant_model=itself)
    trace, blocks = captured(tmp_path)
    assert trace.card.draft_sampling == "probabilistic"
    assert trace.card.temperature == 1.0
    admitted, accepted = np.asarray(blocks.num_admitted), np.asarray(blocks.num_accepted)
    assert admitted.sum() > 60
    assert accepted.sum() >= 0.97 * admitted.sum()
    surplus = (blocks.features["draft_logprob"] + blocks.features["entropy"]).ravel()
    surplus = surplus[np.isfinite(surplus)]  # of mean 0, as entropy is E[−ln q(d)]
    assert abs(surplus.mean()) < 4 * surplus.std() / np.sqrt(len(surplus))


def test_prompt_lookup_has_counts_alone(target, prompts, tmp_path):
    plain = generate(target, prompts, do_sample=False)
    with record_assisted(tmp_path / "capture", target, num_speculative_tokens=3):
        assert generate(target, prompts, do_sample=False, prompt_lookup_num_tokens=9) == plain
    trace, blocks = captured(tmp_path)
    assert trace.card.drafter_kind == "ngram"
    assert trace.card.recorded == ()
    assert 0 < np.asarray(blocks.num_drafted).max() <= 3


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with (
        pytest.raises(InputError, match="object has no assisted generation"),
        record_assisted(tmp_path, object(), num_speculative_tokens=2),
    ):
        pass
