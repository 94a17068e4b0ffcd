"""EAGLE-1: one Llama layer over [emb(token p + 1); h_p], without input norm and final norm, before the frozen head.

`fc` starts as the ridge solution for h_{p+1} and the layer as (nearly) the identity; then three training-time-test
steps: each step feeds the drafter its own state in place of the target's. The checkpoint has the keys of vLLM's
`EagleLlamaForCausalLM`; embedding and head are the target's.

    python train_eagle.py --minutes 14
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from common import WIDTH, Sequence, load_head, load_sequences, script_arguments
from evaluation import Tally, save
from torch import Tensor
from training import SmallHead, Trainer, minibatches, ridge

HEADS, KV_HEADS, HEAD, MLP = 9, 3, 64, 1536
THETA, EPS = 100000.0, 1e-5
Weights = dict[str, Tensor]


def initial_weights(fc: Tensor) -> Weights:
    """`fc` as given; projections small and random, except that the layer's two outputs start at zero."""
    rows = {"self_attn.q_proj": HEADS * HEAD, "self_attn.k_proj": KV_HEADS * HEAD, "self_attn.v_proj": KV_HEADS * HEAD}
    rows |= {"mlp.gate_proj": MLP, "mlp.up_proj": MLP}
    weights = {f"layers.0.{name}.weight": 0.02 * torch.randn(n, WIDTH) for name, n in rows.items()}
    weights["layers.0.self_attn.o_proj.weight"] = torch.zeros(WIDTH, HEADS * HEAD)
    weights["layers.0.mlp.down_proj.weight"] = torch.zeros(WIDTH, MLP)
    weights["layers.0.post_attention_layernorm.weight"] = torch.ones(WIDTH)
    weights["fc.weight"] = fc
    return weights


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of `[n, heads, HEAD]`, halves convention."""
    angles = positions[:, None] * THETA ** (-torch.arange(0, HEAD, 2, device=x.device) / HEAD)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def states(w: Weights, s: Sequence, embedding: Tensor, first: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (step j, predicted h_{p+1+j} of the rows p = `first` … L − 2 − j), the sequence's tokens drafted."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"layers.0.{name}.weight"])

    def keys_values(x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        k = rotate(linear("self_attn.k_proj", x).unflatten(-1, (KV_HEADS, HEAD)), positions)
        v = linear("self_attn.v_proj", x).unflatten(-1, (KV_HEADS, HEAD))
        return k.repeat_interleave(HEADS // KV_HEADS, 1), v.repeat_interleave(HEADS // KV_HEADS, 1)

    length = len(s.tokens)
    places = torch.arange(length, device=s.tokens.device)
    x = F.linear(torch.cat([embedding[s.tokens[1:]], s.last[:-1].float()], -1), w["fc.weight"])
    k0, v0 = keys_values(x, places[:-1])
    x, rows, own = x[first:], places[first:-1], []
    future = places[None, :-1] > rows[:, None]
    for j in range(length):
        n = length - 1 - j - first
        if n <= 0:
            return
        x, rows, future = x[:n], rows[:n], future[:n]
        own = [(k[:n], v[:n]) for k, v in own]
        if j:
            own.append(keys_values(x, rows + j))
        q = rotate(linear("self_attn.q_proj", x).unflatten(-1, (HEADS, HEAD)), rows + j) / math.sqrt(HEAD)
        scores = torch.einsum("nhd,lhd->hnl", q, k0).masked_fill(future, -math.inf)
        scores = torch.cat([scores] + [(q * k).sum(-1).T[..., None] for k, _ in own], -1)
        attention = scores.softmax(-1)
        mixed = torch.einsum("hnl,lhd->nhd", attention[..., : length - 1], v0)
        for m, (_, v) in enumerate(own):
            mixed = mixed + attention[..., length - 1 + m].T[..., None] * v
        x = x + linear("self_attn.o_proj", mixed.flatten(1))
        y = F.rms_norm(x, (WIDTH,), w["layers.0.post_attention_layernorm.weight"], EPS)
        x = x + linear("mlp.down_proj", F.silu(linear("mlp.gate_proj", y)) * linear("mlp.up_proj", y))
        yield j, x
        following = embedding[s.tokens[first + 2 + j :]]
        x = F.linear(torch.cat([following, x[: len(following)]], -1), w["fc.weight"])


def loss(w: Weights, s: Sequence, embedding: Tensor, head: SmallHead, steps: int) -> Tensor:
    """Cross-entropy to the target's probabilities + 0.5 smooth-L1 to its hidden states, over the first steps."""
    first, total = s.prompt_len - 1, torch.zeros((), device=s.tokens.device)
    for j, x in states(w, s, embedding, first):
        at = slice(first + 1 + j, len(s.tokens))
        distance = F.smooth_l1_loss(x, s.last[at].float())
        total = total + head.loss(x, s.top_ids[at], s.top_probs[at]) + 0.5 * distance
        if j == steps - 1:
            break
    return total / steps


