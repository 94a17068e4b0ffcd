"""The summary of a replay run: one JSON document that tables, plots and machines all read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from avsim.config import ReplayConfig
from avsim.costs.base import CostModel
from avsim.lossless import classify
from avsim.metrics.verdict import MIN_SOURCES, PUBLISHED_OVERHEAD_MS, Verdict
from avsim.policies import FixedDepth, Policy
from avsim.simulate import Arm
from avsim.sources.base import Trace
from avsim.study import ArmAtLoad, NamedArm, verdicts_at_load
from avsim.what_if import check_match
from avsim.workload import Pool, split_units

__all__ = [
    "choice_notes",
    "closed_summary",
    "exactness",
    "exactness_notes",
    "headline",
    "overhead_note",
    "trace_facts",
    "verdict_lines",
    "with_regret",
]

PARALLEL_DRAFTERS = ("dflash", "dspark")
"""Kinds whose drafted tokens depend on how many are asked for."""


def headline(trace: Trace, truth: CostModel, foreign: bool) -> str:
    """Return the line that heads every output of a run."""
    card = trace.card
    acceptance = f"SYNTHETIC {card.name}" if card.synthetic else f"{card.target} + {card.drafter}"
    costs = f"{truth.card.model} on {truth.card.hardware}"
    if foreign:
        return f"WHAT IF: acceptance of {acceptance}, step costs of {costs}"
    return f"Simulated: {acceptance}, step costs of {costs}"


def closed_summary(
    trace: Trace,
    config: ReplayConfig,
    truth: CostModel,
    belief: CostModel | None,
    arms: Sequence[NamedArm],
    results: dict[int, dict[str, ArmAtLoad]],
) -> dict[str, Any]:
    """Return the summary of a closed-loop run."""
    foreign = check_match(trace, truth, config.what_if)
    pool = Pool.from_trace(trace, num_slots=config.num_slots)
    judged_half = split_units(pool.unit, config.seed)[1]
    units = (pool.num_units, len(np.unique(pool.unit[judged_half])))
    loads = []
    for concurrency in config.concurrency:
        found = results[concurrency]
        verdicts = verdicts_at_load(list(arms), found, units, config.av_overhead_ms)
        loads.append(
            {
                "concurrency": concurrency,
                "num_sources": units[0],
                "num_sources_judged_half": units[1],
                "arms": with_regret(
                    [
                        found[item.name].details | {"lossless": exactness(trace.card.draft_sampling, item.arm)}
                        for item in arms
                    ]
                ),
                "verdicts": [verdict.to_json() for verdict in verdicts],
            }
        )
    largest = max(config.concurrency)
    return {
        "summary_version": 1,
        "headline": headline(trace, truth, foreign),
        "kind": "simulated",
        "loop": "closed",
        "synthetic": trace.card.synthetic or truth.card.kind == "synthetic",
        "what_if": foreign,
        "trace": trace_facts(trace, pool.num_slots),
        "truth": asdict(truth.card),
        "belief": asdict(belief.card) if belief is not None else None,
        "av_overhead_ms": config.av_overhead_ms,
        "notes": _notes(trace, config, truth, belief, [item.arm for item in arms], pool, largest),
        "loads": loads,
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


def _notes(
    trace: Trace,
    config: ReplayConfig,
    truth: CostModel,
    belief: CostModel | None,
    arms: Sequence[Arm],
    pool: Pool,
    largest: int,
) -> list[str]:
    card = trace.card
    notes = [
        "Simulated, closed loop: throughput is emitted tokens per second over the steps at full concurrency.",
        "Prompts cost nothing here: no prefill, no TTFT.",
        f"Intervals: 95 %, from {config.bootstrap} re-simulations on resampled source requests ({pool.num_units} "
        f"distinct of {len(pool.start)}); below {MIN_SOURCES} distinct requests no verdict is given.",
    ]
    notes += choice_notes([arm.policy for arm in arms], trace)
    readers = [arm for arm in arms if arm.policy.uses_confidence]
    if readers:
        notes.append(
            f"Estimators have served {config.warm_refits} refits of the same requests in another order before counting "
            "starts (for the best-fixed verdict: of the other half); the cold start is shown beside."
        )
        notes.append(overhead_note(config))
    if not card.complete_blocks:
        missing = int((pool.num_slots - pool.num_recorded).sum())
        notes.append(
            f"The trace lacks the slots past the end of an output ({missing / pool.num_recorded.sum():.1%} of its "
            "slots): they are charged as verified and rejected, with the slot's mean features, and not learned from."
        )
    if card.derived_from:
        notes.append(f"The trace is derived: {card.derived_from}.")
    if truth.card.kind == "synthetic":
        notes.append("SYNTHETIC STEP COSTS: every gain holds for an invented machine only.")
    if card.synthetic:
        notes.append("SYNTHETIC TRACE: every number holds for the generator's acceptance law only.")
    if truth.draft_depends_on_depth:
        notes.append("The draft cost has a per-token term: fixed:k pays for the tokens that it verifies.")
    elif any(arm.policy.name == "fixed" for arm in arms):
        own = truth.card.num_speculative_tokens
        notes.append(
            "The cost table knows draft time by requests only: fixed:k pays the draft cost of the table's own K"
            f"{f' = {own}' if own else ''}."
        )
    if truth.card.context_tokens:
        notes.append(f"Step costs hold at {truth.card.context_tokens} tokens of context.")
    outside = truth.outside(largest, largest * (pool.num_slots + 1))
    if outside:
        notes.append(f"Outside the cost table's range: {outside}.")
    if belief is not None:
        notes.append(f"Policies read another cost table than the clock: {belief.card.name}.")
    notes += exactness_notes(card.draft_sampling, readers)
    if card.draft_sampling != "greedy" and min(config.concurrency) <= 8 and any(arm.lag for arm in readers):
        notes.append(
            "Sampled drafts at 8 requests or fewer: stale sizing sees recorded drafts behind trimmed slots, which know "
            "the future output; throughput is biased upward (on toy models 0 to 1.5 % at 1 request, 0 to 0.3 % at 8: "
            "experiments/look-ahead)."
        )
    return notes


def choice_notes(chosen: Sequence[Policy], trace: Trace) -> list[str]:
    """Say among which depths the best was sought, and whether requests of different temperatures were pooled."""
    depths = [policy.k for policy in chosen if isinstance(policy, FixedDepth)]
    notes = []
    if depths:
        among = ", ".join(map(str, sorted(depths)))
        notes.append(f"Best fixed K is chosen among {among} on one half of the requests, and compared on the other.")
    if trace.card.drafter_kind in PARALLEL_DRAFTERS and any(0 < k < trace.card.num_speculative_tokens for k in depths):
        notes.append(
            f"APPROXIMATE for fixed:k below K: {trace.card.drafter_kind} drafts a whole block at once, and asked for k "
            "tokens it would draft others than the first k of this trace's K."
        )
    temperatures = sorted(trace.requests["temperature"].unique().to_list())
    if len(temperatures) > 1:
        notes.append(f"MIXED TEMPERATURES: requests at {', '.join(f'{t:g}' for t in temperatures)} are pooled.")
    return notes


def overhead_note(config: ReplayConfig) -> str:
    """Say what the verdicts assume about AV's own overhead."""
    if config.av_overhead_ms is not None:
        return f"AV's own overhead is taken as {config.av_overhead_ms} ms a step in the verdicts."
    return (
        "AV's own overhead is unknown and not charged; each verdict gives the break-even overhead per step, and a gain "
        f"that the published {PUBLISHED_OVERHEAD_MS} ms a step (vLLM PR #52362) could erase is withheld."
    )


def exactness(draft_sampling: str, arm: Arm, left_out: int = 0) -> dict[str, Any]:
    """Return whether an arm keeps the output exact, and why, as the summary holds it."""
    return asdict(classify(arm.policy, arm.estimator, arm.lag, draft_sampling, left_out=left_out > 0))


def exactness_notes(draft_sampling: str, readers: Sequence[Arm], left_out: int = 0) -> list[str]:
    """Say which arms would change the output; `left_out` counts blocks that follow a step without their request."""
    if draft_sampling == "greedy":
        return ["Greedy drafts: every policy here leaves the output unchanged."] if readers else []
    notes = []
    for arm in readers:
        found = exactness(draft_sampling, arm, left_out)
        if not found["exact"]:
            only = f" ({left_out:,} blocks here)" if exactness(draft_sampling, arm)["exact"] else ""
            notes.append(f"LOSSY with sampled drafts: {arm.policy.name}: {found['reason']}{only}.")
    return notes


def verdict_lines(summary: dict[str, Any]) -> list[Verdict]:
    """Return every verdict of a summary, load by load."""
    return [Verdict(**verdict) for load in summary["loads"] for verdict in load["verdicts"]]
