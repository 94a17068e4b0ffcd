"""Hooks on vLLM's Model Runner V2: what a step admitted, accepted and drafted goes to the recorder, one step later.

The runner only launches work on the device and does not learn what it sampled, so everything of a step is copied to
the host in the background and reported when it has arrived. As on the V1 runner, whatever goes wrong in a hook
switches the capture off with one line in the log, and the engine goes on.
"""

from __future__ import annotations

import atexit
import functools
import logging
import multiprocessing.util
import os
from types import ModuleType
from typing import Any

from avsim.capture.config import CaptureConfig
from avsim.capture.hooking import lacking
from avsim.capture.vllm_v1 import Attachment, is_recording_rank

__all__ = ["RunnerAttachment", "install"]

_HOOKED = {
    "GPUModelRunner": ("load_model", "execute_model", "sample_tokens"),
    "DraftModelSpeculator": ("_maybe_predict_acceptance",),
}
_ATTRIBUTE = "_avsim_attachment"
_log = logging.getLogger("avsim.capture")


def install(module: ModuleType, version: str) -> list[str]:
    """Hook the classes of a loaded `vllm.v1.worker.gpu.model_runner`; a second call does nothing.

    Returns:
        What the module lacks; if that is anything, nothing has been hooked.
    """
    missing = lacking(module, _HOOKED)
    if missing or hasattr(module.GPUModelRunner.execute_model, "__avsim__"):
        return missing
    _hook_runner(module.GPUModelRunner, version)
    _hook_speculator(module.DraftModelSpeculator)
    return []


def _hook_runner(runner_class: Any, version: str) -> None:
    load, execute, sample = runner_class.load_model, runner_class.execute_model, runner_class.sample_tokens

    @functools.wraps(load)
    def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(runner, *args, **kwargs)
        if getattr(runner, _ATTRIBUTE, None) is None:
            # Here, so that the tables exist before any graph is captured, and count when memory is measured.
            setattr(runner, _ATTRIBUTE, RunnerAttachment(runner, version))
        return result

    @functools.wraps(execute)
    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = getattr(runner, _ATTRIBUTE, None)
        if attachment is None or kwargs.get("dummy_run") or (len(args) > 1 and args[1]):
            return execute(runner, scheduler_output, *args, **kwargs)
        attachment.call("begin_step", scheduler_output)
        output = execute(runner, scheduler_output, *args, **kwargs)
        attachment.call("after_forward")
        return output

    @functools.wraps(sample)
    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = getattr(runner, _ATTRIBUTE, None)
        if attachment is not None:
            attachment.call("before_sampling")
        output = sample(runner, *args, **kwargs)
        if attachment is not None:
            attachment.call("end_step", output)
        return output

    execute_model.__avsim__ = True  # type: ignore[attr-defined]
    runner_class.load_model = load_model
    runner_class.execute_model = execute_model
    runner_class.sample_tokens = sample_tokens


def _hook_speculator(speculator_class: Any) -> None:
    predict = speculator_class._maybe_predict_acceptance

    @functools.wraps(predict)
    def _maybe_predict_acceptance(
        speculator: Any, logits: Any, idx_mapping: Any, draft_step: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # In a captured graph this runs once; what it launches is replayed with the graph.
        attachment = getattr(speculator, _ATTRIBUTE, None)
        if attachment is not None:
            attachment.call("see_logits", logits, idx_mapping, draft_step)
        return predict(speculator, logits, idx_mapping, draft_step, *args, **kwargs)

    speculator_class._maybe_predict_acceptance = _maybe_predict_acceptance


class RunnerAttachment(Attachment):
    """Guards the capture of one V2 runner."""

    def __init__(self, runner: Any, version: str) -> None:
        self.capture = None
        self.hook_s = 0.0
        try:
            self.capture = _start(runner, version)
            if self.capture is not None:
                self._watch(runner.speculator, runner.step_timing)
        except Exception as error:
            self._off(error)

    def _watch(self, speculator: Any, timing: Any) -> None:
        """Hook what belongs to this runner alone: its speculator, and where its forward pass begins."""
        propose, record_batch = speculator.propose, timing.record_batch

        def timed_propose(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dummy_run"):
                return propose(*args, **kwargs)
            self.call("begin_draft")
            drafted = propose(*args, **kwargs)
            self.call("end_draft")
            return drafted

        def noted_record_batch(*args: Any, **kwargs: Any) -> Any:
            self.call("begin_forward", bool(args[1] if len(args) > 1 else kwargs.get("full_cudagraph")))
            return record_batch(*args, **kwargs)

        speculator.propose = timed_propose
        timing.record_batch = noted_record_batch
        setattr(speculator, _ATTRIBUTE, self)


def _start(runner: Any, version: str) -> Any:
    config = CaptureConfig.from_env(os.environ)
    if config is None or not is_recording_rank():
        return None
    from avsim.capture.recorder import Recorder
    from avsim.capture.vllm_v2_facts import facts, unfit
    from avsim.capture.vllm_v2_runner import RunnerCapture

    reason = unfit(runner)
    if reason is not None:
        _log.warning("avsim: capture off: %s", reason)
        return None
    recorder = Recorder(config, facts(runner, version))
    if not recorder.active:
        return None  # it has said why
    capture = RunnerCapture(runner, recorder, config.top_m)
    # The capture holds steps back, so it must end before the recorder, which has registered itself at exit already.
    atexit.register(_finish_quietly, capture)
    multiprocessing.util.Finalize(None, _finish_quietly, args=(capture,), exitpriority=100)
    return capture


def _finish_quietly(capture: Any) -> None:
    try:
        capture.finish()
    except Exception as error:
        _log.warning("avsim: closing the capture failed: %s: %s", type(error).__name__, error)
