"""Checks checkpoints through avsim's own drafter modules, as the dense tracer would use them.

For each: (1) held-out acceptance with the target really run, beside the training script's own evaluation; (2) logits
and confidence of some blocks against a run that knows their prefix only: the tokens after the end, and the hidden
states from the end on, are replaced. A slot is only ever handed the tokens before it, so its own draw cannot reach its
confidence.

    python check.py eagle dspark mtp dflash
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import train_eagle
from common import Sequence, load_head, load_sequences
from evaluation import Bare, Tally, evaluate
from safetensors.torch import load_file

from avsim.capture.dense.drafters import dflash, dspark, eagle, mtp
from avsim.capture.dense.model import Model

MODULES = {"eagle": eagle, "mtp": mtp, "dflash": dflash, "dspark": dspark}
SLOTS = 5


@torch.inference_mode()
def check(name: str, folder: Path, target: Model, sequences: list[Sequence]) -> None:
    """Print one line for each of the checks."""
    drafter = MODULES[name].load(str(folder), target)
    tally, worst, worst_confidence = Tally(), 0.0, 0.0
    for number, s in enumerate(sequences):
        states = target.lm.model(s.tokens[None], output_hidden_states=True).hidden_states
        hidden = torch.cat([states[layer][0] for layer in drafter.hidden_layers], -1)
        ends = torch.arange(s.prompt_len, len(s.tokens))
        places = ends[:, None] + 1 + torch.arange(SLOTS)
        drafted = s.tokens[places.clamp(max=len(s.tokens) - 1)]
        state, reached, outputs = drafter.begin(s.tokens, hidden), places[:, 0] < len(s.tokens), []
        for k in range(SLOTS):
            outputs.append(drafter.slot(state, ends, drafted[:, :k]))
            accepted = outputs[k].logits.argmax(-1) == drafted[:, k]
            tally.add(s.source, k, reached, accepted)
            reached = reached & accepted & (places[:, k] + 1 < len(s.tokens))
        for n in (0, 7, len(ends) // 2) if number < 4 else ():
            end = int(ends[n])
            tokens, known = s.tokens.clone(), hidden.clone()
            tokens[end + 1 :], known[end:] = 7, torch.randn_like(known[end:])
            alone = drafter.begin(tokens, known)
            for k in range(SLOTS):
                out = drafter.slot(alone, ends[n : n + 1], drafted[n : n + 1, :k])
                worst = max(worst, float((out.logits[0] - outputs[k].logits[n]).abs().max()))
                if out.confidence is not None:
                    difference = out.confidence[0] - outputs[k].confidence[n]
                    worst_confidence = max(worst_confidence, abs(float(difference)))
    tally.print(f"{name}, target run")
    table = load_head(Path(target.name))
    if name == "eagle":
        stored = train_eagle.evaluate(load_file(folder / "model.safetensors"), sequences, table)
    else:
        drafter.target = Bare(table)
        stored = evaluate(drafter, sequences, table)
    stored.print(f"{name}, stored states")
    print(f"{name} against the prefix alone: logits differ by {worst:.2g}, confidence by {worst_confidence:.2g}")


def main() -> None:
    work = Path("experiments/drafters/build")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(MODULES))
    parser.add_argument("--target", type=Path, default=work / "target")
    parser.add_argument("--stride", type=int, default=1, help="use each STRIDE-th held-out sequence only")
    parser.add_argument("--work", type=Path, default=work)
    args = parser.parse_args()
    target = Model.load(str(args.target))
    sequences = load_sequences(args.work / "held-out")[:: args.stride]
    for name in args.names:
        check(name, args.work / name, target, sequences)


if __name__ == "__main__":
    main()
