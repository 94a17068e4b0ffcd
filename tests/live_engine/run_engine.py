"""Run prompts through a real vLLM engine and print what it says about itself, as JSON on the last line of stdout.

python run_engine.py '{"model": …, "speculative": {…}, "prompts": […], "temperature": 0.0, …}'
"""

from __future__ import annotations

import gc
import json
import sys
import time


def main(job: dict) -> dict:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=job["model"],
        speculative_config=job.get("speculative"),
        dtype=job.get("dtype", "float32"),
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        # Small enough that a long prompt is prefilled in chunks.
        max_num_batched_tokens=job.get("batched_tokens", 64),
        seed=0,
        disable_log_stats=False,
    )
    sampling = [
        SamplingParams(
            temperature=temperature,
            top_p=job.get("top_p", 1.0),
            max_tokens=job["max_tokens"],
            # No seed of its own: this engine fails on one when a prompt is prefilled in chunks.
            extra_args={"avsim_category": "own"},
        )
        for temperature in job["temperatures"]
    ]
    start = time.perf_counter()
    outputs = engine.generate(job["prompts"], sampling, use_tqdm=False)
    elapsed_s = time.perf_counter() - start
    return {
        "prompt_ids": [list(output.prompt_token_ids) for output in outputs],
        "output_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "finish": [output.outputs[0].finish_reason for output in outputs],
        "counters": counters(engine),
        "elapsed_s": elapsed_s,
        "hook_s": hook_seconds(),
    }


def counters(engine: object) -> dict:
    """Return the engine's own counters of speculative decoding."""
    found = {}
    for metric in engine.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name != metric.name:
            found[name] = metric.values if hasattr(metric, "values") else metric.value
    return found


def hook_seconds() -> float | None:
    """Return the time that the capture's hooks took on the engine's thread, None where none is attached."""
    if "avsim.capture.vllm_v1" not in sys.modules:
        return None
    attachment = sys.modules["avsim.capture.vllm_v1"].Attachment
    return sum(item.hook_s for item in gc.get_objects() if isinstance(item, attachment))


if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    print(json.dumps(result), flush=True)