@torch.no_grad()
def evaluate(w: Weights, sequences: list[Sequence], embedding: Tensor, slots: int = 5) -> Tally:
    """Greedy drafts at every output position; a slot is reached while the draft equals the sequence."""
    tally = Tally()
    for s in sequences:
        first, reached = s.prompt_len - 1, None
        for j, x in states(w, s, embedding, first):
            truth = s.tokens[first + 2 + j :]
            if j == slots or len(truth) == 0:
                break
            whole = torch.ones_like(truth, dtype=torch.bool)
            reached = whole if reached is None else reached[: len(truth)]
            accepted = torch.zeros_like(reached)
            accepted[reached] = (x[: len(truth)][reached] @ embedding.T).argmax(-1) == truth[reached]
            tally.add(s.source, j, reached, accepted)
            reached = reached & accepted
    return tally


def main() -> None:
    args = script_arguments("eagle", __doc__, minutes=14.0)
    embedding = load_head(args.target, args.device)
    sequences, held_out = load_sequences(args.data, args.device), load_sequences(args.held_out, args.device)
    inputs = torch.cat([torch.cat([embedding[s.tokens[1:]], s.last[:-1].float()], -1) for s in sequences])
    fc = ridge(inputs, torch.cat([s.last[1:].float() for s in sequences])).T.contiguous()
    del inputs
    weights = {name: w.to(args.device) for name, w in initial_weights(fc).items()}
    head = SmallHead(sequences, embedding)
    target_config = json.loads((args.target / "config.json").read_text())
    kept = "attention_bias head_dim hidden_act hidden_size intermediate_size max_position_embeddings mlp_bias"
    kept += " model_type num_attention_heads num_key_value_heads rms_norm_eps rope_parameters vocab_size"
    kept += " tie_word_embeddings bos_token_id eos_token_id"
    config = {name: target_config[name] for name in kept.split()}
    config |= {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1, "dtype": "float32"}
    baseline = evaluate(weights, held_out, embedding)
    baseline.print("closed form")
    save(args, weights, config, baseline, baseline, sequences, kind="eagle", steps=0)
    trainer = Trainer(weights, args.minutes, args.lr)
    generator = torch.Generator().manual_seed(args.seed)
    for batch in minibatches(sequences, 3, generator):
        if trainer.done >= 1:
            break
        trainer.step(torch.stack([loss(trainer.weights, s, embedding, head, steps=3) for s in batch]).mean())
        if trainer.steps % 150 == 0:
            tally = evaluate(trainer.average, held_out[::3], embedding)
            tally.print(f"step {trainer.steps}")
    tally = evaluate(trainer.average, held_out, embedding)
    tally.print("trained")
    save(args, trainer.average, config, tally, baseline, sequences, kind="eagle", steps=trainer.steps)


if __name__ == "__main__":
    main()
