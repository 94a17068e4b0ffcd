"""`avsim cost profile` on real torch code: packed steps are the model's own, and a profile becomes a working table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MODELS, REPOSITORY
from typer.testing import CliRunner

from avsim.capture.dense.model import Model
from avsim.cli.main import app
from avsim.costs import load
from avsim.costs.base import StepShape
from avsim.costs.profile.decoder_shape import parse_shape
from avsim.costs.profile.machine import free_bytes
from avsim.costs.profile.packed import KvPool, PackedStep
from avsim.costs.profile.plan import ProfilePlan
from avsim.costs.profile.random_decoder import RandomDecoder
from avsim.costs.profile.random_runner import random_runner
from avsim.costs.profile.runner import Runner
from avsim.costs.profile.transformers_runner import packed_states, transformers_runner
from avsim.errors import InputError

TINY = "layers=2,hidden=32,heads=4,kv_heads=2,intermediate=48,vocab=97"
MOE = f"{TINY},experts=6,top_k=2"
PLAN = ProfilePlan(tokens=(1, 6), contexts=(8,), requests=(1, 2), num_slots=3)


@pytest.fixture(scope="module")
def runner():
    return transformers_runner(str(MODELS / "target"), "draft-model:first-26", "cpu", "float32")


@pytest.fixture(scope="module")
def own():
    """The same model with Transformers' own attention."""
    return Model.load(str(MODELS / "target"))


