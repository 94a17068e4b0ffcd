"""The drafters that experiments/drafters trains, with random weights: each block as if it were drafted alone."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from test_dense import WIDTH, K, llama

from avsim.capture.dense.drafters import load_drafter
from avsim.capture.dense.model import Model
from avsim.errors import InputError

HEAD, RANK, LENGTH = 64, 6, 18
KINDS = ("mtp", "dflash", "dspark")


@pytest.fixture(scope="module", autouse=True)
def _no_grad():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def target():
    return Model.of(llama(0), "target")


def weights(kind):
    """Random ones, of the names and shapes that the training scripts write."""
    torch.manual_seed(3)

    def some(*shape):
        return torch.randn(*shape) / (shape[-2] if len(shape) > 1 else 4) ** 0.5

    if kind == "mtp":
        found = {"scale": torch.rand(2 * WIDTH)}
        for k in range(K):
            found |= {f"{k}.mlp.in": some(2 * WIDTH, 2 * 24), f"{k}.mlp.out": some(24, WIDTH)}
            found |= {f"{k}.map": some(2 * WIDTH, WIDTH), f"{k}.bias": some(WIDTH)}
        return found
    found = {"scale": torch.rand(2 * WIDTH), "embedding_scale": torch.tensor(0.7), "slot": some(K, WIDTH)}
    found |= {f"context.{name}": some(2 * WIDTH, 2 * HEAD) for name in "kv"}
    found |= {"start": some(K, 3 * WIDTH, WIDTH), "start_bias": some(K, WIDTH)}
    found |= {f"attention.{name}": some(WIDTH, 2 * HEAD) for name in "qkv"} | {"attention.o": some(2 * HEAD, WIDTH)}
    found |= {"mlp.in": some(WIDTH, 2 * 24), "mlp.out": some(24, WIDTH)}
    if kind == "dspark":
        found |= {"markov.1": some(WIDTH, RANK), "markov.2": some(RANK, WIDTH)}
        found |= {"confidence.state_scale": torch.tensor(0.5), "confidence.state": some(WIDTH, 8)}
        found |= {"confidence.code_scale": torch.tensor(0.5), "confidence.code": some(RANK, 8)}
        found |= {"confidence.spread": some(2, 8), "confidence.slot": some(K, 8), "confidence.out": some(8)}
        found |= {"confidence.direct": some(2), "confidence.bias": some(K)}
    return found


@pytest.fixture(scope="module")
def drafters(target, tmp_path_factory):
    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        layers = [-1] if kind == "mtp" else [1, -1]
        about = {"drafter": kind, "width": WIDTH, "num_slots": K, "hidden_layers": layers}
        (folder / "config.json").write_text(json.dumps(about))
        save_file(weights(kind), folder / "model.safetensors")
        made[kind] = load_drafter(f"{kind}:{folder}", target)
    return made


def draft(drafter, tokens, hidden, ends, forced=None):
    """Return logits `[K, N, vocab]`, confidences and drafted tokens of greedy blocks, or of given tokens."""
    state = drafter.begin(tokens, hidden)
    drafted = torch.empty(len(ends), 0, dtype=torch.int64)
    logits, confidences = [], []
    for slot in range(K):
        out = drafter.slot(state, ends, drafted)
        logits.append(out.logits)
        confidences.append(out.confidence)
        token = out.logits.argmax(1) if forced is None else forced[:, slot]
        drafted = torch.cat([drafted, token[:, None]], dim=1)
    return torch.stack(logits), confidences, drafted


def sequence(target, drafter):
    torch.manual_seed(1)
    tokens = torch.randint(3, 60, (LENGTH,))
    return tokens, target.hidden_layers(tokens, drafter.hidden_layers)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_the_same_alone_and_without_a_future(kind, target, drafters):
    drafter = drafters[kind]
    tokens, hidden = sequence(target, drafter)
    ends = torch.arange(2, LENGTH - 1)
    together, confidences, _ = draft(drafter, tokens, hidden, ends)
    for row, end in enumerate(ends.tolist()):
        unknown_tokens, unknown_hidden = tokens.clone(), hidden.clone()
        unknown_tokens[end + 1 :] = 5
        unknown_hidden[end:] = 1e3
        alone, alone_confidences, _ = draft(drafter, unknown_tokens, unknown_hidden, torch.tensor([end]))
        torch.testing.assert_close(alone[:, 0], together[:, row], atol=1e-4, rtol=1e-4)
        if kind == "dspark":
            for slot in range(K):
                torch.testing.assert_close(alone_confidences[slot][0], confidences[slot][row], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_slot_may_depend_on(kind, target, drafters):
    """On the drafted tokens before it, except in DFlash's block; never on its own."""
    drafter = drafters[kind]
    tokens, hidden = sequence(target, drafter)
    ends = torch.arange(2, LENGTH - 1)
    _, _, drafted = draft(drafter, tokens, hidden, ends)
    before, sure, _ = draft(drafter, tokens, hidden, ends, drafted)
    changed = drafted.clone()
    changed[:, 1] = (changed[:, 1] + 7) % 60
    after, sure_after, _ = draft(drafter, tokens, hidden, ends, changed)
    assert torch.equal(before[:2], after[:2])
    assert torch.equal(before[2], after[2]) == (kind == "dflash")
    if kind == "dspark":
        assert torch.equal(sure[1], sure_after[1])
        assert not torch.equal(sure[2], sure_after[2])
        assert all(((confidence > 0) & (confidence < 1)).all() for confidence in sure)


def test_a_checkpoint_of_another_kind_or_width_is_refused(target, tmp_path):
    save_file(weights("mtp"), tmp_path / "model.safetensors")
    about = {"drafter": "mtp", "width": WIDTH + 1, "num_slots": K, "hidden_layers": [-1]}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="not 'dflash'"):
        load_drafter(f"dflash:{tmp_path}", target)
    with pytest.raises(InputError, match=f"width {WIDTH + 1}; this one has {WIDTH}"):
        load_drafter(f"mtp:{tmp_path}", target)
    with pytest.raises(InputError, match="no checkpoint folder"):
        load_drafter(f"mtp:{tmp_path / 'missing'}", target)
