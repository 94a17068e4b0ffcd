"""Closed-form start, loss and training of the parallel block drafters (`train_dflash.py`, `train_dspark.py`)."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from common import LAYERS, WIDTH, Sequence, load_head, load_sequences
from evaluation import Bare, evaluate, save
from torch import Tensor
from training import SmallHead, Trainer, minibatches, ridge

from avsim.capture.dense.drafters.dflash import HEAD, DFlash, block_states, context
from avsim.capture.dense.drafters.dspark import markov

HEADS, MLP = 9, 768
UNSEEN = 4
FIXED = ("scale", "embedding_scale")
Weights = dict[str, Tensor]


def initial_weights(sequences: list[Sequence], embedding: Tensor, slots: int, rank: int = 0) -> Weights:
    """Ridge maps from the block's end to each slot's hidden state; the layer starts as the identity.

    With a `rank`, also a bigram map M from the embedding of the token before, shared by the slots: after partialling
    the end's features c out of both (Frisch–Waugh), the residual state is regressed on the residual embedding; the
    slots' own maps are then corrected for what M already gives.
    """
    device = embedding.device
    rows = torch.cat([s.hidden[1:].float() for s in sequences])
    weights = {"scale": 1 / (rows.std(0) + 1e-6), "embedding_scale": 1 / embedding.std()}
    inputs, states, before = [], [], []
    for s in sequences:
        ends = torch.arange(s.prompt_len, len(s.tokens) - slots, device=device)
        if len(ends) < 1:
            continue
        scaled = (s.hidden[ends - 1].float() * weights["scale"]).clamp(-8, 8)
        tokens = embedding[s.tokens] * weights["embedding_scale"]
        inputs.append(torch.cat([scaled, tokens[ends], torch.ones(len(ends), 1, device=device)], -1))
        states.append(torch.cat([s.last[ends + k].float() for k in range(slots)], -1))
        before.append(torch.cat([tokens[ends + k] for k in range(slots)], -1))
    c, h, e = torch.cat(inputs), torch.cat(states), torch.cat(before)
    solution = ridge(c, torch.cat([h, e], -1), strength=0.02)
    maps = solution[:, : slots * WIDTH]
    if rank:
        others = solution[:, slots * WIDTH :]
        left_e, left_h = (e - c @ others)[:, WIDTH:], (h - c @ maps)[:, WIDTH:]
        u, sizes, v = torch.linalg.svd(ridge(left_e.reshape(-1, WIDTH), left_h.reshape(-1, WIDTH), strength=0.02))
        root = sizes[:rank].sqrt()
        weights |= {"markov.1": u[:, :rank] * root, "markov.2": root[:, None] * v[:rank]}
        known = torch.zeros(c.shape[1], WIDTH, device=device)
        known[-WIDTH - 1 : -1] = torch.eye(WIDTH, device=device)
        given = torch.cat([known, others[:, WIDTH:]], -1).unflatten(-1, (slots, WIDTH))
        maps = maps - (given @ weights["markov.1"] @ weights["markov.2"]).flatten(1)
    maps = maps.unflatten(-1, (slots, WIDTH)).transpose(0, 1)
    weights |= {"start": maps[:, :-1].contiguous(), "start_bias": maps[:, -1].contiguous()}
    shapes = {"context.k": (len(LAYERS) * WIDTH, HEADS * HEAD), "context.v": (len(LAYERS) * WIDTH, HEADS * HEAD)}
    shapes |= {f"attention.{name}": (WIDTH, HEADS * HEAD) for name in "qkv"}
    shapes |= {"slot": (slots, WIDTH), "mlp.in": (WIDTH, 2 * MLP)}
    weights |= {name: 0.02 * torch.randn(shape, device=device) for name, shape in shapes.items()}
    weights["attention.o"] = torch.zeros(HEADS * HEAD, WIDTH, device=device)
    weights["mlp.out"] = torch.zeros(MLP, WIDTH, device=device)
    return weights


def loss(w: Weights, s: Sequence, embedding: Tensor, head: SmallHead, ends_per_sequence: int) -> Tensor:
    """As in `train_eagle.py`, over all slots of random blocks, later slots weighing less."""
    slots = len(w["slot"])
    ends = s.prompt_len + torch.randperm(max(1, len(s.tokens) - slots - s.prompt_len))[:ends_per_sequence]
    ends = ends.to(s.tokens.device)
    states = block_states(w, embedding[s.tokens[ends]], context(w, s.hidden.float()), ends)
    total = torch.zeros((), device=ends.device)
    for k in range(slots):
        x, at = states[:, k], ends + k
        if "markov.1" in w:
            x = x + markov(w, embedding[s.tokens[at]])[1]
        distance = F.smooth_l1_loss(x, s.last[at].float())
        total = total + 0.85**k * (head.loss(x, s.top_ids[at], s.top_probs[at]) + 0.5 * distance)
    return total / slots


def train(args: argparse.Namespace, drafter: type[DFlash], *, leave_out: int = 0, rank: int = 0) -> None:
    """Start in closed form, train for the minutes asked for, print held-out acceptance, and save.

    Args:
        drafter: `DFlash`, or `DSpark` with a `rank`.
        leave_out: keep each such sequence from the training; 0 for none.
        rank: of the Markov head; 0 for none.
    """
    embedding = load_head(args.target, args.device)
    sequences, held_out = load_sequences(args.data, args.device), load_sequences(args.held_out, args.device)
    sequences = [s for s in sequences if len(s.tokens) - s.prompt_len > args.slots + 1]
    sequences = [s for i, s in enumerate(sequences) if not leave_out or i % leave_out]
    config = {"drafter": drafter.kind, "num_slots": args.slots, "hidden_layers": LAYERS, "width": WIDTH}
    weights = initial_weights(sequences, embedding, args.slots, rank)
    head, bare = SmallHead(sequences, embedding), Bare(embedding)
    baseline = evaluate(drafter(config, weights, bare), held_out, embedding)
    baseline.print("closed form")
    fixed = {name: weights.pop(name) for name in FIXED}
    trainer = Trainer(weights, args.minutes, args.lr)
    for batch in minibatches(sequences, 4, torch.Generator().manual_seed(args.seed)):
        if trainer.done >= 1:
            break
        each = [loss(fixed | trainer.weights, s, embedding, head, ends_per_sequence=32) for s in batch]
        trainer.step(torch.stack(each).mean())
    weights = fixed | trainer.average
    tally = evaluate(drafter(config, weights, bare), held_out, embedding)
    tally.print("trained")
    more = {"markov_rank": rank} if rank else {}
    save(args, weights, config, tally, baseline, sequences, kind=drafter.kind, steps=trainer.steps, **more)
