"""What the card of a trace says about a vLLM engine, and which engines the V1 hooks cannot record."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["DRAFTERS_WITH_LOGITS", "drafter_kind", "facts", "hardware", "unfit"]

DRAFTERS_WITH_LOGITS = ("draft-model", "eagle", "mtp", "dflash")


def unfit(runner: Any) -> str | None:
    """Return why this engine cannot be recorded, None if it can."""
    if runner.speculative_config is None:
        return "speculative decoding is off, there is nothing to record"
    if runner.use_async_scheduling:
        return "asynchronous scheduling on vLLM's V1 runner is not supported; start it with --no-async-scheduling"
    if runner.parallel_config.pipeline_parallel_size > 1:
        return "pipeline parallelism is not supported"
    if runner.speculative_config.rejection_sample_method == "synthetic":
        return "rejection_sample_method=synthetic invents its verdicts"
    return None


def facts(runner: Any, version: str) -> dict[str, Any]:
    """Describe the engine; a model given as a local folder is named by the folder alone."""
    spec = runner.speculative_config
    return {
        "target": _name(runner.model_config.model),
        "drafter": _name(spec.model) if spec.model else spec.method,
        "drafter_kind": drafter_kind(spec.method),
        "num_speculative_tokens": int(runner.num_spec_tokens),
        "draft_sampling": "probabilistic" if samples_drafts(runner) else "greedy",
        "acceptance_rule": spec.rejection_sample_method,
        "engine": "vllm",
        "engine_version": version,
        "hardware": hardware(runner.device),
        "adaptive_verification": False,
        "vocab_size": int(runner.model_config.get_vocab_size()),
        "seed": runner.model_config.seed,
    }


def samples_drafts(runner: Any) -> bool:
    """Whether drafts are drawn from the drafter's distribution rather than being its most likely tokens."""
    return bool(getattr(runner.drafter, "_enable_probabilistic_draft_probs", False))


def drafter_kind(method: str) -> str:
    """Return the card's word for vLLM's speculative method.

    >>> drafter_kind("eagle3"), drafter_kind("draft_model"), drafter_kind("deepseek_mtp")
    ('eagle', 'draft-model', 'mtp')
    """
    if method.endswith("mtp"):
        return "mtp"
    known = {"draft_model": "draft-model", "eagle3": "eagle", "ngram_gpu": "ngram"}
    kind = known.get(method, method)
    return kind if kind in (*DRAFTERS_WITH_LOGITS, "dspark", "ngram", "medusa") else "unknown"


def _name(model: str) -> str:
    return Path(model).name if os.path.isdir(model) else model


def hardware(device: Any) -> str:
    """Name a torch device."""
    if device.type != "cpu":
        import torch

        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{model}, {os.cpu_count()} logical CPUs"
