"""A trace recorded from a real engine, against what the engine says of itself and against Transformers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from conftest import MODELS, K
from transformers import AutoModelForCausalLM

from avsim.features import log_odds, log_odds_f32

RECORDED = ["cut-greedy", "cut-sampled", "itself-sampled", "ngram-greedy", "ngram-sampled"]


@pytest.mark.parametrize("name", RECORDED)
def test_counts_are_those_of_the_engine(runs, name):
    run = runs(name)
    blocks, counters = run.blocks, run.said["counters"]
    accepted = np.asarray(blocks.num_accepted)
    assert counters["num_drafts"] == (np.asarray(blocks.num_admitted) > 0).sum() > 20
    assert counters["num_draft_tokens"] == blocks.num_admitted.sum()
    assert counters["num_accepted_tokens"] == accepted.sum()
    assert list(counters["num_accepted_tokens_per_pos"]) == [(accepted > slot).sum() for slot in range(K)]


@pytest.mark.parametrize("name", RECORDED)
def test_blocks_tell_every_output_token(runs, name):
    run = runs(name)
    requests = run.trace.requests
    lengths = [len(ids) for ids in run.said["output_ids"]]
    assert requests["prompt_len"].to_list() == [len(ids) for ids in run.said["prompt_ids"]]
    assert requests["output_len"].to_list() == lengths
    for request, length in enumerate(lengths):
        mine = np.flatnonzero(run.blocks.request == request)
        expected = 0  # the prefill's token
        for position, accepted in zip(run.blocks.position[mine], run.blocks.num_accepted[mine], strict=True):
            assert position == expected < length - 1
            expected = position + accepted + 1
        assert expected >= length - 1


@pytest.mark.parametrize("name", RECORDED)
def test_card_says_what_ran(runs, name):
    card = runs(name).trace.card
    assert card.engine == "vllm"
    assert card.kind == "on-policy"
    assert card.num_speculative_tokens == K
    assert card.drafter_kind == ("ngram" if name.startswith("ngram") else "draft-model")
    assert card.draft_sampling == ("probabilistic" if name.startswith("itself") else "greedy")
    assert card.temperature == (0.8 if name.endswith("sampled") else 0.0)
    assert ("log_odds" in card.recorded) is not name.startswith("ngram")


def test_a_model_that_drafts_for_itself_is_nearly_always_accepted(runs):
    blocks = runs("itself-sampled").blocks
    accepted, admitted = blocks.num_accepted.sum(), blocks.num_admitted.sum()
    print(f"self-draft at T = 0.8: {accepted} of {admitted} accepted")
    assert accepted > 0.93 * admitted


@pytest.mark.parametrize(("name", "temperature"), [("cut-greedy", 1.0), ("cut-sampled", 0.8)])
def test_features_are_those_that_transformers_gives(runs, name, temperature):
    run = runs(name)
    model = AutoModelForCausalLM.from_pretrained(MODELS / "first-26-layers", dtype=torch.float32).eval()
    checked = 0
    for row in np.linspace(0, len(run.blocks.request) - 1, 9).astype(int):
        request, position = int(run.blocks.request[row]), int(run.blocks.position[row])
        prefix = run.said["prompt_ids"][request] + run.said["output_ids"][request][: position + 1]
        for slot in range(int(run.blocks.num_drafted[row])):
            with torch.inference_mode():
                logits = model(torch.tensor([prefix])).logits[:, -1].numpy() / temperature
            recorded = {name: values[slot][row] for name, values in run.blocks.features.items()}
            assert recorded["log_odds"] == pytest.approx(log_odds(logits)[0], abs=2e-3)
            assert recorded["log_odds_f32"] == pytest.approx(log_odds_f32(logits)[0], abs=2e-3, rel=1e-3)
            top = -np.sort(-logits[0])[:8]
            chances = np.exp(logits[0].astype(np.float64) - top[0])
            total = chances.sum()
            chances /= total
            assert recorded["logsumexp"] == pytest.approx(top[0] + np.log(total), abs=2e-3)
            assert recorded["draft_logprob"] == pytest.approx(-np.log(total), abs=2e-3)
            assert recorded["margin"] == pytest.approx(top[0] - top[1], abs=2e-3)
            assert recorded["entropy"] == pytest.approx(-(chances * np.log(chances + 1e-300)).sum(), abs=4e-3)
            assert [recorded[f"top_logit_{rank}"] for rank in range(8)] == pytest.approx(list(top), abs=2e-3)
            prefix = [*prefix, int(logits[0].argmax())]
            checked += 1
    assert checked > 30


def test_a_drawn_token_has_the_log_probability_it_was_drawn_with(runs):
    features = runs("itself-sampled").blocks.features
    surplus = (features["draft_logprob"] + features["entropy"]).ravel()  # of mean 0, as entropy is E[−ln q(d)]
    surplus = surplus[np.isfinite(surplus)]
    assert surplus.std() > 0.1
    assert abs(surplus.mean()) < 4 * surplus.std() / np.sqrt(len(surplus))


def test_outputs_do_not_change(runs):
    with_plugin, without = runs("cut-greedy").said, runs("cut-greedy-without").said
    assert with_plugin["hook_s"] is not None
    assert without["hook_s"] is None, "the hooks were loaded although no capture was asked for"
    assert with_plugin["output_ids"] == without["output_ids"] == runs("ngram-greedy").said["output_ids"]
    assert with_plugin["counters"] == without["counters"]


def test_an_unwritable_folder_switches_capture_off_in_one_line(runs):
    failed = runs("ngram-unwritable")
    assert failed.said["output_ids"] == runs("ngram-greedy").said["output_ids"]
    lines = [line for line in failed.log.splitlines() if re.search(r"capture\b.*\boff\b", line)]
    assert len(lines) == 1, lines


@pytest.mark.parametrize("name", ["cut-greedy", "ngram-greedy"])
def test_print_the_overhead(runs, name):
    said = runs(name).said
    ratio = said["elapsed_s"] / (said["elapsed_s"] - said["hook_s"])
    print(f"{name}: {said['elapsed_s']:.2f} s with the hooks, {ratio:.4f} times the same without")
    assert said["hook_s"] > 0, "the hooks were not attached, so the ratio says nothing"
