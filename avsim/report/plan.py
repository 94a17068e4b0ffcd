"""What `avsim plan` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from avsim.costs.notes import cost_notes
from avsim.metrics.verdict import PUBLISHED_OVERHEAD_MS
from avsim.planning.crossover import Crossover
from avsim.planning.given import PlanInput
from avsim.planning.inputs import PlanRun
from avsim.planning.plan import AtLoad, Plan, Quantiles
from avsim.planning.points_plan import TablePlan
from avsim.planning.unknowns import MODEL_SD, log_cost_sd, unknown_layer_latency
from avsim.report.console import console

__all__ = ["plan_json", "print_plan"]

_LEFT = ("workload", "verdict", "best arm")
_COLOUR = {"gain": "green", "loss": "red", "gain withheld": "yellow"}


def plan_json(run: PlanRun) -> dict[str, Any]:
    """Return a plan for machines."""
    plan = run.result
    if isinstance(plan, TablePlan):
        return {"from": "throughput table"} | plan.to_json() | _borrowed(run)
    given = plan.given
    return {
        "from": "summary numbers",
        "simulated": True,
        "acceptance": given.acceptance.conditional.tolist(),
        "acceptance_length": given.acceptance.acceptance_length,
        "num_speculative_tokens": given.acceptance.num_slots,
        "cost": given.cost.card.name,
        "cost_kind": given.cost.card.kind,
        "cost_sd_log": log_cost_sd(given),
        "layer_latency_ms": unknown_layer_latency(given) or None,
        "context_tokens": given.context_tokens,
        "av_overhead_ms": given.overhead_ms,
        "draws": given.draws,
        "seed": given.seed,
        "auc": asdict(plan.auc),
        "calibration_error": asdict(plan.calibration_error),
        "crossover_fixed": plan.fixed_crossover.to_json(),
        "crossover_adaptive": plan.adaptive_crossover.to_json(),
        "loads": [line.to_json() for line in plan.loads],
        "notes": _notes(plan),
    } | _borrowed(run)


def print_plan(run: PlanRun) -> None:
    """Print a plan for people."""
    out, plan = console(), run.result
    if isinstance(plan, TablePlan):
        _print_table_plan(out, plan)
    else:
        _print_plan(out, plan)
    for note in _borrow_notes(run):
        out.print(Text(f"· {note}"))


def _print_plan(out: Console, plan: Plan) -> None:
    given, card, acceptance = plan.given, plan.given.cost.card, plan.given.acceptance
    rates = ", ".join(f"{value:.2f}" for value in acceptance.conditional)
    slots = acceptance.num_slots
    out.print(Text(f"Plan from summary numbers: simulated on {card.name} ({card.kind})", style="bold"))
    if card.kind == "synthetic":
        out.print(Text("SYNTHETIC step costs", style="bold yellow"))
    out.print(Text(f"acceptance given the slots before: {rates}; AL {acceptance.acceptance_length:.2f} at K = {slots}"))
    out.print(
        Text(
            f"confidences: AUC {_range(plan.auc)}, calibration error {_range(plan.calibration_error, 100, 1)} %; "
            f"{given.context_tokens:,.0f} tokens of context; {_overhead(given.overhead_ms)}"
        )
    )
    out.print(Text("Throughput of fixed depths", style="bold"))
    heads = ["reqs", "best fixed", "tok/s", "against none, %", "AL needed", "AL had"]
    out.print(_table(heads, [_fixed_cells(line) for line in plan.loads]))
    out.print(Text(f"Adaptive verification, drafting {slots}", style="bold"))
    heads = ["reqs", "tok/s", "against best fixed or none, %", "verdict", "against none, %", "verdict", "verified"]
    cliff = any(line.cliff_share is not None for line in plan.loads)
    rows = [_adaptive_cells(line, cliff) for line in plan.loads]
    out.print(_table([*heads, "of gain: cliff"] if cliff else heads, rows))
    out.print(Text(_crossover("the best fixed depth", plan.fixed_crossover)))
    out.print(Text(_crossover("adaptive verification", plan.adaptive_crossover)))
    for note in _notes(plan):
        out.print(Text(f"· {note}"))


def _notes(plan: Plan) -> list[str]:
    given, slots = plan.given, plan.given.acceptance.num_slots
    notes = [
        f"Brackets span 95 % of {given.draws} draws of what is not known: {_unknown(given)}. Acceptance is taken as "
        "exact; AL needed says how far it may fall.",
        "AL needed: acceptance length at which the best depth that drafts would only equal plain decoding. Against "
        "best fixed or none: depths tuned anew in each draw, which is harder to beat than the depth shown.",
        *(
            [
                f"gain withheld: the published {PUBLISHED_OVERHEAD_MS:g} ms a step of AV's own work could erase it; "
                "--av-overhead-ms says what yours takes."
            ]
            if given.overhead_ms is None
            else []
        ),
        "Left out: queues, prompts, drain, estimators that still learn. The policy reads the same step costs that "
        "count; an engine's own profile is off by more.",
        *given.acceptance.notes,
        *cost_notes(given.cost, num_slots=slots, mean_context_tokens=given.context_tokens),
    ]
    own = given.cost.card.num_speculative_tokens
    if not given.cost.draft_depends_on_depth:
        notes.append(
            f"{given.cost.card.name} knows one drafting cost for every depth"
            + (": that of a K that is not known." if own is None else f": that of K = {own}.")
            + " Deeper drafts are charged too little, shallower ones too much."
        )
    notes += [f"Outside what was measured: {line.outside}." for line in plan.loads if line.outside]
    for load in sorted({found.for_good for found in (plan.fixed_crossover, plan.adaptive_crossover) if found.for_good}):
        if why := given.cost.outside(load, load * (slots + 1)):
            notes.append(f"That plain decoding takes over at {load} requests is outside what was measured: {why}.")
    if given.cost.card.notes:
        notes.append(f"Step costs: {given.cost.card.notes}")
    return notes


def _unknown(given: PlanInput) -> str:
    sd = log_cost_sd(given)
    parts = [
        "quality and calibration of the confidences, and how alike blocks of a request are; how far plans were off "
        f"replays of recorded traces ({MODEL_SD * 100:g} %, one sd)"
    ]
    if sd:
        parts.append(
            f"the costs of drafting, of verifying drafts and of a whole step (each by {sd * 100:.0f} %, one sd)"
        )
    if unknown_layer_latency(given):
        parts.append("the latency of a layer of experts (half to twice the estimate's)")
    return "; ".join(parts)


def _print_table_plan(out: Console, plan: TablePlan) -> None:
    cells = len(plan.posterior.fit.points)
    out.print(Text(f"Plan from a throughput table: step cost and acceptance fitted to {cells} cells", style="bold"))
    out.print(Text(f"error of the fit: rms {plan.fit_rms_pct:.2f} %, worst {plan.fit_worst_pct:.2f} %"))
    heads = ["workload", "reqs", "best arm", "adaptive against it, %", "80 %", "verdict", "AUC assumed"]
    rows = []
    for line in plan.predictions:
        kind = " (explained)" if line.workload in plan.explains else ""
        row = [
            (line.workload or "all") + kind,
            str(line.concurrency),
            line.against,
            _percent(Quantiles(line.ratio, line.low, line.high)),
            f"{_change(line.low80)} to {_change(line.high80)}",
            line.word,
            f"{line.auc:.2f}",
        ]
        measured = plan.measured.get((line.workload, line.concurrency))
        rows.append([*row, "" if measured is None else _change(measured)] if plan.measured else row)
    out.print(_table([*heads, "measured, %"] if plan.measured else heads, rows))
    for note in plan.notes:
        out.print(Text(f"· {note}"))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in heads:
        table.add_column(name, justify="left" if name in _LEFT else "right")
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOUR.get(cell, "")) for cell in row))
    return table


def _fixed_cells(line: AtLoad) -> list[str]:
    best = line.fixed[line.best_fixed]
    name = f"fixed:{best.depth}" if best.depth else "none"
    share = f" (in {best.best_in:.0%})" if best.best_in < 0.95 else ""
    drafting = line.fixed[line.drafting_depth]
    return [
        str(line.concurrency),
        name + share,
        _tokens(best.throughput_tok_s),
        _percent(best.over_none) if best.depth else f"fixed:{drafting.depth} {_percent(drafting.over_none)}",
        f"{_range(line.break_even_length)} at K = {line.drafting_depth}",
        f"{drafting.acceptance_length:.2f}",
    ]


def _adaptive_cells(line: AtLoad, cliff: bool) -> list[str]:
    cells = [
        str(line.concurrency),
        _tokens(line.adaptive_tok_s),
        _percent(line.over_tuned),
        line.word,
        _percent(line.over_none),
        line.word_over_none,
        f"{_range(line.verified, 100, 0)} %",
    ]
    if cliff:
        cells.append("" if line.cliff_share is None else f"{_range(line.cliff_share, 100, 0)} %")
    return cells


def _crossover(what: str, found: Crossover) -> str:
    if found.first is None:
        text = f"{what} stays ahead of plain decoding at every load tried, to {found.most} requests"
    elif found.for_good is None:
        text = f"plain decoding overtakes {what} at {found.first} requests, and loses the lead again by {found.most}"
    elif found.for_good == found.first == 1:
        text = f"plain decoding is ahead of {what} at every load tried, to {found.most} requests"
    elif found.for_good == found.first:
        text = f"plain decoding is ahead of {what} from {found.first} requests on"
    else:
        text = (
            f"plain decoding is ahead of {what} at {found.first} requests, and from {found.for_good} on for good; the "
            "lead changes hands between (steps are staircases)"
        )
    if found.low == found.high == found.for_good:
        return text
    beyond = f"beyond {found.most}"
    return f"{text} (for good, 95 %: {found.low or beyond} to {found.high or beyond})"


def _overhead(overhead_ms: float | None) -> str:
    if overhead_ms is None:
        return "AV's own overhead unknown, charged as nothing"
    return f"AV overhead {overhead_ms:g} ms a step"


def _borrowed(run: PlanRun) -> dict[str, Any]:
    found = run.borrowed
    if found is None:
        return {}
    return {
        "borrowed": {
            "trace": found.trace,
            "estimator": found.estimator,
            "num_requests": found.num_requests,
            "acceptance": found.acceptance.conditional.tolist(),
            "auc": found.auc.tolist(),
            "request_share": found.request_share,
            "calibration_slope": found.slope,
            "calibration_offset": found.offset,
        }
    }


def _borrow_notes(run: PlanRun) -> list[str]:
    found = run.borrowed
    if found is None:
        return []
    by_slot = ", ".join(f"{value:.2f}" for value in found.auc)
    return [
        f"Confidences are those of {found.estimator} on {found.trace} ({found.num_requests} requests, scored on the "
        f"half it did not learn from): AUC by slot {by_slot}; slope {found.slope:.2f}, offset {found.offset:+.2f}; a "
        f"slot's logit correlates by {found.request_share:.2f} from block to block. Another drafter or traffic may "
        "differ by more than the range allows."
    ]


def _change(ratio: float) -> str:
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f}"


def _percent(value: Quantiles) -> str:
    return f"{_change(value.middle)} [{_change(value.low)}, {_change(value.high)}]"


def _tokens(value: Quantiles) -> str:
    return f"{value.middle:,.0f} [{value.low:,.0f}, {value.high:,.0f}]"


def _range(value: Quantiles, scale: float = 1.0, digits: int = 2) -> str:
    middle, low, high = (round(number * scale, digits) + 0.0 for number in (value.middle, value.low, value.high))
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
