"""Run prompts through vLLM's Model Runner V2 on a CPU and print what it says about itself, as JSON on the last line.

    python run_engine_v2.py JOB.json

The interpreter needs `triton` beside vLLM's CPU engine. With `AVSIM_TRACE_DIR` set and avsim installed the run is
recorded; with `AVSIM_DEPLOY` set a bundle's estimator is put in. A job is

    {"model": …, "speculative": {…} or null, "prompts": […],
     "temperature": 0.0, "max_tokens": 24, "ignore_eos": false, "stop_token_ids": null, "category": "own",
     "max_num_seqs": 8, "batched_tokens": 256, "max_model_len": 512, "dtype": "float32", "seed": 0,
     "async_scheduling": false, "adaptive": null or {"draft_ms": [[1, 2.0], …], "verify_ms": [[1, 3.0], …]},
     "refit_interval": null, "use_then": null or "avsim"}

of which all but the first three may be left out; `adaptive` switches adaptive verification on with these cost curves.
`refit_interval` is for vLLM's own estimator, which then also starts cold with the first request; after `use_then` the
prompts run once more, with that estimator's confidences.
Its speed is a few tokens per second. A job larger than `max_num_seqs` runs in one go; the engine queues the rest.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import v2_shims


def main(job: dict) -> dict:
    v2_shims.prepare()
    from vllm import LLM, SamplingParams

    speculative = job.get("speculative")
    costs = job.get("adaptive")
    if costs:
        v2_shims.allow_adaptive_verification()
        speculative = speculative | {"enable_adaptive_verification": True}
    if job.get("async_scheduling"):
        v2_shims.keep_async_scheduling()
    if job.get("refit_interval"):
        v2_shims.refit_every(job["refit_interval"])
    engine = LLM(
        model=job["model"],
        speculative_config=speculative,
        dtype=job.get("dtype", "float32"),
        enforce_eager=True,
        max_model_len=job.get("max_model_len", 512),
        max_num_seqs=job.get("max_num_seqs", 8),
        max_num_batched_tokens=job.get("batched_tokens", 256),
        seed=job.get("seed", 0),
        enable_prefix_caching=False,
        disable_log_stats=False,
        async_scheduling=bool(job.get("async_scheduling")),
        worker_extension_cls="avsim.deploy.control.WorkerExtension" if "use_then" in job else "",
    )
    runner = find_runner(engine)
    budgets = []
    if costs:
        v2_shims.hand_in_costs(runner, costs["draft_ms"], costs["verify_ms"])
        budgets = v2_shims.note_budgets(runner)
        if job.get("refit_interval"):
            v2_shims.start_cold(runner)
    observed = v2_shims.observe(runner) if hasattr(runner.speculator, "observe_verification") else {}
    sampling = SamplingParams(
        temperature=job.get("temperature", 0.0),
        max_tokens=job.get("max_tokens", 24),
        ignore_eos=job.get("ignore_eos", False),
        stop_token_ids=job.get("stop_token_ids"),
        extra_args={"avsim_category": job.get("category", "own")},
    )
    start = time.perf_counter()
    outputs = engine.generate(job["prompts"], sampling, use_tqdm=False)
    said = {
        "prompt_ids": [list(output.prompt_token_ids) for output in outputs],
        "output_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "finish": [output.outputs[0].finish_reason for output in outputs],
        "counters": counters(engine),
        "elapsed_s": time.perf_counter() - start,
        "async_scheduling": engine.llm_engine.vllm_config.scheduler_config.async_scheduling,
        # An engine's request id starts with the number of its prompt.
        "observed": [observed[key] for key in sorted(observed, key=lambda key: int(key.partition("-")[0]))],
        "estimator": estimator(runner),
        "hook_s": hook_seconds(runner),
        "budgets": list(budgets),
    }
    if job.get("use_then"):
        said["report"] = engine.collective_rpc("avsim_report")
        said["used"] = engine.collective_rpc("avsim_use", args=(job["use_then"],))
        outputs = engine.generate(job["prompts"], sampling, use_tqdm=False)
        said["then"] = {
            "output_ids": [list(output.outputs[0].token_ids) for output in outputs],
            "budgets": budgets[len(said["budgets"]) :],
            "report": engine.collective_rpc("avsim_report"),
            "metrics": metrics(),
        }
    return said


def find_runner(engine: Any) -> Any:
    return engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def estimator(runner: Any) -> dict | None:
    """Return what the estimator that decided at first has learned by the end."""
    held = getattr(runner.speculator, "acceptance_estimator", None)
    if hasattr(held, "mine") and not held.shadow:
        return held.mine.state().to_json()
    found = v2_shims.own_estimator(runner)
    if found is None:
        return None
    return {"slope": found.slope.item(), "intercepts": found.intercepts.tolist(), "refits": found._refits}


def counters(engine: Any) -> dict:
    """Return the engine's own counters of speculative decoding."""
    found = {}
    for metric in engine.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name != metric.name:
            found[name] = metric.values if hasattr(metric, "values") else metric.value
    return found


def metrics() -> dict[str, float]:
    """Return avsim's metrics in this process' registry, by name and labels."""
    from prometheus_client import REGISTRY

    samples = (sample for family in REGISTRY.collect() for sample in family.samples)
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for sample in samples
        if sample.name.startswith("avsim_") and not sample.name.endswith("_created")
    }


def hook_seconds(runner: Any) -> float | None:
    """Return the time that the capture's hooks took on the engine's thread, None where none is attached."""
    attachment = getattr(runner, "_avsim_attachment", None)
    return None if attachment is None else attachment.hook_s


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))), flush=True)
