"""Appends reference solutions (MIT) to the target's outputs: off-policy text, which costs no generation.

GSM8K train without the calculator marks `<<…>>`, and every other problem of the first half of HumanEval. The drafters
still learn the target's distribution on it.

    python add_references.py --data work/data --count 100
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

from common import code_prompt, read_jsonl
from transformers import AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=Path("experiments/drafters/build/target"))
    parser.add_argument("--prompts", type=Path, default=Path("prompts"))
    parser.add_argument("--data", type=Path, default=Path("experiments/drafters/build/data"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    pairs = []
    for row in random.Random(args.seed).sample(read_jsonl(args.prompts / "gsm8k_train_3000.jsonl"), args.count):
        answer = re.sub(r"<<.*?>>", "", row["answer"]).replace("####", "The answer is")
        pairs.append(("gsm8k-train-reference", row["question"], answer))
    code = read_jsonl(args.prompts / "humaneval.jsonl")
    for row in code[: len(code) // 2 : 2]:
        answer = f"```python\n{row['prompt'].strip()}\n{row['canonical_solution'].rstrip()}\n```"
        pairs.append(("humaneval-first-half-reference", code_prompt(row["prompt"]), answer))
    with (args.data / "outputs.jsonl").open("a") as file:
        for source, question, answer in pairs:
            chat = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            output = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
            record = {"source": source, "temperature": None, "prompt_len": len(prompt), "tokens": prompt + output}
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
