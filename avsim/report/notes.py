"""What to know about a run's numbers: how they were made, what was assumed, and where they do not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from avsim import judging
from avsim.arrivals import Recorded
from avsim.config import ReplayConfig
from avsim.costs.notes import cost_notes
from avsim.lossless import classify
from avsim.metrics.economy import Engine
from avsim.metrics.verdict import MIN_SOURCES, PUBLISHED_OVERHEAD_MS
from avsim.policies import FixedDepth, Policy
from avsim.simulate import Arm
from avsim.sources.base import Trace
from avsim.study import Study
from avsim.study_run import StudyResult
from avsim.workload import Pool

__all__ = ["choice_notes", "exactness", "exactness_notes", "overhead_note", "study_notes"]

PARALLEL_DRAFTERS = ("dflash", "dspark")
"""Kinds whose drafted tokens depend on how many are asked for."""


def study_notes(
    trace: Trace,
    config: ReplayConfig,
    study: Study,
    arms: Sequence[Arm],
    result: StudyResult,
    engine: Engine,
) -> list[str]:
    """Return the notes of a study, the most general first."""
    card, truth, pool = trace.card, study.truth, study.pool
    notes = [*_serving_notes(config, study, result), *_sample_notes(config, pool)]
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
    notes += _cost_notes(trace, config, study, arms, result)
    if engine.active_params is not None:
        rows = "rows after padding" if engine.pads else "rows"
        notes.append(
            f"Target FLOPs: 2 · {engine.active_params / 1e9:.3g} G active parameters ({engine.params_source}) · {rows};"
            " attention over the cache, the drafter and sampling are left out."
        )
    if engine.price_per_gpu_hour is not None and engine.gpus is None:
        notes.append("No cost per token: the cost card does not say how many GPUs it stands for; pass --gpus.")
    if study.belief is not None:
        notes.append(f"Policies read another cost table than the clock: {study.belief.card.name}.")
    notes += exactness_notes(card.draft_sampling, readers)
    least = min(load.busy for load in result.loads)
    if card.draft_sampling != "greedy" and least <= 8 and any(arm.lag for arm in readers):
        notes.append(
            "Sampled drafts at 8 requests or fewer: stale sizing sees recorded drafts behind trimmed slots, which know "
            "the future output; throughput is biased upward (on toy models 0 to 1.5 % at 1 request, 0 to 0.3 % at 8: "
            "experiments/look-ahead)."
        )
    return notes


def _serving_notes(config: ReplayConfig, study: Study, result: StudyResult) -> list[str]:
    notes = []
    budget = f"{config.token_budget:,} tokens a step" if config.token_budget else "no token limit"
    if config.arrivals:
        notes.append(
            "Simulated, requests arrive by themselves: every arm meets the same arrivals. Times are of all requests, "
            "from an empty engine to the last answer; throughput is tokens per second while requests were still to be "
            f"seated. At most {result.loads[0].seats} requests run at once, {budget}."
        )
        for load in result.loads:
            if names := judging.saturated(result, load):
                notes.append(
                    f"SATURATED at {load.name}: the queue of {', '.join(names)} grew as long as requests arrived, so "
                    "times grow with the length of the run, and throughput is all that the engine can do."
                )
        if any(isinstance(load.process, Recorded) for load in result.loads):
            notes.append(
                "Recorded arrivals: the main run has each request at its own time; the resamples behind intervals have "
                "other requests at these times."
            )
    else:
        text = "Simulated, closed loop: throughput is emitted tokens per second over the steps at full concurrency."
        notes.append(text)
        waiting = [load for load in result.loads if load.waits]
        if waiting:
            notes.append(
                f"At most {waiting[0].seats} requests run at once: with more clients the others wait, throughput is "
                f"that of {waiting[0].seats} requests, and time to first token counts the waiting."
            )
    if config.prompt_mode == "free":
        first = "time to first token is waiting for a seat only" if config.arrivals else "no prefill, no TTFT"
        notes.append(f"Prompts cost nothing here: {first}.")
    else:
        chunks = "in chunks where they do not fit" if config.chunked_prefill else "each within one step"
        notes.append(
            f"Prompts run beside decoding requests, first come, first served, {chunks} ({budget}). Without a prefill "
            "term in the cost model, a prompt token costs what a verified token does. No prefix is cached, and nobody "
            "is preempted."
        )
    return notes


def _sample_notes(config: ReplayConfig, pool: Pool) -> list[str]:
    return [
        f"Intervals: 95 %, from {config.bootstrap} re-simulations on resampled source requests ({pool.num_units} "
        f"distinct of {len(pool.start)}{', other arrivals in each' if config.arrivals else ''}); below {MIN_SOURCES} "
        "distinct requests no verdict is given."
    ]


def _cost_notes(
    trace: Trace, config: ReplayConfig, study: Study, arms: Sequence[Arm], result: StudyResult
) -> list[str]:
    truth, pool, notes = study.truth, study.pool, []
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
    notes += cost_notes(
        truth,
        num_slots=pool.num_slots,
        drafter_kind=trace.card.drafter_kind,
        mean_context_tokens=_mean_context_tokens(pool),
        skips=any(arm.policy.plans for arm in arms),
    )
    largest = max(load.seats if load.clients else load.busy for load in result.loads)
    outside = truth.outside(largest, largest * (pool.num_slots + 1))
    if outside:
        notes.append(f"Outside the cost table's range: {outside}.")
    return notes


def _mean_context_tokens(pool: Pool) -> float:
    """Return the cached tokens of a decoding request, averaged over its output tokens and the pool."""
    held = (pool.output_len * (pool.prompt_len + pool.output_len / 2)).sum()
    return float(held / pool.output_len.sum())


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
    """Say what is assumed about AV's own overhead."""
    if config.overhead_is_known:
        parts = [
            f"{value:g} {unit}"
            for value, unit in (
                (config.av_overhead_ms, "ms a step"),
                (config.av_overhead_us_per_req, "µs a request and step"),
            )
            if value is not None
        ]
        return f"AV's own overhead is charged as {' and '.join(parts)} to every policy that reads confidences."
    if config.arrivals:
        return (
            "AV's own overhead is unknown and not charged; a gain that the published "
            f"{PUBLISHED_OVERHEAD_MS} ms a step (vLLM PR #52362) erases, simulated anew, is withheld."
        )
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
