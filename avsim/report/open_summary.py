"""The summary of an open-loop replay, in the shape of the closed loop's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from avsim import registry
from avsim.config import ReplayConfig
from avsim.costs.base import CostModel
from avsim.metrics.verdict import judge, with_overhead
from avsim.replay import OpenLoopResult
from avsim.report.notes import choice_notes, exactness, exactness_notes, overhead_note
from avsim.report.summary import headline, trace_facts, with_regret
from avsim.simulate import Totals
from avsim.sources.base import Trace
from avsim.study import NamedArm, pick_totals
from avsim.types import F64Array, IntArray
from avsim.what_if import check_match
from avsim.workload import split_units

__all__ = ["left_out_blocks", "open_summary"]


def open_summary(
    trace: Trace,
    config: ReplayConfig,
    truth: CostModel,
    belief: CostModel | None,
    arms: Sequence[NamedArm],
    results: Sequence[OpenLoopResult],
) -> dict[str, Any]:
    """Return the summary of an open-loop run: one load, as recorded."""
    foreign = check_match(trace, truth, config.what_if)
    found = dict(zip((item.name for item in arms), results, strict=True))
    units = np.flatnonzero(results[0].sums[1])
    whole = _weights(units, units, results[0].sums.shape[1], config, 0)
    calibration, judged = (units[part] for part in split_units(np.arange(len(units)), config.seed))
    halves = [_weights(part, units, results[0].sums.shape[1], config, n) for n, part in ((1, calibration), (2, judged))]
    totals = {name: result.totals(whole) for name, result in found.items()}
    left_out = 0 if trace.card.draft_sampling == "greedy" else left_out_blocks(trace)
    details = [
        _details(item, found[item.name], totals[item.name])
        | {"lossless": exactness(trace.card.draft_sampling, item.arm, left_out)}
        for item in arms
    ]
    verdicts = []
    fixed = [item.name for item in arms if item.fixed]
    for item in arms:
        if not item.judged or item.name == "none":
            continue
        charged = _overhead_ms(config, totals[item.name]) if item.arm.policy.uses_confidence else 0.0
        if "none" in found:
            verdicts.append(judge(item.name, "none", totals[item.name], totals["none"], len(units), charged))
        if fixed:
            rates = np.array([found[name].totals(halves[0]).throughput_tok_s for name in fixed])
            best = rates.argmax(axis=0)
            chosen = pick_totals([found[name].totals(halves[1]) for name in fixed], best)
            mine = found[item.name].totals(halves[1])
            against = f"best fixed ({fixed[best[0]]})"
            half = _overhead_ms(config, mine) if item.arm.policy.uses_confidence else 0.0
            verdict = judge(item.name, against, mine, chosen, len(judged), half)
            ceiling = max(float(totals[name].throughput_tok_s[0]) for name in fixed)
            whole = with_overhead(totals[item.name], 0.0 if charged is None else charged)
            hindsight = float(whole[0]) / ceiling
            verdicts.append(replace(verdict, hindsight_ratio=hindsight))
    mean_reqs = float(totals[arms[0].name].blocks[0] / totals[arms[0].name].steps[0])
    return {
        "summary_version": 1,
        "headline": headline(trace, truth, foreign),
        "kind": "simulated",
        "loop": "open",
        "synthetic": trace.card.synthetic or truth.card.kind == "synthetic",
        "what_if": foreign,
        "trace": trace_facts(trace, config.num_slots or trace.card.num_speculative_tokens),
        "truth": asdict(truth.card),
        "belief": asdict(belief.card) if belief is not None else None,
        "av_overhead_ms": config.av_overhead_ms,
        "av_overhead_us_per_req": config.av_overhead_us_per_req,
        "notes": _notes(trace, config, truth, arms, len(units), left_out),
        "loads": [
            {
                "concurrency": None,
                "mean_num_reqs": mean_reqs,
                "num_sources": len(units),
                "num_sources_judged_half": len(judged),
                "arms": with_regret(details),
                "verdicts": [verdict.to_json() for verdict in verdicts],
            }
        ],
    }


def _overhead_ms(config: ReplayConfig, totals: Totals) -> F64Array | None:
    """Return AV's own cost per step of each run, ms; None if nothing is known of it."""
    if not config.overhead_is_known:
        return None
    per_req_ms = (config.av_overhead_us_per_req or 0.0) * 1e-3
    return (config.av_overhead_ms or 0.0) + per_req_ms * totals.blocks / totals.steps


