"""Comparing over worker processes: every estimator on every trace, and what was asked for beyond scores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from avsim import estimators, registry
from avsim.comparison.config import CompareConfig
from avsim.comparison.decisions import Bench, explain, throughput_rows
from avsim.comparison.document import document
from avsim.comparison.drift import SCENARIOS, Scene, drift, follower, make_scene
from avsim.comparison.influence import influence
from avsim.comparison.scoring import Scores, fit_halves, score
from avsim.comparison.stage import Stage, admission, learn_from, stage
from avsim.comparison.walk import Table
from avsim.costs import load
from avsim.errors import InputError
from avsim.estimators.base import EstimatorState
from avsim.sources import open_trace
from avsim.sources.base import Trace
from avsim.what_if import check_match
from avsim.workload import Pool

__all__ = ["compare", "read_states"]

_Progress = Callable[[int, int, str], None]
_CEILINGS = ("offline-gbdt", "offline-gbdt:draw=false")


def compare(
    traces: Sequence[str | Path],
    config: CompareConfig,
    *,
    states: dict[str, EstimatorState] | None = None,
    progress: _Progress = lambda done, total, what: None,
    workers: int | None = None,
) -> list[dict[str, Any]]:
    """Score estimators prequentially on each trace, and simulate, drift and explain as the config asks.

    Every estimator meets the same blocks in the same steps, predicts them, and then learns from the slots that were
    verified. All are scored on the same slots: every reached one, verified or not. Offline estimators are fitted to
    each half of the source requests and predict the other one.

    Args:
        traces: trace folders.
        config: what to compare.
        states: by spec, a state to start from instead of a cold start.
        progress: called with (done, all, what was done).
        workers: processes; None for one per core. The result does not depend on it.

    Returns:
        for each trace a JSON-ready document with one row per estimator.

    Raises:
        InputError: a trace lacks a feature, no estimator fits, or the step costs are missing or of another model.
    """
    opened = [open_trace(path) for path in traces]
    for trace, path in zip(opened, traces, strict=True):
        if [str(other.path) for other in opened].count(str(trace.path)) > 1:
            raise InputError(f"{path} is given twice")
    jobs: list[_Job] = []
    chosen: list[tuple[str, ...]] = []
    for trace in opened:
        names = tuple(dict.fromkeys(registry.format_spec(item) for item in config.chosen(trace)))
        _check(trace, config, names, states or {})
        chosen.append(names)
        jobs += _jobs(trace, config, names, states or {})
    if states and not {spec for names in chosen for spec in names} & set(states):
        raise InputError(f"no estimator that is compared has a state: they are of {', '.join(states)}")
    found: list[Any] = []
    for done, result in enumerate(_run_all(jobs, workers or min(len(jobs), os.cpu_count() or 1)), 1):
        found.append(result)
        progress(done, len(jobs), f"{jobs[done - 1][0]} of {Path(jobs[done - 1][1]).name}")
    documents = []
    for trace, names in zip(opened, chosen, strict=True):
        mine: dict[str, list[Any]] = {kind: [] for kind in ("scores", "throughput", "explain", "drift", "influence")}
        for job, result in zip(jobs, found, strict=True):
            if job[1] == str(trace.path):
                mine[job[0]].append(result)
        item = _staged(str(trace.path), config, names)
        documents.append(
            document(item, config, names, mine["scores"], tuple(states or {}))
            | _costs(trace, config)
            | {"left_out": trace.card.kind != "dense" and bool(config.loads or config.then)}
            | {kind: [line for result in mine[kind] for line in result] for kind in mine if kind != "scores"}
        )
    return documents


def _costs(trace: Trace, config: CompareConfig) -> dict[str, Any]:
    """Return which step costs the simulations ran on."""
    if not config.loads or config.cost is None or trace.card.kind != "dense":
        return {"step_costs": None, "belief": None, "what_if_costs": False}
    cost = load(config.cost)
    belief = load(config.belief).card.name if config.belief else None
    return {"step_costs": cost.card.name, "belief": belief, "what_if_costs": check_match(trace, cost, config.what_if)}


_Job = tuple[str, str, CompareConfig, tuple[str, ...], Any]
"""Kind, trace, config, all estimators of the trace, and what the kind needs beyond."""


def _jobs(trace: Trace, config: CompareConfig, names: tuple[str, ...], states: dict[str, EstimatorState]) -> list[_Job]:
    path = str(trace.path)
    jobs: list[_Job] = [("scores", path, config, names, (spec, states.get(spec))) for spec in names]
    attainable = [spec for spec in names if not estimators.make(spec).uses_truth]
    online = [spec for spec in attainable if not estimators.make(spec).offline]
    if trace.card.kind == "dense":
        jobs += [("throughput", path, config, names, load) for load in config.loads]
        if config.explain:
            jobs += [("explain", path, config, names, (spec, load)) for load in config.loads for spec in online]
        jobs += [("drift", path, config, names, (spec, then)) for then in config.then for spec in online]
    if config.influence:
        jobs += [("influence", path, config, names, spec) for spec in online]
    return jobs


def _check(trace: Trace, config: CompareConfig, names: tuple[str, ...], states: dict[str, EstimatorState]) -> None:
    """Refuse what cannot be compared before anything runs."""
    if not names:
        raise InputError(f"{trace.path}: no estimator fits what it recorded; name one with --estimators")
    for spec in names:
        missing = set(estimators.make(spec).features) - {*trace.features, "label"}
        if missing:
            raise InputError(f"{trace.path}: {spec} reads {', '.join(sorted(missing))}, which the trace did not record")
    slots = config.num_slots or trace.card.num_speculative_tokens
    for spec in names:
        if spec in states:
            _check_state(spec, states[spec], slots)
    for path in config.prior:
        prior = open_trace(path)
        if prior.card.content_hash == trace.card.content_hash:
            raise InputError(f"{path} is the trace to compare on; learn beforehand from others only")
        if (config.num_slots or prior.card.num_speculative_tokens) != slots:
            raise InputError(f"{path}: K = {prior.card.num_speculative_tokens}, but {trace.path} has {slots}; pass --k")
    if trace.card.kind == "dense":
        for then in config.then:
            follower(trace, then, config.num_slots)
        if config.explain:
            _ceiling(trace)
    admission(trace, config)
    if config.loads and config.cost is not None:
        check_match(trace, load(config.cost), config.what_if)


def _check_state(spec: str, state: EstimatorState, num_slots: int) -> None:
    estimator = estimators.make(spec)
    cold = estimator.start(num_slots)
    for held, expected in ((state.params, cold.params), (state.stats, cold.stats)):
        shapes = [{name: value.shape for name, value in arrays.items()} for arrays in (held, expected)]
        if shapes[0] != shapes[1] and not estimator.offline:
            raise InputError(
                f"the state of {spec} does not fit it at K = {num_slots}: it was saved for another K or version"
            )


def _ceiling(trace: Trace) -> str:
    """Return the spec that stands for what a trace's features could tell.

    Raises:
        InputError: the trace lacks too many of them.
    """
    for spec in _CEILINGS:
        missing = set(estimators.make(spec).features) - set(trace.features)
        if not missing:
            return spec
    raise InputError(f"{trace.path}: --explain fits {spec}, but the trace did not record {', '.join(sorted(missing))}")


def _run_all(jobs: Sequence[_Job], workers: int) -> Iterator[Any]:
    if workers == 1:
        yield from map(_run, jobs)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as executor:
        yield from executor.map(_run, jobs)


def _run(job: _Job) -> Any:
    kind, path, config, names, wanted = job
    return _KINDS[kind](path, config, names, wanted)


def _scores(
    path: str, config: CompareConfig, names: tuple[str, ...], wanted: tuple[str, EstimatorState | None]
) -> Scores:
    spec, state = wanted
    item = _staged(path, config, names)
    estimator = estimators.make(spec)
    if state is None and config.prior:
        state = learn_from(estimator, [_staged(prior, config, (spec,)) for prior in config.prior])
    halves = None
    if estimator.offline and state is None:
        halves = fit_halves(estimator, item.table, item.walks[0], item.second_half)
    learn = np.ones(len(item.table.unit), dtype=bool) if config.masked == "include" else None
    return score(estimator, item.table, item.walks, start=state, halves=halves, learn=learn)


def _throughput(path: str, config: CompareConfig, names: tuple[str, ...], load: int) -> list[dict[str, Any]]:
    return list(throughput_rows(_bench(path, config, names), [estimators.make(spec) for spec in names], load))


def _explain(path: str, config: CompareConfig, names: tuple[str, ...], wanted: tuple[str, int]) -> list[dict[str, Any]]:
    spec, load = wanted
    ceiling = estimators.make(_ceiling(open_trace(path)))
    lines = explain(_bench(path, config, names), estimators.make(spec), ceiling, load)
    return [{"estimator": spec} | line for line in lines]


def _drift(path: str, config: CompareConfig, names: tuple[str, ...], wanted: tuple[str, str]) -> list[dict[str, Any]]:
    spec, then = wanted
    scene = _scene(path, config, names, then)
    return [
        drift(
            estimators.make(spec),
            scene,
            scenario,
            steps=config.drift_steps,
            num_seats=config.concurrency,
            bootstrap=config.bootstrap,
            seed=config.seed,
        )
        for scenario in SCENARIOS
    ]


def _influence(path: str, config: CompareConfig, names: tuple[str, ...], spec: str) -> list[dict[str, Any]]:
    item = _staged(path, config, names)
    return influence(estimators.make(spec), item.table, item.walks, bootstrap=config.bootstrap, seed=config.seed)


_KINDS: dict[str, Callable[..., Any]] = {
    "scores": _scores,
    "throughput": _throughput,
    "explain": _explain,
    "drift": _drift,
    "influence": _influence,
}


def _features(names: Sequence[str]) -> set[str]:
    return {feature for spec in names for feature in estimators.make(spec).features}


@lru_cache(maxsize=4)
def _staged(path: str, config: CompareConfig, names: tuple[str, ...]) -> Stage:
    return stage(open_trace(path), config, _features(names))


@lru_cache(maxsize=2)
def _scene(path: str, config: CompareConfig, names: tuple[str, ...], then: str) -> Scene:
    online = [spec for spec in names if not estimators.make(spec).offline and not estimators.make(spec).uses_truth]
    return make_scene(open_trace(path), then, sorted(_features(online)), config.num_slots)


@lru_cache(maxsize=2)
def _bench(path: str, config: CompareConfig, names: tuple[str, ...]) -> Bench:
    trace = open_trace(path)
    assert config.cost is not None
    truth = load(config.cost)
    wanted = _features(names)
    if config.explain:
        wanted |= set(estimators.make(_ceiling(trace)).features) | ({"alpha"} & set(trace.features))
    pool = Pool.from_trace(trace, sorted(wanted), num_slots=config.num_slots)
    return Bench(
        pool,
        Table.of_pool(pool, trace),
        truth,
        load(config.belief) if config.belief else None,
        config.replicates,
        config.warm_steps,
        config.vocab or truth.card.vocab_size or trace.card.vocab_size,
        config.seed,
    )


def read_states(text: str, where: str) -> dict[str, EstimatorState]:
    """Read states that `avsim compare --save-states` wrote: a JSON object of spec to state.

    Raises:
        InputError: it is something else.
    """
    try:
        data = json.loads(text)
        return {str(spec): EstimatorState.from_json(value) for spec, value in data.items()}
    except (ValueError, AttributeError) as error:
        raise InputError(f"{where}: not a file of estimator states ({error}); write one with --save-states") from None
