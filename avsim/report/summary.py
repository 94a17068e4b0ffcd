"""The summary of a replay run: one JSON document that tables, plots and machines all read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from avsim import judging
from avsim.config import ReplayConfig
from avsim.costs.base import CostModel
from avsim.costs.cliff import capture_limit
from avsim.loads import Load
from avsim.metrics.economy import Engine, economy, engine_of
from avsim.report.notes import exactness, study_notes
from avsim.sources.base import Trace
from avsim.study import NamedArm, Study
from avsim.study_run import StudyResult
from avsim.what_if import check_match

__all__ = ["headline", "served_summary", "trace_facts", "with_regret"]


def headline(trace: Trace, truth: CostModel, foreign: bool) -> str:
    """Return the line that heads every output of a run."""
    card = trace.card
    acceptance = f"SYNTHETIC {card.name}" if card.synthetic else f"{card.target} + {card.drafter}"
    costs = f"{truth.card.model} on {truth.card.hardware}"
    if foreign:
        return f"WHAT IF: acceptance of {acceptance}, step costs of {costs}"
    return f"Simulated: {acceptance}, step costs of {costs}"


def served_summary(
    trace: Trace,
    config: ReplayConfig,
    study: Study,
    arms: Sequence[NamedArm],
    result: StudyResult,
) -> dict[str, Any]:
    """Return the summary of what the simulated engine served: a closed loop, or arrivals of their own."""
    pool, truth, belief = study.pool, study.truth, study.belief
    foreign = check_match(trace, truth, config.what_if, num_slots=config.num_slots)
    units = (pool.num_units, len(np.unique(pool.unit[study.halves[1]])))
    engine = engine_of(truth, config.gpus, config.price_per_gpu_hour)
    limit = capture_limit(truth)
    loads = [_load(trace, config, arms, result, load, units, engine, limit) for load in result.loads]
    return {
        "summary_version": 1,
        "headline": headline(trace, truth, foreign),
        "kind": "simulated",
        "loop": "arrivals" if config.arrivals else "closed",
        "synthetic": trace.card.synthetic or truth.card.kind == "synthetic",
        "what_if": foreign,
        "trace": trace_facts(trace, pool.num_slots),
        "truth": asdict(truth.card),
        "belief": asdict(belief.card) if belief is not None else None,
        "prompts": config.prompt_mode,
        "max_num_batched_tokens": config.token_budget,
        "chunked_prefill": config.chunked_prefill,
        "engine": asdict(engine),
        "av_overhead_ms": config.av_overhead_ms,
        "av_overhead_us_per_req": config.av_overhead_us_per_req,
        "notes": study_notes(trace, config, study, [item.arm for item in arms], result, engine),
        "loads": loads,
    }


def _load(
    trace: Trace,
    config: ReplayConfig,
    arms: Sequence[NamedArm],
    result: StudyResult,
    load: Load,
    units: tuple[int, int],
    engine: Engine,
    limit: int | None,
) -> dict[str, Any]:
    found = result.arms[load.name]
    verdicts = judging.verdicts_at_load(arms, result, load, units, config)
    details = []
    for item in arms:
        exact = {"lossless": exactness(trace.card.draft_sampling, item.arm)}
        spent = {"economy": economy(found[item.name].halves.whole, engine)}
        details.append(found[item.name].details | spent | exact)
    return {
        "concurrency": load.clients,
        "load": load.name,
        "arrival_rate_req_s": load.rate_req_s(),
        "max_num_seqs": load.seats,
        "num_sources": units[0],
        "num_sources_judged_half": units[1],
        "saturated": judging.saturated(result, load),
        "arms": with_regret(details),
        "verdicts": [verdict.to_json() for verdict in verdicts],
        "belief_costs": judging.belief_costs(arms, result, load),
        "capture_limit": limit,
        "cliff_reached": judging.cliff_reached(result, load, limit),
        "cliff": judging.cliff_shares(arms, result, load, units, verdicts),
        "savings": judging.savings_at_load(arms, result, load, units, engine),
    }


def with_regret(arms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each arm's throughput regret to the oracle of the same load, over whole runs."""
    bound = next((arm["throughput_tok_s"] for arm in arms if arm["policy"] == "oracle"), None)
    for arm in arms:
        arm["throughput_regret_to_oracle_pct"] = (1 - arm["throughput_tok_s"] / bound) * 100 if bound else None
    return arms


def trace_facts(trace: Trace, num_slots: int) -> dict[str, Any]:
    card = trace.card
    return {
        "name": card.name,
        "kind": card.kind,
        "target": card.target,
        "drafter": card.drafter,
        "drafter_kind": card.drafter_kind,
        "num_speculative_tokens": num_slots,
        "recorded_num_speculative_tokens": card.num_speculative_tokens,
        "draft_sampling": card.draft_sampling,
        "temperature": card.temperature,
        "hardware": card.hardware,
        "num_requests": len(trace.requests),
        "content_hash": card.content_hash,
    }
