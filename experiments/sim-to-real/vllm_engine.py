"""One run of vLLM's CPU engine, for `cross_check.py`: a job as JSON on stdin, its result on the last line of stdout.

Apart from the other scripts because this engine stumbles over what they import.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MARK = "cross-check result: "


def run_engine(job: dict[str, Any]) -> dict[str, Any]:
    """Run one engine: all prompts with one output token each, then in full; the difference is decoding."""
    from vllm import LLM, SamplingParams

    speculative = {"method": "eagle", "model": job["drafter"], "num_speculative_tokens": job["depth"]}
    engine = LLM(
        model=job["target"], speculative_config=speculative if job["depth"] else None, dtype="float32",
        enforce_eager=True, max_model_len=512, max_num_seqs=job["concurrency"], enable_prefix_caching=False, seed=0,
        disable_log_stats=False,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": tokens} for tokens in job["prompts"]]

    def timed(max_tokens: int) -> tuple[float, int]:
        start = time.perf_counter()
        outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
        return time.perf_counter() - start, sum(len(one.outputs[0].token_ids) for one in outputs)

    timed(2)
    before = counters(engine)
    prefill_s, first = timed(1)
    whole_s, tokens = timed(job["max_tokens"])
    after = counters(engine)
    blocks, accepted = (after[name] - before[name] for name in ("num_drafts", "num_accepted_tokens"))
    return {
        "tok_s": (tokens - first) / (whole_s - prefill_s), "accepted_per_req": accepted / blocks if blocks else 0.0,
        "tokens": tokens,
    }  # fmt: skip


def counters(engine: Any) -> dict[str, float]:
    """Return the engine's own counters of speculation; 0 where there is none."""
    found = {"num_drafts": 0.0, "num_accepted_tokens": 0.0}
    for metric in engine.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name in found:
            found[name] = float(metric.value)
    return found


if __name__ == "__main__":
    print("\n" + MARK + json.dumps(run_engine(json.load(sys.stdin))), flush=True)
