"""DSpark-style: the parallel block drafter with a Markov head; `train_confidence.py` adds the confidence head.

A quarter of the training sequences is kept from the drafter for that, so that its acceptance on them is that on unseen
text.

    python train_dspark.py --minutes 8
"""

from __future__ import annotations

import torch
from block import FIXED, UNSEEN, initial_weights, loss
from common import LAYERS, WIDTH, load_head, load_sequences, script_arguments
from evaluation import Bare, evaluate, save
from training import SmallHead, Trainer, minibatches

from avsim.capture.dense.drafters.dspark import DSpark

RANK = 192


def main() -> None:
    args = script_arguments("dspark", __doc__, minutes=8.0)
    embedding = load_head(args.target, args.device)
    sequences, held_out = load_sequences(args.data, args.device), load_sequences(args.held_out, args.device)
    sequences = [s for s in sequences if len(s.tokens) - s.prompt_len > args.slots + 1]
    sequences = [s for i, s in enumerate(sequences) if i % UNSEEN]
    config = {"drafter": "dspark", "num_slots": args.slots, "hidden_layers": LAYERS, "width": WIDTH}
    weights = initial_weights(sequences, embedding, args.slots, RANK)
    head, bare = SmallHead(sequences, embedding), Bare(embedding)
    baseline = evaluate(DSpark(config, weights, bare), held_out, embedding)
    baseline.print("closed form")
    fixed = {name: weights.pop(name) for name in FIXED}
    trainer = Trainer(weights, args.minutes, args.lr)
    for batch in minibatches(sequences, 4, torch.Generator().manual_seed(args.seed)):
        if trainer.done >= 1:
            break
        each = [loss(fixed | trainer.weights, s, embedding, head, ends_per_sequence=32) for s in batch]
        trainer.step(torch.stack(each).mean())
    weights = fixed | trainer.average
    tally = evaluate(DSpark(config, weights, bare), held_out, embedding)
    tally.print("trained")
    save(args, weights, config, tally, baseline, sequences, kind="dspark", steps=trainer.steps, markov_rank=RANK)


if __name__ == "__main__":
    main()