def _weights(part: IntArray, units: IntArray, num_units: int, config: ReplayConfig, stream: int) -> F64Array:
    """Return `[1 + B, num_units]`: the part itself, then how often each resample draws a unit."""
    rng = np.random.default_rng([config.seed, 0x0BE7, stream])
    weights = np.zeros((1 + config.bootstrap, num_units))
    weights[0, part] = 1
    for line in weights[1:]:
        np.add.at(line, part[rng.integers(len(part), size=len(part))], 1)
    return weights


def _details(item: NamedArm, result: OpenLoopResult, totals: Totals) -> dict[str, Any]:
    arm = item.arm
    accepted, admitted, drafted = (int(x[0]) for x in (totals.accepted, totals.admitted, totals.drafted))
    confidence = None
    if result.calibration is not None and result.state is not None:
        state = result.state
        confidence = result.calibration.summary() | {"refits": state.refits, "state": state.to_json()["params"]}
    return {
        "policy": item.name,
        "spec": registry.format_spec(arm.policy),
        "estimator": registry.format_spec(arm.estimator) if arm.policy.uses_confidence else None,
        "judged": item.judged,
        "unattainable": arm.policy.uses_truth or (arm.estimator is not None and arm.estimator.uses_truth),
        "throughput_tok_s": float(totals.throughput_tok_s[0]),
        "acceptance_length": 1 + float(totals.accepted[0] / totals.blocks[0]),
        "emitted_tokens_per_request_step": float(totals.emitted[0] / totals.blocks[0]),
        "acceptance": {
            "per_drafted": accepted / drafted if drafted else None,
            "per_verified": accepted / admitted if admitted else None,
        },
        "drafted_slots": drafted,
        "verified_slots": admitted,
        "wasted_slots": admitted - accepted,
        "verified_share": admitted / drafted if drafted else None,
        "step_ms": float(totals.ms[0] / totals.steps[0]),
        "confidence": confidence,
    }


def left_out_blocks(trace: Trace, min_rows: int = 1 << 19) -> int:
    """Count the blocks of an on-policy trace that follow a step in which their request, already running, had none."""
    seen = np.full(len(trace.requests), -1)
    count = 0
    for blocks in trace.iter_blocks(min_rows=min_rows):
        assert blocks.step is not None
        order = np.lexsort((blocks.step, blocks.request))
        request, step = blocks.request[order], blocks.step[order]
        change = request[1:] != request[:-1]
        first, last = np.append(True, change), np.append(change, True)
        before = np.where(first, seen[request], np.roll(step, 1))
        count += int(((before >= 0) & (step > before + 1)).sum())
        seen[request[last]] = step[last]
    return count


def _notes(
    trace: Trace, config: ReplayConfig, truth: CostModel, arms: Sequence[NamedArm], num_units: int, left_out: int
) -> list[str]:
    card = trace.card
    notes = [
        "APPROXIMATE (open loop): the batches stay as recorded, so a policy's own effect on later batches is missing.",
        f"Intervals: 95 %, from {config.bootstrap} resamples of {num_units} distinct source requests at fixed batches.",
        "Prompts cost nothing unless the trace's steps record their tokens.",
    ]
    notes += choice_notes([item.arm.policy for item in arms], trace)
    if card.adaptive_verification:
        notes.append(
            "CENSORED: the trace was recorded with adaptive verification on; slots that were trimmed then have no "
            "verdict and count as not drafted here."
        )
    if not card.complete_blocks:
        notes.append(
            "The trace lacks the slots past the end of an output: they are charged as verified and rejected, with the "
            "slot's mean features, and not learned from."
        )
    if card.derived_from:
        notes.append(f"The trace is derived: {card.derived_from}.")
    if card.synthetic:
        notes.append("SYNTHETIC TRACE: every number holds for the generator's acceptance law only.")
    readers = [item.arm for item in arms if item.arm.policy.uses_confidence]
    if readers:
        notes.append(overhead_note(config))
    if truth.card.context_tokens:
        notes.append(f"Step costs hold at {truth.card.context_tokens} tokens of context.")
    return notes + exactness_notes(card.draft_sampling, readers, left_out)
