"""Captures a run with vLLM's own adaptive verification on, under Triton's interpreter on a CPU: some blocks a second.

    python experiments/captures/adaptive.py --target TARGET --draft-model FIRST_26_LAYERS --prompts captures.jsonl \\
        --out traces/smollm2-adaptive-live

The interpreter needs vLLM's CPU engine, Triton and avsim installed beside it (`tests/live_engine/setup_v2.py` makes
one); the shims that let vLLM run there are those of the tests. `captures.jsonl` is written by run.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from run import CUT, LICENCE, PROMPTS, TARGET

from avsim.sources import write_trace
from avsim.sources.importers import Capture

ENGINE = Path(__file__).parents[2] / "tests" / "live_engine" / "run_engine_v2.py"
# Made up, and steep enough that slots are trimmed at four requests.
COSTS = {"draft_ms": [[1, 2.0], [8, 3.0]], "verify_ms": [[1, 3.0], [4, 3.2], [8, 4.0], [16, 6.0], [32, 11.0]]}
LONGEST_PROMPT, NUM_PROMPTS = 200, 52
NOTES = f"{TARGET} Made-up step costs; times are those of Triton's interpreter and mean nothing."


def job(args: argparse.Namespace) -> dict[str, object]:
    """Return what run_engine_v2.py is to do."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    chats = [[{"role": "user", "content": json.loads(row)["prompt"]}] for row in args.prompts.read_text().splitlines()]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    return {
        "model": str(args.target),
        "speculative": {"method": "draft_model", "model": str(args.draft_model), "num_speculative_tokens": 3},
        "prompts": [text for text in texts if len(tokenizer(text)["input_ids"]) < LONGEST_PROMPT][:NUM_PROMPTS],
        "max_tokens": 48,
        "max_num_seqs": 4,
        "max_model_len": 320,
        "async_scheduling": True,
        "category": "held-out",
        "adaptive": COSTS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "draft-model", "prompts", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file, captured = Path(scratch) / "job.json", Path(scratch) / "capture"
        file.write_text(json.dumps(job(args)))
        settings = {"AVSIM_TRACE_DIR": str(captured), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        settings |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, ENGINE, file], env=os.environ | settings, check=True)
        found = Capture(
            title=args.out.name,
            target="SmolLM2-135M-Instruct",
            drafter=CUT,
            prompts=PROMPTS,
            licence=LICENCE,
            notes=NOTES,
        ).read(captured)
        write_trace(args.out, found.card, found.requests, found.frames, found.steps)


if __name__ == "__main__":
    main()
