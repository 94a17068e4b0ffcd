"""The vLLM plugin: in every process of an engine, the capture when `AVSIM_TRACE_DIR` is set, a bundle's estimator when
`AVSIM_DEPLOY` is.

vLLM calls `register` through the entry point group `vllm.general_plugins`, in each of its processes and perhaps more
than once. Nothing of vLLM is imported here before vLLM does so itself: hooks are set when the module that they
belong to is loaded.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["KNOWN_VERSIONS", "register"]

# The names that the hooks rely on were read, and run on the CPU engine, in these.
KNOWN_VERSIONS = ("0.32.0", "0.33.0")
V1_RUNNER = "vllm.v1.worker.gpu_model_runner"
V2_RUNNER = "vllm.v1.worker.gpu.model_runner"
HOOKS = {V1_RUNNER: "avsim.capture.vllm_v1", V2_RUNNER: "avsim.capture.vllm_v2"}
"""Which of vLLM's modules the capture hooks, and with which of ours."""
DEPLOY_HOOKS = {V2_RUNNER: "avsim.deploy.vllm_hooks"}
"""The same for the deployment."""

_log = logging.getLogger("avsim.capture")
_deploy_log = logging.getLogger("avsim.deploy")
_registered = False


def register() -> None:
    """Set the hooks, once per process; do nothing unless `AVSIM_TRACE_DIR` or `AVSIM_DEPLOY` is set. Never raises."""
    global _registered
    if _registered or not (os.environ.get("AVSIM_TRACE_DIR") or os.environ.get("AVSIM_DEPLOY")):
        return
    _registered = True
    if os.environ.get("AVSIM_TRACE_DIR"):
        _set(HOOKS, _log, "capture off")
    if os.environ.get("AVSIM_DEPLOY"):
        _deploy_log.setLevel(logging.INFO)
        _set(DEPLOY_HOOKS, _deploy_log, "vLLM's estimator stays")


def _set(hooks: Mapping[str, str], log: logging.Logger, otherwise: str) -> None:
    _show(log)
    try:
        version = _vllm_version()
        if version.partition("+")[0] not in KNOWN_VERSIONS:
            known = ", ".join(KNOWN_VERSIONS)
            names = " and ".join(hooks)
            log.warning("avsim: vLLM %s is not known (known: %s): %s not hooked, %s", version, known, names, otherwise)
            return
        for name in hooks:
            when_imported(name, lambda module: _hook(module, version, hooks, log, otherwise))
    except Exception as error:
        log.warning("avsim: %s: %s: %s", otherwise, type(error).__name__, error)


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Run an action on a module: now if it is loaded, else as soon as it has been."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


def _hook(module: ModuleType, version: str, hooks: Mapping[str, str], log: logging.Logger, otherwise: str) -> None:
    try:
        missing = importlib.import_module(hooks[module.__name__]).install(module, version)
        if missing:
            lacks = ", ".join(missing)
            log.warning("avsim: vLLM %s: %s has no %s, %s", version, module.__name__, lacks, otherwise)
    except Exception as error:
        log.warning("avsim: %s: %s: %s", otherwise, type(error).__name__, error)


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)


def _show(log: logging.Logger) -> None:
    """Let the one line about what is off reach stderr, in processes where nobody set up logging."""
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself; makes the loader of one module run an action after the module."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.action(module)

            loader.exec_module = exec_module
        return spec
