"""Captures the shipped dense traces, those of `TRACES` or the ones named; a killed run goes on where it stopped.

    PYTHONPATH=. python experiments/captures/run.py --target TARGET --drafters experiments/drafters/build \\
        --prompts PROMPTS --out traces [NAME ...]

TARGET is SmolLM2-135M-Instruct as a Hugging Face folder, PROMPTS holds `gsm8k_test.jsonl`, `humaneval.jsonl` and
`mt_bench.jsonl`. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))

from common import code_prompt, read_jsonl

EACH = 24
LICENCE = "measured by the avsim project; free to use and to ship"
PROMPTS = (
    "GSM8K test, second half of HumanEval (MIT), MT-bench first turns (Apache-2.0); none in any drafter's training"
)
TARGET = "The target's weights are dequantised from Q4_1 (Apache-2.0)."


@dataclass(frozen=True)
class Capture:
    """A trace to make: `kind` and `folder` of its drafter, a folder of `--drafters` unless it names a built-in."""

    kind: str
    source: str
    drafter: str
    notes: str
    temperature: float = 0.0
    sampled: bool = False
    num_slots: int = 5


EAGLE = "EAGLE-1 head: one decoder layer, closed-form start, some minutes of training on a CPU"
CUT = "first 26 of the target's 30 layers, untrained"
DSPARK = "parallel block with a Markov head and a confidence head after DSpark, some minutes of training on a CPU"
HEADLESS = "the same parallel block after DSpark without its confidence head"
MTP = "five sequential heads without attention after MTP, some minutes of training on a CPU"
DFLASH = "parallel block after DFlash, some minutes of training on a CPU"
GREEDY_HEAD = "The confidence head was fitted to greedy acceptance."
DEAR = "The draft model costs nearly as much as the target: a source of acceptance patterns, not a speed-up."
WEAK = "A weak drafter."
TRACES = {
    "smollm2-draft26-greedy": Capture("draft-model", "first-26", CUT, DEAR),
    "smollm2-draft26-sampled": Capture("draft-model", "first-26", CUT, DEAR, 0.8, True),
    "smollm2-eagle-greedy": Capture("eagle", "eagle", EAGLE, WEAK),
    "smollm2-eagle-sampled": Capture("eagle", "eagle", EAGLE, WEAK, 0.8, True),
    "smollm2-eagle-warm-greedy-drafts": Capture("eagle", "eagle", EAGLE, WEAK, 0.8),
    "smollm2-dspark-greedy": Capture("dspark", "dspark", DSPARK, WEAK),
    "smollm2-dspark-sampled": Capture("dspark", "dspark", DSPARK, f"{WEAK} {GREEDY_HEAD}", 0.8, True),
    "smollm2-dspark-headless-greedy": Capture("dspark", "dspark-headless", HEADLESS, WEAK),
    "smollm2-mtp-greedy": Capture("mtp", "mtp", MTP, WEAK),
    "smollm2-dflash-greedy": Capture("dflash", "dflash", DFLASH, WEAK),
    "smollm2-ngram-greedy": Capture("ngram", "min=1,max=3", "n-gram lookup in prompt and output, 1 to 3 tokens", ""),
}


def held_out(folder: Path) -> list[dict[str, str]]:
    """Return the prompts: as many of each of three kinds, in an order that mixes them."""
    rng = random.Random(1)
    code = [code_prompt(row["prompt"]) for row in read_jsonl(folder / "humaneval.jsonl")]
    texts = {
        "math": [row["question"] for row in read_jsonl(folder / "gsm8k_test.jsonl")],
        "code": code[len(code) // 2 :],
        "chat": [row["turns"][0] for row in read_jsonl(folder / "mt_bench.jsonl")],
    }
    chosen = {category: rng.sample(found, EACH) for category, found in texts.items()}
    return [{"prompt": chosen[category][row], "category": category} for row in range(EACH) for category in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "drafters", "prompts", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    prompts = args.drafters / "captures.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in held_out(args.prompts)))
    for name in args.names or TRACES:
        what = TRACES[name]
        source = args.drafters / what.source
        spec = f"{what.kind}:{source if source.is_dir() else what.source}"
        words = ["capture", "dense", "--target", args.target, "--drafter", spec, "--prompts", prompts]
        words += ["--k", what.num_slots, "--temperature", what.temperature, "--batch", 24, "--seed", 1]
        words += ["--draft-sampling", "probabilistic" if what.sampled else "greedy", "--top-m", 8, "--resume"]
        words += ["--target-name", "SmolLM2-135M-Instruct", "--drafter-name", what.drafter, "--licence", LICENCE]
        words += ["--prompts-name", PROMPTS, "--notes", f"{what.notes} {TARGET}".strip(), "--device", args.device]
        words += ["--outputs", args.drafters / "captured-outputs", "--out", args.out / name]
        print(name, flush=True)
        subprocess.run([sys.executable, "-m", "avsim", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
