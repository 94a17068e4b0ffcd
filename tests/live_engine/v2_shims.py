"""What lets vLLM 0.32's Model Runner V2 run on a CPU, under Triton's interpreter; for tests and slow recordings only.

Nothing here is part of avsim. `prepare` comes before vLLM is imported; `allow_adaptive_verification`,
`keep_async_scheduling` and `refit_every` before the engine is made; the others once it is made. Ranking, budget,
allocation and estimator stay vLLM's own.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def prepare() -> None:
    """Switch on Model Runner V2 and Triton's interpreter, and mend two things that stop the interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    from triton.backends import backends
    from triton.runtime import interpreter

    # Without a CPU backend vLLM switches Triton off; the interpreter needs none.
    backends.setdefault("cpu", next(iter(backends.values())))
    native = interpreter._interpreter

    class Masked:
        """Loads and stores with masks as the native code wants them: bool, and of the pointers' shape."""

        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        @staticmethod
        def load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
            other = np.ascontiguousarray(np.broadcast_to(other, pointers.shape))
            return native.load(pointers, _mask(mask, pointers), other, dtype)

        @staticmethod
        def store(pointers: Any, value: Any, mask: Any) -> Any:
            value = np.ascontiguousarray(np.broadcast_to(value, pointers.shape))
            return native.store(pointers, value, _mask(mask, pointers))

    interpreter._interpreter = Masked()
    patch_once(interpreter.InterpretedFunction)


def patch_once(function_class: Any) -> None:
    """Let a device function replace the language by its interpreted form at its first call only.

    The interpreter does so at every call of every device function, `tl.sum` included, which is most of its time. What
    it replaces in `tl.core` it never puts back, and what it replaces in `tl` the launch itself has replaced before.
    """
    patching, patched = function_class.__call__, set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn in patched:
            return function.rewrite()(*args, **kwargs)
        patched.add(function.fn)
        return patching(function, *args, **kwargs)

    function_class.__call__ = call


def _mask(mask: Any, pointers: Any) -> Any:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(mask).astype(np.bool_), pointers.shape))


def allow_adaptive_verification() -> None:
    """Take away the checks that ask for CUDA graphs, and give CPU attention the true query lengths."""
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    VllmConfig._validate_adaptive_verification = lambda self: None
    CPUAttentionBackend.supports_device_cpu_query_lens_mismatch = classmethod(lambda cls: True)
    adaptive.get_query_lens_mismatch_unsupported_backend = lambda *args, **kwargs: None
    adaptive.get_varlen_cudagraph_unsupported_backend = lambda *args, **kwargs: None
    model_runner.resolve_adaptive_cudagraph_mode = lambda mode, **kwargs: mode
    adaptive._assign_draft_token_budget_compiled = adaptive._assign_draft_token_budget

    prepare_inputs = model_runner.GPUModelRunner.prepare_inputs
    manager_class = adaptive.AdaptiveVerificationManager
    compact_batch = manager_class.compact_batch

    def noting_slots(runner: Any, scheduler_output: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if runner.adaptive_verification is not None:
            runner.adaptive_verification.batch_slots = state.idx_mapping_np
        return prepare_inputs(runner, scheduler_output, state, *args, **kwargs)

    def exact(manager: Any, num_drafts: Any, num_scheduled: Any, cu_num_logits: Any) -> Any:
        """CPU attention takes the lengths from the host, so the even split that is enough for a GPU is not."""
        import torch

        budget = manager._batch_budget[2]
        if not 0 < budget < int(num_drafts.sum()):
            return compact_batch(manager, num_drafts, num_scheduled, cu_num_logits)
        admitted = torch.from_numpy(num_drafts.copy())
        slots = torch.from_numpy(np.ascontiguousarray(manager.batch_slots)).long()
        adaptive._assign_draft_token_budget_compiled(
            manager._confidence_probs, slots, admitted, budget, manager.num_speculative_steps
        )
        return num_scheduled - num_drafts + admitted.numpy(), cu_num_logits

    model_runner.GPUModelRunner.prepare_inputs = noting_slots
    manager_class.compact_batch = exact


def keep_async_scheduling() -> None:
    """Schedule a step ahead of its results, as on a GPU; the CPU platform switches that off as not needed."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def observe(runner: Any) -> dict[str, list[dict]]:
    """Note every verdict together with what vLLM's estimator holds for it, by the engine's request id.

    The first entry of a request is its prefill's. Filled while the engine runs.
    """
    seen: dict[str, list[dict]] = {}
    speculator, estimator = runner.speculator, own_estimator(runner)
    original = speculator.observe_verification

    def observe_verification(slots: Any, num_sampled: Any, num_rejected: Any) -> None:
        for row, slot in enumerate(slots.tolist()):
            if sampled := int(num_sampled[row]):
                entry = {"accepted": sampled - 1, "admitted": sampled - 1 + int(num_rejected[row])}
                if estimator is not None:
                    entry["features"] = estimator.features[slot].tolist()
                    entry["predictions"] = estimator.predictions[slot].tolist()
                seen.setdefault(runner.req_states.index_to_req_id[slot], []).append(entry)
        original(slots, num_sampled, num_rejected)

    speculator.observe_verification = observe_verification
    return seen


def hand_in_costs(runner: Any, draft: list[list[float]], verify: list[list[float]]) -> None:
    """Give adaptive verification its cost curves, `[[size, ms], …]`, which it would have measured on a GPU."""
    runner.adaptive_verification.set_cost_curves(
        [(int(size), ms) for size, ms in draft], [(int(size), ms) for size, ms in verify]
    )


def own_estimator(runner: Any) -> Any | None:
    """Return vLLM's estimator, None where there is none or where avsim's runs in its place."""
    found = getattr(runner.speculator, "acceptance_estimator", None)
    if not hasattr(found, "theirs"):
        return found
    return found.theirs if found.shadow else None


def refit_every(num_steps: int) -> None:
    """Let vLLM's estimator refit often enough for a short run."""
    from vllm.v1.worker.gpu.spec_decode.acceptance_estimator import OnlineAcceptanceEstimator

    OnlineAcceptanceEstimator.REFIT_INTERVAL = num_steps


def start_cold(runner: Any) -> None:
    """Take from vLLM's estimator what it has learned from the steps that warmed the engine up."""
    estimator = own_estimator(runner)
    if estimator is None:
        return
    estimator.slope.fill_(0.5)
    estimator.intercepts.fill_(-0.2)
    for statistic in (estimator.info, estimator.grad, estimator.counts):
        statistic.zero_()
    estimator._steps_since_refit = estimator._refits = 0


def note_budgets(runner: Any) -> list[int]:
    """Note the budget of each step that has drafts; filled while the engine runs."""
    manager, budgets = runner.adaptive_verification, []
    original = manager.get_num_tokens

    def get_num_tokens(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        budgets.append(manager._batch_budget[2])
        return found

    manager.get_num_tokens = get_num_tokens
    return budgets
