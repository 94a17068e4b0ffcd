"""A bundle from traces: an estimator serves them one after the other, and what it then knows goes into the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from avsim import costs, estimators
from avsim.comparison.config import CompareConfig
from avsim.comparison.stage import Stage, learn_from, stage
from avsim.costs.curve import CurveCost
from avsim.costs.table import FORMAT as TABLE_FORMAT
from avsim.deploy.bundle import Bundle, check_deployable
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.manifest import read_text, sha256_json
from avsim.sources import open_trace
from avsim.sources.base import Trace
from avsim.what_if import check_match

__all__ = ["FROZEN", "make_bundle", "read_cost_table"]

FROZEN = 10**9
"""Steps between refits of an estimator that is to stay as it is: months, at any speed of an engine."""

_SAME = ("target", "drafter", "drafter_kind", "draft_sampling", "acceptance_rule", "num_speculative_tokens")
_BRIEF = (
    "name", "content_hash", "kind", "target", "drafter", "temperature", "engine", "engine_version", "hardware",
    "adaptive_verification", "synthetic", "num_requests", "num_blocks",
)  # fmt: skip


def make_bundle(
    paths: Sequence[str | Path],
    spec: str,
    *,
    cold: bool = False,
    freeze: bool = False,
    concurrency: int = 8,
    seed: int = 0,
    target: str | None = None,
    drafter: str | None = None,
    cost_table: Path | None = None,
    allow_synthetic: bool = False,
) -> Bundle:
    """Let an estimator learn from traces in turn, as it would have while serving them, and bundle it.

    A dense trace is served in a closed loop of `concurrency` requests with everything verified; an on-policy one in
    the engine's own steps and with its own censoring.

    Args:
        paths: trace folders of one drafter, target, K and temperature.
        spec: the estimator.
        cold: learn nothing; the engine then starts as the estimator does without any data.
        freeze: never refit in the engine. What is kept of each request still follows its verdicts.
        concurrency, seed: of the closed loop.
        target, drafter: what the engine calls them [default: what the traces do].
        cost_table: a file of `avsim cost table`.
        allow_synthetic: accept made-up traces; the bundle says so.

    Raises:
        InputError: the traces do not belong together, one lacks a feature, nothing was learned, or the estimator
            cannot be deployed.
    """
    estimator = estimators.make(spec)
    check_deployable(estimator)
    if freeze and cold:
        raise InputError("--freeze keeps what was learned, and --cold learns nothing: choose one")
    traces = [open_trace(path) for path in paths]
    _check_traces(traces, allow_synthetic)
    card = traces[0].card
    learned, state = _learn(traces, estimator, cold, concurrency, seed)
    if freeze:
        estimator = replace(estimator, refit_interval=FROZEN)
        state = EstimatorState(state.params, estimator.zero_stats(card.num_speculative_tokens), 0, state.refits)
    table = read_cost_table(cost_table, card.num_speculative_tokens) if cost_table else None
    if table is not None:
        _check_table_is_own(table, traces[0], str(cost_table))
    return Bundle(
        estimator=estimator,
        state=state,
        num_speculative_tokens=card.num_speculative_tokens,
        target=target or card.target,
        drafter=drafter or card.drafter,
        drafter_kind=card.drafter_kind,
        draft_sampling=card.draft_sampling,
        acceptance_rule=card.acceptance_rule,
        traces=tuple({name: getattr(trace.card, name) for name in _BRIEF} for trace in traces),
        learned=learned | {"frozen": freeze},
        synthetic=any(trace.card.synthetic for trace in traces),
        cost_table=table,
    )


def read_cost_table(path: Path, num_speculative_tokens: int) -> dict[str, Any]:
    """Read what `avsim cost table` wrote, and hold it against its hash.

    Raises:
        InputError: it is something else, was altered, or is for another K.
    """
    try:
        data: dict[str, Any] = json.loads(read_text(path))
        if data["format"] != TABLE_FORMAT:
            raise InputError(f"{path}: the format is {data['format']!r}; `avsim cost table --out FILE` writes a table")
        content = {name: data[name] for name in ("verify", "draft", "capture_limit")}
        found, engine = sha256_json(content), data["engine"]
        table_k = engine["num_speculative_tokens"]
        sizes = [engine[name] for name in ("max_num_seqs", "max_num_batched_tokens", "capture_limit")]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not a cost table; `avsim cost table --out FILE` writes one") from None
    if found != data.get("sha256"):
        raise InputError(f"{path}: altered: its points do not have the hash that it says; write it anew")
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"{path}: the engine's sizes are {sizes}; they must be whole and positive")
    if table_k != num_speculative_tokens:
        raise InputError(f"{path}: made for K = {table_k}, but the traces have K = {num_speculative_tokens}")
    if not isinstance(costs.parse_document(data, str(path)), CurveCost):
        raise InputError(f"{path}: not a curve")
    return data


def _check_table_is_own(table: dict[str, Any], trace: Trace, where: str) -> None:
    try:
        check_match(trace, costs.parse_document(table, where), False)
    except InputError:
        raise InputError(
            f"{where}: step costs of {table['card']['model']}, but {trace.path} was recorded with {trace.card.target}; "
            "an engine must not budget by another model's costs"
        ) from None


def _check_traces(traces: Sequence[Trace], allow_synthetic: bool) -> None:
    if not traces:
        raise InputError("name at least one trace")
    first = traces[0]
    for trace in traces:
        if trace.card.synthetic and not allow_synthetic:
            raise InputError(
                f"{trace.path}: a synthetic trace says nothing about a real drafter; --allow-synthetic bundles it all "
                "the same, labelled so"
            )
        for name in (*_SAME, "temperature"):
            here, there = getattr(trace.card, name), getattr(first.card, name)
            if here != there:
                raise InputError(f"{trace.path}: {name} is {here!r}, but {there!r} in {first.path}; bundle them apart")


def _learn(
    traces: Sequence[Trace], estimator: Estimator, cold: bool, concurrency: int, seed: int
) -> tuple[dict[str, Any], EstimatorState]:
    if cold:
        return {"how": "cold"}, estimator.start(traces[0].card.num_speculative_tokens)
    config = CompareConfig(estimators=(estimator.name,), concurrency=concurrency, seed=seed, offsets=1)
    stages: list[Stage] = []
    for trace in traces:
        missing = sorted(set(estimator.features) - set(trace.features))
        if missing:
            raise InputError(
                f"{trace.path}: {estimator.name} reads {', '.join(missing)}, which the trace did not record"
            )
        stages.append(stage(trace, config, estimator.features))
    state = learn_from(estimator, stages)
    steps = sum(item.walks[0].num_steps for item in stages)
    if not state.refits:
        raise InputError(
            f"{traces[0].path}: {steps} steps hold no refit, {estimator.name} refits every {estimator.refit_interval}: "
            "nothing was learned; record more, lower refit_interval, or pass --cold"
        )
    learned = {
        "how": "replay",
        "steps": steps,
        "blocks": sum(len(item.walks[0].rows) for item in stages),
        "refits": state.refits,
    }
    if any(trace.card.kind == "dense" for trace in traces):
        learned |= {"concurrency": concurrency, "seed": seed}
    return learned, state
