"""The dense tracer against plain one-prefix-at-a-time loops, on tiny random models."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from avsim.capture.dense import run  # noqa: E402
from avsim.capture.dense.drafters import load_drafter  # noqa: E402
from avsim.capture.dense.drafters.draft_model import DraftModel  # noqa: E402
from avsim.capture.dense.generate import generate  # noqa: E402
from avsim.capture.dense.model import Model  # noqa: E402
from avsim.capture.dense.run import DenseSettings, run_dense  # noqa: E402
from avsim.capture.dense.tracer import Sampling, trace_request  # noqa: E402
from avsim.capture.dense.verify import couple  # noqa: E402
from avsim.errors import InputError  # noqa: E402
from avsim.features import log_odds  # noqa: E402
from avsim.sources import validate_trace  # noqa: E402

VOCAB, K, WIDTH = 64, 4, 32


def config(layers=2, **other):
    return transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=2, initializer_range=0.25, **other,
    )  # fmt: skip


def llama(seed, layers=2):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config(layers)).eval()


@pytest.fixture(scope="module", autouse=True)
def _no_grad():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def target():
    return Model.of(llama(0), "target")


@pytest.fixture(scope="module")
def draft_lm():
    # The target with its weights shaken: drafts that are often right.
    lm = llama(0)
    torch.manual_seed(5)
    for weight in lm.parameters():
        weight.data += 0.04 * torch.randn_like(weight)
    return lm


@pytest.fixture(scope="module")
def eagle_folder(tmp_path_factory):
    safetensors = pytest.importorskip("safetensors.torch")
    folder = tmp_path_factory.mktemp("eagle")
    weights = {k.removeprefix("model."): v for k, v in llama(7, layers=1).state_dict().items() if ".layers." in k}
    weights = {k: v.clone() for k, v in weights.items() if "input_layernorm" not in k}
    torch.manual_seed(8)
    weights["fc.weight"] = torch.randn(WIDTH, 2 * WIDTH) * 0.08
    safetensors.save_file(weights, folder / "model.safetensors")
    config(layers=1).save_pretrained(folder)
    return folder


def output_of(target, prompt, temperature=0.0, request=3, max_tokens=24, seed=0):
    return generate(
        target, [prompt], [request], max_tokens=max_tokens, past_end=K, temperature=temperature, seed=seed, ends={2}
    )[0]


def slow_draft_model(lm):
    def logits(known, hidden, drafted):
        return lm(torch.tensor([known + drafted])).logits[0, -1]

    return logits


def slow_eagle(target, folder):
    """EAGLE-1 from its weights with no cache and no layer class: rotary attention written out."""
    from safetensors.torch import load_file

    w = {name: value for name, value in load_file(folder / "model.safetensors").items()}
    heads, kv_heads = 4, 2
    dim = WIDTH // heads
    frequency = 10000.0 ** (-torch.arange(0, dim, 2) / dim)

    def norm(x):
        return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6) * w["layers.0.post_attention_layernorm.weight"]

    def rotate(x):
        angle = torch.arange(x.shape[0])[:, None] * frequency
        cos, sin = (torch.cat([f(angle)] * 2, dim=1)[:, None] for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], dim=-1) * sin

    def layer(x):
        q, k, v = (x @ w[f"layers.0.self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k = (rotate(t.view(len(x), -1, dim)) for t in (q, k))
        k, v = (t.view(len(x), kv_heads, dim).repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        score = torch.einsum("ihd,jhd->hij", q, k) / dim**0.5
        score = score.masked_fill(~torch.ones(len(x), len(x)).tril().bool(), -torch.inf)
        mixed = torch.einsum("hij,jhd->ihd", score.softmax(-1), v).reshape(len(x), -1)
        x = x + mixed @ w["layers.0.self_attn.o_proj.weight"].T
        y = norm(x)
        gate, up = (y @ w[f"layers.0.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        return x + (torch.nn.functional.silu(gate) * up) @ w["layers.0.mlp.down_proj.weight"].T

    table, head = target.lm.model.embed_tokens.weight, target.lm.lm_head.weight

    def logits(known, hidden, drafted):
        below = hidden[: len(known) - 1]
        for depth in range(len(drafted) + 1):
            x = torch.cat([table[torch.tensor((known + drafted)[1 : len(known) + depth])], below], dim=1)
            last = layer(x @ w["fc.weight"].T)[-1]
            below = torch.cat([below, last[None]])
        return last @ head.T

    return logits


PROMPT = [1, 17, 33, 9, 41, 5]


@pytest.mark.parametrize("kind", ["draft-model", "eagle"])
def test_blocks_are_those_of_a_plain_loop(kind, target, draft_lm, eagle_folder):
    if kind == "draft-model":
        drafter, slow = DraftModel(Model.of(draft_lm, "draft")), slow_draft_model(draft_lm)
    else:
        drafter, slow = load_drafter(f"eagle:{eagle_folder}", target), slow_eagle(target, eagle_folder)
    output = output_of(target, PROMPT)
    known = PROMPT + output.tokens
    frame = trace_request(target, drafter, PROMPT, output, Sampling(K, num_top=3, rows=7))
    assert frame["position"].to_list() == list(range(output.length - 1))
    assert frame["num_accepted"].n_unique() > 1 or kind == "eagle"
    hidden = target.lm.model(torch.tensor([known])).last_hidden_state[0]
    for row in frame.iter_rows(named=True):
        prefix, drafted, accepted = known[: len(PROMPT) + row["position"] + 1], [], 0
        for slot in range(K):
            z = slow(prefix, hidden, drafted)
            assert row[f"log_odds_{slot}"] == pytest.approx(log_odds(z[None].numpy())[0], abs=2e-3)
            assert row[f"top_logit_0_{slot}"] == pytest.approx(z.max().item(), abs=2e-3)
            assert row[f"draft_logprob_{slot}"] == pytest.approx(z.log_softmax(0).max().item(), abs=2e-3)
            drafted.append(int(z.argmax()))
            accepted += accepted == slot and drafted[slot] == known[len(prefix) + slot]
        assert row["num_accepted"] == accepted


def test_the_visited_blocks_are_those_of_real_greedy_speculation(target, draft_lm):
    output = output_of(target, PROMPT)
    frame = trace_request(target, DraftModel(Model.of(draft_lm, "draft")), PROMPT, output, Sampling(K))
    accepted_at = dict(zip(frame["position"], frame["num_accepted"], strict=True))
    known = [*PROMPT, output.tokens[0]]
    while len(known) < len(PROMPT) + output.length:
        position, drafted = len(known) - len(PROMPT) - 1, []
        for _ in range(K):
            drafted.append(int(draft_lm(torch.tensor([known + drafted])).logits[0, -1].argmax()))
        own = target.lm(torch.tensor([known + drafted])).logits[0, len(known) - 1 :].argmax(dim=1).tolist()
        accepted = next((n for n in range(K) if drafted[n] != own[n]), K)
        assert accepted_at[position] == accepted
        known += own[: accepted + 1]
    assert known[: len(PROMPT) + output.length] == PROMPT + output.tokens[: output.length]


def test_outputs_do_not_depend_on_the_batch(target):
    prompts = [PROMPT, [1, 8], [1, 30, 31, 32, 33, 34, 35, 36, 37, 38], [1, 60, 2, 11]]
    for temperature in (0.0, 0.9):
        together = generate(
            target, prompts, [3, 4, 5, 6], max_tokens=20, past_end=K, temperature=temperature, seed=1, ends={2, 7, 9}
        )
        for output, prompt in zip(together, prompts, strict=True):
            alone = generate(
                target, [prompt], [output.request], max_tokens=20, past_end=K, temperature=temperature, seed=1,
                ends={2, 7, 9},
            )[0]  # fmt: skip
            assert alone == output
            assert len(output.tokens) == output.length + K
            ended = output.tokens[output.length - 1] in {2, 7, 9}
            assert ended or output.length == 20
            assert not {2, 7, 9} & set(output.tokens[: output.length - 1])
    assert len({output.length for output in together}) > 1


def test_the_target_as_its_own_drafter_is_always_accepted(target):
    output = output_of(target, PROMPT, temperature=1.0)
    frame = trace_request(target, DraftModel(target), PROMPT, output, Sampling(K, 1.0, probabilistic=True))
    assert frame["num_accepted"].to_list() == [K] * frame.height
    assert frame["alpha_0"].min() == pytest.approx(1, abs=1e-4)
    assert frame["accept_prob_3"].min() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("probabilistic", [False, True])
def test_the_soft_labels_are_those_of_both_models_at_the_prefix(probabilistic, target, draft_lm):
    temperature = 0.8
    output = output_of(target, PROMPT, temperature)
    known = PROMPT + output.tokens
    how = Sampling(K, temperature, probabilistic=probabilistic, rows=5)
    frame = trace_request(target, DraftModel(Model.of(draft_lm, "draft")), PROMPT, output, how)
    reached = 0
    for row in frame.iter_rows(named=True):
        prefix = known[: len(PROMPT) + row["position"] + 1]
        for slot in range(K):
            columns = [row[f"{name}_{slot}"] for name in ("alpha", "target_logprob", "accept_prob")]
            if slot > row["num_accepted"]:
                assert np.isnan(columns).all()
                continue
            reached += slot > 0
            ids = torch.tensor([prefix + known[len(prefix) : len(prefix) + slot]])
            p, q = ((lm(ids).logits[0, -1] / temperature).softmax(0) for lm in (target.lm, draft_lm))
            if probabilistic:
                assert columns[0] == pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-3)
                p_d, q_d = np.exp(columns[1]), np.exp(row[f"draft_logprob_{slot}"])
                assert columns[2] == pytest.approx(min(1, p_d / q_d), abs=1e-3)
                if slot < row["num_accepted"]:
                    sample = known[len(prefix) + slot]
                    assert p_d == pytest.approx(p[sample].item(), abs=1e-3)
                    assert q_d == pytest.approx(q[sample].item(), abs=1e-3)
            else:
                drafted = int(q.argmax())
                assert columns == pytest.approx(
                    [p[drafted].item(), p[drafted].log().item(), p[drafted].item()], abs=1e-3
                )
                assert (slot < row["num_accepted"]) == (drafted == known[len(prefix) + slot])
            assert row[f"log_odds_{slot}"] == pytest.approx(torch.logit(q.max()).item(), abs=2e-3)
    assert reached > 5


def test_chunks_do_not_matter(target, draft_lm):
    output = output_of(target, PROMPT, temperature=1.0)
    frames = [
        trace_request(
            target, DraftModel(Model.of(draft_lm, "draft")), PROMPT, output, Sampling(K, 1.0, True, rows=rows)
        )
        for rows in (3, 100)
    ]
    for name in frames[0].columns:
        first, second = (frame[name].to_numpy().astype(float) for frame in frames)
        np.testing.assert_allclose(first, second, atol=2e-3, err_msg=name)


def test_the_coupling_has_the_law_of_rejection_sampling():
    torch.manual_seed(3)
    count, vocab = 200_000, 6
    q, p = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05, 0.0]), torch.tensor([0.1, 0.3, 0.2, 0.05, 0.15, 0.2])
    sample = torch.multinomial(p, count, replacement=True)
    uniform = torch.rand(count, 2, dtype=torch.float64)
    drafted = couple(q.expand(count, vocab), p.expand(count, vocab), sample, uniform)
    slack = 5 * 0.5 / count**0.5
    drawn = torch.bincount(drafted, minlength=vocab) / count
    assert (drawn - q).abs().max() < slack
    accepted = drafted == sample
    assert abs(accepted.float().mean() - torch.minimum(p, q).sum()) < slack
    for token in range(vocab - 1):
        rate = accepted[drafted == token].float().mean()
        assert abs(rate - min(1, p[token] / q[token])) < slack / q[token].sqrt()
    left = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
    emitted = torch.bincount(sample[~accepted], minlength=vocab) / (~accepted).sum()
    assert (emitted - left).abs().max() < 2 * slack


def test_whole_requests_accept_at_the_rate_that_their_soft_labels_say(target, draft_lm):
    drafter = DraftModel(Model.of(draft_lm, "draft"))
    frames = []
    for request in range(40):
        output = output_of(target, PROMPT, 1.0, request, max_tokens=40, seed=2)
        frames.append(trace_request(target, drafter, PROMPT, output, Sampling(K, 1.0, True, seed=2)))
    blocks = pl.concat(frame for frame in frames if frame.height)
    assert blocks.height > 500
    for slot in range(K):
        reached = blocks.filter(pl.col("num_accepted") >= slot)
        hits = (reached["num_accepted"] > slot).to_numpy()
        for name in ("alpha", "accept_prob"):
            error = hits - reached[f"{name}_{slot}"].to_numpy()
            assert abs(error.mean()) < 4.5 * error.std() / len(error) ** 0.5, (slot, name)


def test_the_first_layers_are_a_model_of_their_own(target):
    cut = target.first_layers(1)
    alone = llama(0, layers=2)
    alone.model.layers = alone.model.layers[:1]
    alone.config.num_hidden_layers = alone.model.config.num_hidden_layers = 1
    ids = torch.tensor(PROMPT)
    assert torch.allclose(cut.logits(cut.hidden(ids)), alone(ids[None]).logits[0], atol=1e-5)
    assert not torch.allclose(cut.hidden(ids), target.hidden(ids), atol=1e-2)
    assert len(target.body.layers) == 2
    with pytest.raises(InputError, match="cannot be cut to 2 layers"):
        target.first_layers(2)


def test_lookup_finds_what_a_plain_search_finds(target):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4, 60).tolist()
    drafter = load_drafter("ngram:min=2,max=4", target)
    for end, block in zip(range(60), drafter.propose(tokens, range(60), 3), strict=True):
        known, expected = tokens[: end + 1], []
        for size in (2, 3, 4):
            starts = [s for s in range(len(known) - size) if known[s : s + size] == known[len(known) - size :]]
            if starts:
                expected = known[starts[0] + size : starts[0] + size + 3]
        assert block == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target with a tokenizer, a draft model, and prompts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    root = tmp_path_factory.mktemp("models")
    lm, draft = llama(0), llama(0)
    torch.manual_seed(5)
    for weight in draft.parameters():
        weight.data += 0.04 * torch.randn_like(weight)
    lm.save_pretrained(root / "target")
    draft.save_pretrained(root / "draft")
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(root / "target")
    rng = np.random.default_rng(4)
    texts = [" ".join(f"w{n}" for n in rng.integers(3, VOCAB, 4 + row)) for row in range(7)]
    rows = [{"prompt": text, "category": f"c{n % 2}"} for n, text in enumerate([*texts, texts[0]])]
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def settings(folder, drafter, **other):
    given = {"max_tokens": 12, "batch": 2, "num_slots": K, "raw": True} | other
    return DenseSettings(
        target=str(folder / "target"), drafter=drafter, prompts=(str(folder / "prompts.jsonl"),), **given
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_killed_run_goes_on_to_the_same_trace(folder, tmp_path, temperature, monkeypatch):
    sampling = "probabilistic" if temperature else "greedy"
    given = settings(folder, f"draft-model:{folder / 'draft'}", temperature=temperature, draft_sampling=sampling)
    whole = run_dense(given, tmp_path / "a" / "trace")
    assert validate_trace(whole.path) == []
    assert whole.card.num_requests == 7
    assert "1 repeated prompts were dropped" in whole.card.notes
    assert whole.card.complete_blocks
    out = tmp_path / "b" / "trace"
    script = (
        "import os, sys; from pathlib import Path; from avsim.capture.dense import run, parts\n"
        f"from avsim.capture.dense.run import DenseSettings; given = {given!r}\n"
        "def progress(done, total, what):\n    if done == 4: os.kill(os.getpid(), 9)\n"
        f"run.run_dense(given, {str(out)!r}, progress=progress)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert not out.exists()
    assert len(list(out.with_name("trace.partial").glob("group-*.requests.parquet"))) == 2
    with pytest.raises(InputError, match="pass --resume"):
        run_dense(given, out)
    with pytest.raises(InputError, match="the unfinished run has seed 0, not 1"):
        run_dense(
            settings(folder, given.drafter, temperature=temperature, draft_sampling=sampling, seed=1), out, resume=True
        )
    made, group = [], run._group
    monkeypatch.setattr(run, "_group", lambda *args: made.append(args[-2]) or group(*args))
    resumed = run_dense(given, out, resume=True)
    assert made == [range(4, 6), range(6, 7)]
    assert resumed.card.content_hash == whole.card.content_hash
    for file in sorted(path.name for path in whole.path.iterdir()):
        assert (whole.path / file).read_bytes() == (out / file).read_bytes()
    assert not out.with_name("trace.partial").exists()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_lookup_makes_a_trace_without_the_drafters_features(folder, tmp_path, temperature):
    trace = run_dense(settings(folder, "ngram:min=1,max=2", temperature=temperature), tmp_path / "trace")
    assert trace.card.drafter_kind == "ngram"
    assert set(trace.card.recorded) == ({"alpha", "target_logprob", "accept_prob"} if temperature else set())
    validate_trace(trace.path)


def test_bad_input_leaves_nothing_behind(folder, tmp_path):
    cases = [
        (settings(folder, "draft-model:first-9"), "cannot be cut to 9 layers"),
        (settings(folder, f"eagle:{folder}"), "no checkpoint folder"),
        (settings(folder, "ngram:min=3,max=1"), "1 ≤ min ≤ max"),
        (settings(folder, "ngram", raw=False), "--raw"),
        (settings(folder, "ngram", device="abacus"), "abacus"),
        (settings(folder, "ngram", max_tokens=250), "prompts.jsonl row 1: 4 tokens; the target takes"),
    ]
    for given, message in cases:
        with pytest.raises(InputError, match=message):
            run_dense(given, tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []
