"""Hooks on vLLM's V1 model runner: what a step scheduled, drafted and accepted goes to the recorder.

Drafts are graded one step after they were made. Everything of a step is reported at its end, the verdicts before the
new proposals. The hooks run on the engine's own thread and only hand arrays over; whatever goes wrong in them switches
the capture off with one line in the log, and the engine goes on.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing.util
import os
import time
from types import ModuleType
from typing import Any

from avsim.capture.config import CaptureConfig
from avsim.capture.hooking import lacking

__all__ = ["Attachment", "install"]

_HOOKED = ("execute_model", "sample_tokens", "propose_draft_token_ids")
_ATTRIBUTE = "_avsim_attachment"
_log = logging.getLogger("avsim.capture")


def install(module: ModuleType, version: str) -> list[str]:
    """Hook the runner class of a loaded `vllm.v1.worker.gpu_model_runner`; a second call does nothing.

    Returns:
        What the module lacks; if that is anything, nothing has been hooked.
    """
    missing = lacking(module, {"GPUModelRunner": _HOOKED})
    if missing or hasattr(module.GPUModelRunner.execute_model, "__avsim__"):
        return missing
    runner_class = module.GPUModelRunner
    originals = {name: getattr(runner_class, name) for name in _HOOKED}

    @functools.wraps(originals["execute_model"])
    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment(runner, version)
        attachment.call("begin_step", scheduler_output)
        start = time.perf_counter()
        output = originals["execute_model"](runner, scheduler_output, *args, **kwargs)
        attachment.call("after_forward", scheduler_output, output, (time.perf_counter() - start) * 1e3)
        return output

    @functools.wraps(originals["propose_draft_token_ids"])
    def propose_draft_token_ids(runner: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment(runner, version)
        attachment.call("begin_draft")
        start = time.perf_counter()
        drafted = originals["propose_draft_token_ids"](runner, *args, **kwargs)
        attachment.call("after_draft", drafted, (time.perf_counter() - start) * 1e3)
        return drafted

    @functools.wraps(originals["sample_tokens"])
    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        output = originals["sample_tokens"](runner, *args, **kwargs)
        _attachment(runner, version).call("end_step", output)
        return output

    execute_model.__avsim__ = True  # type: ignore[attr-defined]
    runner_class.execute_model = execute_model
    runner_class.sample_tokens = sample_tokens
    runner_class.propose_draft_token_ids = propose_draft_token_ids
    return []


def _attachment(runner: Any, version: str) -> Attachment:
    attachment = getattr(runner, _ATTRIBUTE, None)
    if attachment is None:
        attachment = Attachment(runner, version)
        setattr(runner, _ATTRIBUTE, attachment)
    return attachment


class Attachment:
    """Guards one runner's capture: calls into it until something fails, never after.

    Attributes:
        capture: the live capture, None while it is off.
        hook_s: seconds spent in the hooks so far.
    """

    def __init__(self, runner: Any, version: str) -> None:
        self.capture: Any = None
        self.hook_s = 0.0
        try:
            self.capture = _start(runner, version)
        except Exception as error:
            self._off(error)

    def call(self, name: str, *args: Any) -> None:
        """Call a method of the capture if there still is one. Never raises."""
        if self.capture is None or not self.capture.recorder.active:
            return
        start = time.perf_counter()
        try:
            getattr(self.capture, name)(*args)
        except Exception as error:
            self._off(error)
        self.hook_s += time.perf_counter() - start

    def _off(self, error: Exception) -> None:
        capture, self.capture = self.capture, None
        _log.warning("avsim: capture off: %s: %s", type(error).__name__, error)
        try:
            if capture is not None:
                capture.close()
        except Exception as again:
            _log.debug("avsim: closing the capture failed: %s", again)


def _start(runner: Any, version: str) -> Any:
    config = CaptureConfig.from_env(os.environ)
    if config is None or not is_recording_rank():
        return None
    from avsim.capture import vllm_cpu_patch
    from avsim.capture.recorder import Recorder
    from avsim.capture.vllm_facts import facts, unfit
    from avsim.capture.vllm_v1_runner import RunnerCapture

    reason = unfit(runner)
    if reason is not None:
        _log.warning("avsim: capture off: %s", reason)
        return None
    if runner.device.type == "cpu" and vllm_cpu_patch.repair():
        _log.warning("avsim: this vLLM's CPU sampler reads uninitialised temperatures at T > 0; repaired here")
    recorder = Recorder(config, facts(runner, version))
    if not recorder.active:
        return None  # it has said why
    # Runs at exit both in a main process and in one that `multiprocessing` started, where atexit alone would not.
    multiprocessing.util.Finalize(None, _close_quietly, args=(recorder,), exitpriority=100)
    return RunnerCapture(runner, recorder, config.top_m)


def _close_quietly(recorder: Any) -> None:
    try:
        recorder.close()
    except Exception as error:
        _log.warning("avsim: closing the capture failed: %s: %s", type(error).__name__, error)


def is_recording_rank() -> bool:
    """Tensor-parallel ranks sample the same tokens, so the first one of each engine records for all."""
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return bool(get_tensor_model_parallel_rank() == 0)
