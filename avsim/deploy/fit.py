"""Why an engine cannot take a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avsim import __version__
from avsim.deploy.bundle import Bundle

__all__ = ["unfit_bundle", "unfit_engine"]

_NAMES = {
    "num_speculative_tokens": "num_speculative_tokens",
    "target": "target model",
    "drafter": "drafter",
    "drafter_kind": "kind of drafter",
    "draft_sampling": "draft sampling",
    "acceptance_rule": "acceptance rule",
}


def unfit_engine(runner: Any) -> str | None:
    """Return why no estimator can be put into this engine, None if one can; `runner` is vLLM's V2 model runner."""
    speculator, parallel = runner.speculator, runner.parallel_config
    if runner.speculative_config is None or speculator is None:
        return "speculative decoding is off"
    if not getattr(speculator, "enable_adaptive_verification", False):
        return "adaptive verification is off, so nothing reads an estimator; set enable_adaptive_verification"
    if getattr(speculator, "acceptance_estimator", None) is None:
        return "this drafter has a confidence head, so vLLM uses no estimator that could be replaced"
    if parallel.pipeline_parallel_size > 1:
        return "pipeline parallelism is not supported"
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return "prefill context parallelism is not supported"
    if getattr(runner, "lora_config", None) is not None:
        return "LoRA is on, and a bundle holds for one set of weights"
    if runner.speculative_config.rejection_sample_method == "synthetic":
        return "rejection_sample_method=synthetic invents its verdicts"
    return None


def unfit_bundle(bundle: Bundle, facts: Mapping[str, Any], version: str) -> str | None:
    """Return why a bundle is not for an engine, None if it is.

    Args:
        facts: what the card of a trace from this engine would say, and `max_num_seqs`, `max_num_batched_tokens`.
        version: of vLLM.
    """
    if bundle.avsim_version != __version__:
        return f"the bundle was made by avsim {bundle.avsim_version}, and this is {__version__}; bundle it anew"
    if version.partition("+")[0] not in bundle.engine_versions:
        return f"the bundle is for vLLM {' and '.join(bundle.engine_versions)}, and this is {version}"
    for name, words in _NAMES.items():
        held, here = getattr(bundle, name), facts[name]
        if held != here and not (name == "acceptance_rule" and _same_law(bundle, str(here))):
            return f"the bundle's {words} is {held!r}, the engine's {here!r}"
    if bundle.cost_table is not None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            held, here = bundle.cost_table["engine"][name], facts[name]
            if held != here:
                return f"the bundle's cost table is for {name} {held}, the engine has {here}"
    return None


def _same_law(bundle: Bundle, rule: str) -> bool:
    """A greedy draft is accepted if it equals the target's own token, under either name of the rule."""
    return bundle.draft_sampling == "greedy" and {bundle.acceptance_rule, rule} <= {"standard", "greedy-match"}
