"""Writes data for the drafters: the target's own outputs on training prompts (or on held-out ones), as tokens.

The hidden states and top-32 logits are added by `features.py`, by teacher forcing, which is far faster than generating.

    python make_data.py --out work/data --minutes 8
    python make_data.py --out work/held-out --held-out --minutes 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from common import code_prompt, load_target, read_jsonl
from transformers import DynamicCache

ASKS = (
    "Write a short story about {}.",
    "Write a polite email about {}.",
    "Write a persuasive paragraph about {}.",
    "Explain {} to a ten-year-old child.",
    "Explain in detail why {} matters.",
    "What are the advantages and disadvantages of {}?",
    "Give me a numbered list of eight facts about {}.",
    "List five practical tips about {}, one sentence each.",
    "Make a table with three columns that summarises {}.",
    "You are a travelling reporter in the year 1890. Tell your readers about {}.",
    "Pretend you are a patient teacher. A student asks you about {}. Answer in the first person.",
    "Play the role of a sceptical judge and question an expert on {}.",
    "Summarise what most people know about {} in three sentences.",
    "Compare {} with a similar thing of your choice.",
    "Write a poem of twelve lines about {}.",
    "Plan a one-day workshop on {} with a time for each part.",
)
TOPICS = (
    "bicycle repair", "the water cycle", "keeping bees", "night trains", "sourdough bread", "solar panels",
    "public libraries", "chess openings", "earthquakes", "learning the violin", "city parks", "the printing press",
    "coral reefs", "saving money", "volunteering", "the history of maps", "remote work", "growing tomatoes",
    "vaccination", "lighthouses", "recycling glass", "long-distance running", "the Roman roads", "computer networks",
)  # fmt: skip
CODE_ASKS = (
    "Write a Python function that {}. Include a docstring.",
    "Show me JavaScript code that {} and explain each step.",
    "Write a C++ program that {}.",
    "How would you test a function that {}? Write the tests in Python.",
)
CODE_TOPICS = (
    "counts the words in a text file", "merges two sorted lists", "checks whether a bracket string is balanced",
    "computes the greatest common divisor", "removes duplicates and keeps the order", "converts Roman numerals",
    "finds the longest common prefix", "implements a queue with two stacks", "reverses a linked list",
    "parses a date in ISO format", "computes a moving average", "finds all prime numbers below a limit",
)  # fmt: skip
RECORDS = (
    "Order 1182: 3 lamps for Ms. Ortega, Lisbon, 12 May, 89 euros.\n"
    "Order 1183: 1 desk for Mr. Sato, Kyoto, 3 June, 240 euros.",
    "The Alder Bridge opened in 1931 and is 412 metres long. The Birch Bridge, opened in 1974, is 655 metres long.",
    "Anna plays the cello and lives in Graz. Ben plays the flute and lives in Oslo. Carla sings and lives in Turin.",
    "Monday: rain, 9 degrees. Tuesday: sun, 15 degrees. Wednesday: fog, 11 degrees. Thursday: sun, 17 degrees.",
    "Flight LX22 leaves Geneva at 07:40 and lands in Porto at 09:15. "
    "Flight BT7 leaves Riga at 11:05 and lands in Bonn at 12:50.",
    "Recipe: 200 g flour, 2 eggs, 300 ml milk, a pinch of salt. Rest for 30 minutes, fry for 2 minutes on each side.",
)  # fmt: skip
EXTRACTIONS = (
    "Extract all names and places from this text as a JSON object:\n\n{}",
    "Turn this text into a CSV table with a header row:\n\n{}",
    "List every number in the text with what it measures:\n\n{}",
    "Rewrite this text as a formal report:\n\n{}",
    "Answer with one sentence per record: what is the most important fact?\n\n{}",
    "Translate this text into French, then into Spanish:\n\n{}",
)


def instruction_prompts() -> list[str]:
    """All crossings of the templates above with their topics."""
    pairs = ((ASKS, TOPICS), (CODE_ASKS, CODE_TOPICS), (EXTRACTIONS, RECORDS))
    return [ask.format(topic) for asks, topics in pairs for ask, topic in itertools.product(asks, topics)]


def training_prompts(folder: Path, rng: random.Random) -> list[tuple[str, str]]:
    """(source, text) in random order: GSM8K train, the first half of HumanEval, and the instructions above."""
    gsm = [("gsm8k-train", row["question"]) for row in read_jsonl(folder / "gsm8k_train_3000.jsonl")]
    code = read_jsonl(folder / "humaneval.jsonl")
    first_half = [("humaneval-first-half", code_prompt(row["prompt"])) for row in code[: len(code) // 2]]
    written = [("instructions", text) for text in instruction_prompts()]
    files = ("gsm8k_test.jsonl", "mt_bench.jsonl", "spec_bench.jsonl")
    held_out = "\n".join((folder / name).read_text() for name in files)
    held_out += "\n".join(json.dumps(row) for row in code[len(code) // 2 :])
    prompts = rng.sample(gsm, 400) + first_half * 2 + written
    kept = [
        (source, text) for source, text in prompts if not any(t in held_out for t in (text, json.dumps(text)[1:-1]))
    ]
    print(f"{len(kept)} training prompts; {len(prompts) - len(kept)} dropped because a held-out file contains them")
    rng.shuffle(kept)
    return kept


def held_out_prompts(folder: Path, rng: random.Random, each: int = 11) -> list[tuple[str, str]]:
    """(source, text): some of GSM8K test, the second half of HumanEval, and first turns of MT-Bench."""
    gsm = [row["question"] for row in read_jsonl(folder / "gsm8k_test.jsonl")]
    code = [code_prompt(row["prompt"]) for row in read_jsonl(folder / "humaneval.jsonl")]
    chat = [row["turns"][0] for row in read_jsonl(folder / "mt_bench.jsonl")]
    sets = {"gsm8k-test": gsm, "humaneval-second-half": code[len(code) // 2 :], "mt-bench": chat}
    return [(source, text) for source, texts in sets.items() for text in rng.sample(texts, each)]


class Decoder:
    """One decoding step of the target over preallocated keys and values, each read once per step.

    Transformers' cache is copied at every step and repeated over the query heads, which costs more than the model.
    """

    def __init__(self, model: Any, cache: DynamicCache, mask: torch.Tensor, room: int) -> None:
        self.model, self.mask = model, torch.cat([mask, mask.new_ones(len(mask), room)], 1).bool()
        self.positions, self.width = mask.sum(1, keepdim=True), mask.shape[1]
        self.keys = [torch.nn.functional.pad(layer.keys, (0, 0, 0, room)) for layer in cache.layers]
        self.values = [torch.nn.functional.pad(layer.values, (0, 0, 0, room)) for layer in cache.layers]

    def keep(self, alive: torch.Tensor) -> None:
        """Drop the other rows."""
        self.mask, self.positions = self.mask[alive], self.positions[alive]
        self.keys, self.values = [k[alive] for k in self.keys], [v[alive] for v in self.values]

    def step(self, token: torch.Tensor) -> torch.Tensor:
        """Logits `[B, vocab]` after one more token per row."""
        inner = self.model.model
        x = inner.embed_tokens(token)
        cos, sin = inner.rotary_emb(x[:, None], self.positions)
        bias = torch.zeros(self.mask.shape[0], 1, 1, self.width + 1)
        bias.masked_fill_(~self.mask[:, None, None, : self.width + 1], -torch.inf)

        def heads(y: torch.Tensor, rotated: bool) -> torch.Tensor:
            y = y.view(len(y), -1, cos.shape[-1])
            half = torch.cat([-y[..., y.shape[-1] // 2 :], y[..., : y.shape[-1] // 2]], -1)
            return y * cos + half * sin if rotated else y

        for i, layer in enumerate(inner.layers):
            y, attention = layer.input_layernorm(x), layer.self_attn
            self.keys[i][:, :, self.width] = heads(attention.k_proj(y), True)
            self.values[i][:, :, self.width] = heads(attention.v_proj(y), False)
            k, v = self.keys[i][:, :, : self.width + 1], self.values[i][:, :, : self.width + 1]
            q = heads(attention.q_proj(y), True).view(len(x), k.shape[1], -1, k.shape[-1])
            weights = (q @ k.mT * attention.scaling + bias).softmax(-1)
            x = x + attention.o_proj((weights @ v).reshape(len(x), -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        self.width, self.positions = self.width + 1, self.positions + 1
        return self.model.lm_head(inner.norm(x))


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], hot: torch.Tensor, max_new: int, eos: int) -> list[list[int]]:
    """Outputs for one left-padded batch; greedy, or at T = 1 where `hot`. Finished rows leave the batch."""
    width = max(map(len, prompts))
    ids = torch.tensor([[eos] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache, places = DynamicCache(), (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=places, past_key_values=cache, logits_to_keep=1).logits[:, -1]
    decoder = Decoder(model, cache, mask, max_new)
    rows, outputs = list(range(len(prompts))), [[] for _ in prompts]
    for _ in range(max_new):
        token = logits.argmax(-1)
        warm = hot[rows].nonzero().flatten()
        if len(warm):
            token[warm] = logits[warm].softmax(-1).multinomial(1).flatten()
        for row, value in zip(rows, token.tolist(), strict=True):
            outputs[row].append(value)
        alive = (token != eos).nonzero().flatten()
        if len(alive) == 0:
            break
        if len(alive) < len(rows):
            decoder.keep(alive)
            token, rows = token[alive], [rows[i] for i in alive.tolist()]
        logits = decoder.step(token)
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=Path("experiments/drafters/build/target"))
    parser.add_argument("--prompts", type=Path, default=Path("prompts"))
    parser.add_argument("--out", type=Path, default=Path("experiments/drafters/build/data"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--max-new", type=int, default=224)
    parser.add_argument("--hot", type=float, default=0.3, help="share of outputs sampled at T = 1; the rest is greedy")
    parser.add_argument("--held-out", action="store_true", help="held-out prompts, greedy only")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model, tokenizer = load_target(args.target)
    prompts = (held_out_prompts if args.held_out else training_prompts)(args.prompts, rng)
    hot_share = 0.0 if args.held_out else args.hot
    args.out.mkdir(parents=True, exist_ok=True)
    end, count = time.monotonic() + 60 * args.minutes, 0
    with (args.out / "outputs.jsonl").open("w") as file:
        for start in range(0, len(prompts), args.batch):
            if time.monotonic() > end:
                break
            chunk = prompts[start : start + args.batch]
            chats = [[{"role": "user", "content": text}] for _, text in chunk]
            encoded = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
            hot = torch.tensor([rng.random() < hot_share for _ in chunk])
            outputs = generate(model, encoded, hot, args.max_new, tokenizer.eos_token_id)
            for (source, _), prompt, output, is_hot in zip(chunk, encoded, outputs, hot.tolist(), strict=True):
                row = {"source": source, "temperature": float(is_hot), "prompt_len": len(prompt)}
                row["tokens"] = prompt + output
                file.write(json.dumps(row) + "\n")
            file.flush()
            count += sum(map(len, outputs))
            left = end - time.monotonic()
            print(f"{start + len(chunk)} prompts, {count} output tokens, {left:.0f} s left", flush=True)


if __name__ == "__main__":
    main()
