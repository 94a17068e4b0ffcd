"""What the card of a trace says about an engine on Model Runner V2, and which ones the hooks cannot record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from avsim.capture import vllm_facts

__all__ = ["facts", "feature_source", "graph_mode", "has_confidence", "unfit"]


def unfit(runner: Any) -> str | None:
    """Return why this engine cannot be recorded, None if it can."""
    spec = runner.speculative_config
    if spec is None or runner.speculator is None:
        return "speculative decoding is off, there is nothing to record"
    if runner.parallel_config.pipeline_parallel_size > 1:
        return "pipeline parallelism is not supported"
    if getattr(runner.parallel_config, "prefill_context_parallel_size", 1) > 1:
        return "prefill context parallelism is not supported"
    if spec.rejection_sample_method == "synthetic":
        return "rejection_sample_method=synthetic invents its verdicts"
    return None


def facts(runner: Any, version: str) -> dict[str, Any]:
    """Describe the engine, as `avsim.capture.vllm_facts.facts` does for a V1 runner."""
    spec, speculator = runner.speculative_config, runner.speculator
    as_v1 = SimpleNamespace(
        speculative_config=spec,
        model_config=runner.model_config,
        num_spec_tokens=runner.num_speculative_steps,
        drafter=SimpleNamespace(_enable_probabilistic_draft_probs=spec.draft_sample_method == "probabilistic"),
        device=runner.device,
    )
    adaptive = bool(getattr(speculator, "enable_adaptive_verification", False))
    return vllm_facts.facts(as_v1, version) | {"adaptive_verification": adaptive}


def feature_source(runner: Any) -> bool:
    """Whether the speculator shows its logits."""
    speculator = runner.speculator
    shows = hasattr(speculator, "_maybe_predict_acceptance")
    return shows and not getattr(speculator, "use_local_argmax_reduction", False)


def has_confidence(runner: Any) -> bool:
    """Whether the engine computes confidences: of the drafter's head, or else of its online estimator."""
    speculator = runner.speculator
    return bool(getattr(speculator, "enable_adaptive_verification", False)) and hasattr(
        speculator, "draft_token_confidence_probs"
    )


def graph_mode(runner: Any, full_cudagraph: bool | None) -> str | None:
    """Return the trace's word for how a step ran, None if that is not known."""
    if full_cudagraph:
        return "full"
    mode = getattr(getattr(runner, "compilation_config", None), "cudagraph_mode", None)
    return "none" if runner.device.type == "cpu" or getattr(mode, "name", None) == "NONE" else None
