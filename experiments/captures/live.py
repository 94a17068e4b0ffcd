"""Serves the same prompts with a real vLLM engine on the CPU and captures the run: an on-policy trace.

    python experiments/captures/live.py --target TARGET --drafter DRAFTER --method eagle --prompts captures.jsonl \\
        --out traces/smollm2-eagle-live
    python experiments/captures/live.py --target TARGET --method ngram --prompts captures.jsonl \\
        --drafter-name "n-gram lookup in prompt and output, 1 to 3 tokens" --out traces/smollm2-ngram-live

`captures.jsonl` is written by run.py. Needs vLLM's CPU engine and avsim installed beside it (see docs/capture.md); the
hooks are switched on here. Greedy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from run import EAGLE, LICENCE, PROMPTS, TARGET

from avsim.sources import write_trace
from avsim.sources.importers import Capture


def serve(args: argparse.Namespace) -> None:
    """Run every prompt through the engine, `--concurrency` at a time."""
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    rows = [json.loads(line) for line in args.prompts.read_text().splitlines()][: args.limit]
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    drafter = {"model": str(args.drafter)} if args.drafter else {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    engine = LLM(
        model=str(args.target),
        speculative_config={"method": args.method, "num_speculative_tokens": args.k} | drafter,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=args.concurrency,
        seed=0,
        async_scheduling=False,
    )
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    params = [
        SamplingParams(temperature=0.0, max_tokens=args.max_tokens, extra_args={"avsim_category": row["category"]})
        for row in rows
    ]
    engine.generate([{"prompt_token_ids": one} for one in ids], params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "prompts", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, help="none for --method ngram")
    parser.add_argument("--method", default="eagle")
    parser.add_argument("--drafter-name", default=EAGLE)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as captured:
        os.environ |= {"AVSIM_TRACE_DIR": captured, "AVSIM_TRACE_TOP_M": "8"}
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
        engine = multiprocessing.get_context("spawn").Process(target=serve, args=(args,))
        engine.start()
        engine.join()
        if engine.exitcode:
            sys.exit(f"the engine failed with status {engine.exitcode}")
        found = Capture(
            title=args.out.name,
            target="SmolLM2-135M-Instruct",
            drafter=args.drafter_name,
            prompts=PROMPTS,
            licence=LICENCE,
            notes=TARGET,
        ).read(Path(captured))
        write_trace(args.out, found.card, found.requests, found.frames, found.steps)


if __name__ == "__main__":
    main()
