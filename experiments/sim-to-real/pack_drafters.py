"""Makes the two shipped drafters from a trained EAGLE head and its training data (see experiments/drafters).

    python experiments/sim-to-real/pack_drafters.py --target TARGET --eagle DRAFTERS/eagle --data DRAFTERS/data

`drafters/eagle`: one decoder layer, trained for minutes. `drafters/linear`: the closed-form map alone that such
training starts from: [embedding of token p + 1 ; h_p] → h_{p+1}, least squares; cheaper and weaker. Both draft from
the same `draft_vocab`, token ids in descending frequency in the training outputs, then by rank in the tokenizer's
merges. Weights are bfloat16. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))

from common import load_head, load_sequences, read_jsonl
from training import ridge

HERE = Path(__file__).parent
VOCAB = 3072


def draft_vocab(data: Path, end: int) -> torch.Tensor:
    """Return the ids that are drafted, int32 `[VOCAB]`: the most frequent ones of the outputs, then the lowest."""
    counts = Counter({end: 1})
    for row in read_jsonl(data / "outputs.jsonl"):
        counts.update(row["tokens"][row["prompt_len"] :])
    frequent = [token for token, _ in counts.most_common(VOCAB)]
    lowest = (token for token in range(10 * VOCAB) if token not in counts)
    ids = frequent + [next(lowest) for _ in range(VOCAB - len(frequent))]
    return torch.tensor(ids, dtype=torch.int32)


def closed_form(data: Path, target: Path) -> torch.Tensor:
    """Return the ridge solution `[width, 2 · width]`."""
    embedding, sequences = load_head(target), load_sequences(data, "cpu")
    inputs = torch.cat([torch.cat([embedding[s.tokens[1:]], s.last[:-1].float()], -1) for s in sequences])
    return ridge(inputs, torch.cat([s.last[1:].float() for s in sequences])).T.contiguous()


def write(name: str, weights: dict[str, torch.Tensor], vocab: torch.Tensor, card: dict[str, object]) -> None:
    """Write a checkpoint folder."""
    folder = HERE / "drafters" / name
    folder.mkdir(parents=True, exist_ok=True)
    packed = {key: value.to(torch.bfloat16).contiguous() for key, value in weights.items()}
    save_file(packed | {"draft_vocab": vocab}, folder / "model.safetensors")
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "eagle", "data"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    vocab = draft_vocab(args.data, json.loads((args.target / "config.json").read_text())["eos_token_id"])
    made = json.loads((args.eagle / "card.json").read_text())
    kept = ("target", "data", "data_licence", "licence", "output_tokens_by_source", "output_tokens", "seed", "torch")
    shared = {key: made[key] for key in kept} | {"weights": "bfloat16", "draft_vocab": f"{VOCAB} tokens"}
    how = {"training": "closed form, then fine-tuning (experiments/drafters/train_eagle.py)"}
    how |= {key: made[key] for key in ("minutes", "steps", "hardware")}
    config = json.loads((args.eagle / "config.json").read_text())
    write("eagle", load_file(args.eagle / "model.safetensors"), vocab, {"kind": "eagle"} | shared | how)
    (HERE / "drafters" / "eagle" / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    fc = {"fc.weight": closed_form(args.data, args.target)}
    write("linear", fc, vocab, {"kind": "linear"} | shared | {"training": "closed form (ridge), no fine-tuning"})


if __name__ == "__main__":
    main()
