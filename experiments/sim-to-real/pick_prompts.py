"""Chooses the shipped prompts: `calibration` ones for the trace, other ones to be measured; equal parts math, code,
chat.

    python experiments/sim-to-real/pick_prompts.py --target TARGET --prompts PROMPTS

PROMPTS holds `gsm8k_test.jsonl` and `humaneval.jsonl` (MIT) and `mt_bench.jsonl` (Apache-2.0). None of the chosen
ones is in the drafters' training data. Longer ones than `LONGEST` tokens are left out, so that caches stay small.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))

from common import code_prompt, read_jsonl

HERE = Path(__file__).parent
LONGEST = 224
CALIBRATION, MEASURED = 24, 34


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    args = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.target)

    def fits(text: str) -> bool:
        chat = [{"role": "user", "content": text}]
        return len(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) <= LONGEST

    code = [code_prompt(row["prompt"]) for row in read_jsonl(args.prompts / "humaneval.jsonl")]
    kinds = {
        "math": [row["question"] for row in read_jsonl(args.prompts / "gsm8k_test.jsonl")],
        "code": code[len(code) // 2 :],
        "chat": [row["turns"][0] for row in read_jsonl(args.prompts / "mt_bench.jsonl")],
    }
    rng = random.Random(7)
    chosen = {}
    for kind, texts in kinds.items():
        rng.shuffle(texts)
        chosen[kind] = [text for text in dict.fromkeys(texts) if fits(text)][: CALIBRATION + MEASURED]
    for use, part in (("calibration", slice(CALIBRATION)), ("measured", slice(CALIBRATION, None))):
        lines = [
            json.dumps({"prompt": text, "category": kind}) + "\n"
            for row in zip(*(chosen[kind][part] for kind in kinds), strict=True)
            for kind, text in zip(kinds, row, strict=True)
        ]
        (HERE / "prompts" / f"{use}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