def ids_of(queries, context, vocab, seed=0):
    """Token ids of each request: `context` of the prefix, then its queries."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (context + count,), generator=generator) for count in sorted(queries, reverse=True)]


def steps(queries, context, pool):
    """The step that fills the prefixes, and the one on top of them."""
    length = context + max(queries)
    prefix = PackedStep((context,) * len(queries), 0, pool, "target", length)
    return prefix, PackedStep(queries, context, pool, "target", length)


@torch.inference_mode()
def test_packed_steps_of_a_transformers_model_are_its_own_forward_pass(runner, own):
    queries, context = (1, 3, 6, 3), 7
    ids = ids_of(queries, context, own.vocab_size)
    prefix, step = steps(queries, context, runner.pool)
    packed_states(runner.target, torch.cat([one[:context] for one in ids]), prefix)
    found = packed_states(runner.target, torch.cat([one[context:] for one in ids]), step)
    wanted = torch.cat([own.hidden(one)[context:] for one in ids])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-3)
    assert (own.logits(found).argmax(-1) == own.logits(wanted).argmax(-1)).float().mean() > 0.9


@pytest.mark.parametrize("shape", [TINY, MOE])
@torch.inference_mode()
def test_packed_steps_of_a_random_decoder_do_not_depend_on_the_packing(shape):
    decoder = RandomDecoder(parse_shape(shape), "cpu", "float32", torch.Generator().manual_seed(1))
    queries, context = (2, 5, 1), 4
    ids = ids_of(queries, context, 97)

    def states(tokens, step):
        return decoder.states(decoder.embedding[tokens], step, decoder.rotary(step.positions))

    prefix, step = steps(queries, context, KvPool("cpu", torch.float32))
    states(torch.cat([one[:context] for one in ids]), prefix)
    found = states(torch.cat([one[context:] for one in ids]), step)
    alone = [states(one, PackedStep((len(one),), 0, KvPool("cpu", torch.float32), "target"))[context:] for one in ids]
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_experts_are_those_that_a_loop_over_tokens_meets():
    decoder = RandomDecoder(parse_shape(MOE), "cpu", "float32", torch.Generator().manual_seed(2))
    layer, x = decoder.layers[0], torch.randn(5, 32)
    weight, chosen = (x @ layer["router"].T).topk(2)
    wanted = torch.zeros_like(x)
    for row in range(5):
        for share, expert in zip(weight[row].softmax(0), chosen[row], strict=True):
            gate, up = (x[row] @ layer["up"][expert]).chunk(2)
            wanted[row] += share * ((torch.nn.functional.silu(gate) * up) @ layer["down"][expert])
    torch.testing.assert_close(decoder._feed_forward(x, layer), wanted, rtol=1e-4, atol=1e-5)


def test_a_llama_of_transformers_has_the_weights_that_a_shape_counts():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = parse_shape(TINY)
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=97, tie_word_embeddings=True,
    )  # fmt: skip
    counted = sum(weight.numel() for weight in LlamaForCausalLM(config).parameters())
    assert shape.params == counted - 32  # the final norm


def test_steps_leave_the_cache_as_it_was(runner):
    """A step run twice gives the same tokens, with another step between."""
    step, other = runner.verify((4, 4), 16), runner.verify((1,) * 3, 16)
    first = step()
    again = step()
    assert torch.equal(first, again)
    other()
    assert step().shape == first.shape
    draft = runner.draft(3, 4, 16)
    assert torch.equal(draft(), draft())


@torch.inference_mode()
def test_a_draft_model_drafts_what_its_own_greedy_decoding_gives(runner, own):
    """Each pass feeds the token before it, at the next position, on the cache of the passes before."""
    own = own.first_layers(26)
    ids = ids_of((1,), 6, own.vocab_size)[0]
    wanted = ids.clone()
    for _ in range(3):
        wanted = torch.cat([wanted, own.logits(own.hidden(wanted)[-1:]).argmax(-1)])
    prefix = PackedStep((6,), 0, runner.pool, "drafter", length=9)
    packed_states(runner.drafter.model, ids[:6], prefix)
    torch.manual_seed(0)
    draft = runner.draft(1, 3, 6)
    cells = dict(zip(draft.__code__.co_freevars, (cell.cell_contents for cell in draft.__closure__), strict=True))
    cells["first"].copy_(ids[6:7])
    assert draft().tolist() == wanted[-1:].tolist()


def test_runners_have_the_interface(runner):
    tiny = random_runner(parse_shape(MOE), "eagle", "cpu", "bfloat16", PLAN)
    for one in (runner, tiny):
        assert isinstance(one, Runner)
        assert one.verify((2, 1), 8)().shape == (3,)
        assert one.draft(2, 3, 8)().shape == (2,)
        assert {"model", "hardware", "vocab_size", "drafter_kind", "threads", "config_sha256"} <= one.describe().keys()
    assert "random weights" in tiny.describe()["weights"]
    assert "overstated" in tiny.describe()["experts"]


def test_what_does_not_fit_is_refused_before_it_is_allocated():
    layers = 2 * free_bytes("cpu") // (12 * 4096**2 * 4)
    shape = parse_shape(f"layers={layers},hidden=4096,heads=32,kv_heads=8,intermediate=11008,vocab=97")
    with pytest.raises(InputError, match=r"not enough memory on cpu: .* GiB wanted \(weights .*, KV cache"):
        random_runner(shape, None, "cpu", "float32", PLAN)
    wide = replace(PLAN, contexts=(10**9,))
    with pytest.raises(InputError, match=r"KV cache .* GiB free"):
        random_runner(parse_shape(TINY), None, "cpu", "float32", wide)


def avsim(*words):
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.replace("\n", " ")


def test_from_a_profile_to_a_replay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--shape", TINY, "--drafter", "eagle", "--k", 5, "--tokens", "1,2,4,8", "--context", "16,64"]
    avsim("cost", "profile", *words, "--threads", 1, "--repeats", 6, "--out", "tiny.json")
    data = json.loads(Path("tiny.json").read_text(encoding="utf-8"))
    assert data["card"]["kind"] == "measured"
    assert data["card"]["model"] == f"random weights: {parse_shape(TINY)}"
    assert data["profile"]["measured"]["threads"] == "1"
    assert "Weights: random weights" in avsim("cost", "show", "tiny.json")
    model = load("tiny.json")
    shape = StepShape(np.array([1]), np.array([6]), np.array([16.0]), np.array([0]))
    assert 0 < model.step_ms(shape, drafting=True)[0] < 1e4
    words = [
        "--what-if",
        "--concurrency",
        8,
        "--baseline",
        "none,fixed:5",
        "--policy",
        "adaptive",
        "--bootstrap",
        20,
    ]
    said = avsim("replay", REPOSITORY / "traces/smollm2-eagle1-greedy", "--cost", "tiny.json", *words)
    assert "random weights" in said
    words = ["--model", "x", "--hardware", "y", "--kind", "linear"]
    assert "fit.json: linear cost model" in avsim("cost", "fit", "tiny.csv", *words, "--out", "fit.json")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_steps_are_graphs_up_to_the_capture_limit(tmp_path):
    out = tmp_path / "gpu.json"
    words = ["--shape", f"{MOE},head_dim=16", "--drafter", "eagle", "--k", 3, "--tokens", "1,2,4,8,16", "--context", 64]
    words += ["--device", "cuda", "--dtype", "bfloat16", "--capture-limit", 8, "--flush-l2", "--repeats", 6]
    avsim("cost", "profile", *words, "--out", out)
    data = json.loads(out.read_text(encoding="utf-8"))
    modes = {cell["num_tokens"]: cell["graph_mode"] for cell in data["profile"]["cells"] if not cell["depth"]}
    assert modes == {1: "full", 2: "full", 4: "full", 8: "full", 16: "none"}
    assert data["capture_limit"] == 8
    assert "capture_failed" not in data["profile"]["measured"]
