"""Hooks on vLLM's Model Runner V2 that put a bundle's estimator in the place of vLLM's.

After the drafter is loaded, and so before memory is measured and graphs are captured, the speculator's estimator is
replaced; once the engine has a manager of adaptive verification, that is told about requests, budgets and cost tables.
Whatever speaks against it is one line in the log, and vLLM's own estimator stays.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import multiprocessing.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from avsim.capture.hooking import lacking
from avsim.deploy.allocation import put_in
from avsim.deploy.bundle import Bundle, read_bundle
from avsim.deploy.config import DeployConfig
from avsim.errors import InputError

__all__ = ["install"]

_HOOKED = ("load_model", "initialize_kv_cache")
_log = logging.getLogger("avsim.deploy")


def install(module: ModuleType, version: str) -> list[str]:
    """Hook the runner class of a loaded `vllm.v1.worker.gpu.model_runner`; a second call does nothing.

    Returns:
        What the module lacks; if that is anything, nothing has been hooked.
    """
    missing = lacking(module, {"GPUModelRunner": _HOOKED})
    if missing or hasattr(module.GPUModelRunner.initialize_kv_cache, "__avsim__"):
        return missing
    runner_class = module.GPUModelRunner
    load, initialize = runner_class.load_model, runner_class.initialize_kv_cache

    @functools.wraps(load)
    def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(runner, *args, **kwargs)
        try:
            _deploy(runner, version)
        except Exception as error:
            _log.warning("avsim: not deployed: %s: %s", type(error).__name__, error)
        return result

    @functools.wraps(initialize)
    def initialize_kv_cache(runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = initialize(runner, *args, **kwargs)
        try:
            _watch(runner)
        except Exception as error:
            _log.warning("avsim: requests are not followed: %s: %s", type(error).__name__, error)
        return result

    initialize_kv_cache.__avsim__ = True  # type: ignore[attr-defined]
    runner_class.load_model, runner_class.initialize_kv_cache = load_model, initialize_kv_cache
    return []


def _deploy(runner: Any, version: str) -> None:
    """Replace the estimator of one runner's speculator, on all tensor-parallel ranks or on none."""
    from avsim.deploy.agree import agree

    config, bundle, made = None, None, None
    try:
        config = DeployConfig.from_env(os.environ)
        if config is None or config.mode == "off":
            refusal: str | None = "AVSIM_DEPLOY_MODE is off"
        else:
            bundle, refusal = _fitting(config, runner, version)
        if refusal is None and bundle is not None:
            made = _make(bundle, runner)
    except InputError as error:
        refusal = str(error)
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    group = _group()
    rank, ranks = int(group.rank), tuple(group.ranks)
    proposal = "" if bundle is None or config is None else f"{bundle.sha256} {config.mode} {config.allocate}"
    refusal = agree(_store(len(ranks)), rank, ranks, proposal, refusal)
    first = rank == ranks[0]
    if refusal is not None or bundle is None or made is None or config is None:
        if first:
            _log.warning("avsim: not deployed, vLLM's estimator stays: %s", refusal)
        return
    _put_in(runner, bundle, made, config, first)


def _fitting(config: DeployConfig, runner: Any, version: str) -> tuple[Bundle | None, str | None]:
    from avsim.capture.vllm_v2_facts import facts
    from avsim.deploy.fit import unfit_bundle, unfit_engine

    refusal = unfit_engine(runner)
    if refusal is not None:
        return None, refusal
    bundle = read_bundle(config.bundle)
    sizes = {
        "max_num_seqs": int(runner.speculator.max_num_reqs),
        "max_num_batched_tokens": int(runner.speculator.max_num_tokens),
    }
    return bundle, unfit_bundle(bundle, facts(runner, version) | sizes, version)


def _make(bundle: Bundle, runner: Any) -> Any:
    """Return the estimator on the engine's device, tried out."""
    from avsim.deploy.trial import try_out
    from avsim.kernels import device_estimator

    speculator = runner.speculator
    mine = device_estimator(
        bundle.estimator, int(speculator.max_num_reqs), int(speculator.num_speculative_steps), speculator.device
    )
    model = runner.model_config
    dtype = getattr(model, "head_dtype", model.dtype)
    try_out(mine, bundle.estimator, bundle.state, int(speculator.vocab_size), dtype)
    return mine


def _put_in(runner: Any, bundle: Bundle, made: Any, config: DeployConfig, first: bool) -> None:
    from avsim.deploy.estimator import DeployedEstimator
    from avsim.deploy.ledger import Ledger
    from avsim.deploy.prometheus import make_metrics
    from avsim.deploy.report import Reporter

    speculator, shadow = runner.speculator, config.mode == "shadow"
    theirs = speculator.acceptance_estimator
    ledger = reporter = None
    if first:
        # The rank of a dense model's engine is 0 in each of them, its index is not.
        parallel = runner.parallel_config
        engine = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))
        tables = {"avsim": made.predictions} | ({"vllm": theirs.predictions} if shadow else {})
        ledger = Ledger(tables, min(bundle.estimator.refit_interval, 100))
        reporter = Reporter(_path(config, engine), config.report_seconds, engine, make_metrics(engine))
    deployed = DeployedEstimator(
        bundle, made, theirs, shadow=shadow, ledger=ledger, reporter=reporter, allocates=config.allocate == "avsim"
    )
    speculator.acceptance_estimator = deployed
    if reporter is not None:
        # At exit both in a main process and in one that `multiprocessing` started, where atexit alone would not run.
        atexit.register(reporter.close, deployed)
        multiprocessing.util.Finalize(None, reporter.close, args=(deployed,), exitpriority=100)
    role = "beside vLLM's, which decides" if shadow else "in place of vLLM's"
    if first:
        made_up = ", fitted to SYNTHETIC traces" if bundle.synthetic else ""
        _log.info("avsim: %s runs %s (bundle %s%s)", bundle.spec, role, bundle.sha256[:12], made_up)


def _watch(runner: Any) -> None:
    from avsim.deploy.estimator import DeployedEstimator

    deployed = getattr(runner.speculator, "acceptance_estimator", None)
    if not isinstance(deployed, DeployedEstimator) or runner.adaptive_verification is None:
        return
    module = importlib.import_module("vllm.v1.worker.gpu.spec_decode.adaptive_verification")
    deployed.watch(runner.adaptive_verification, module.build_cost_tables_from_curves)
    if deployed.allocates:
        put_in(module, deployed.avsim_decides, deployed.mine.predictions)
        if deployed.ledger is not None:
            _log.info("avsim: its rule allocates budgets while its estimator decides")


def _path(config: DeployConfig, engine: int) -> Path | None:
    """Data-parallel engines each write a file of their own; the first one has the name that was asked for."""
    path = config.report
    if path is None or engine == 0:
        return path
    return path.with_name(f"{path.stem}-{engine}{path.suffix}")


def _group() -> Any:
    from vllm.distributed.parallel_state import get_tp_group

    return get_tp_group()


def _store(num_ranks: int) -> Any:
    """Return the store that torch's process group was started with; ranks that are alone need none."""
    if num_ranks == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
