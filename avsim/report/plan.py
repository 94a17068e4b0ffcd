"""What `avsim plan` prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from avsim.planning.plan import AtLoad, Plan, Quantiles
from avsim.planning.points_plan import TablePlan
from avsim.report.console import console

__all__ = ["plan_json", "print_plan", "print_table_plan"]


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan for machines."""
    given = plan.given
    return {
        "acceptance": given.acceptance.conditional.tolist(),
        "cost": given.cost.card.name,
        "cost_kind": given.cost.card.kind,
        "cost_sd_log": given.log_cost_sd,
        "context_tokens": given.context_tokens,
        "av_overhead_ms": given.overhead_ms,
        "auc": _json(plan.auc),
        "crossover_concurrency": plan.crossover,
        "crossover_range": list(plan.crossover_range),
        "loads": [line.to_json() for line in plan.loads],
        "notes": list(plan.notes),
    }


def print_plan(plan: Plan) -> None:
    """Print a plan for people."""
    out, given = console(), plan.given
    card = given.cost.card
    lengths = ", ".join(f"{value:.2f}" for value in given.acceptance.conditional)
    out.print(Text(f"Plan from summary numbers: simulated on {card.name} ({card.kind})", style="bold"))
    out.print(
        Text(f"acceptance given the slots before: {lengths}; AL {given.acceptance.acceptance_length:.2f} at full depth")
    )
    out.print(
        Text(
            f"confidences: AUC {_range(plan.auc)}; verification and drafting cost known to about "
            f"{given.log_cost_sd * 100:.0f} % (one sd); {given.context_tokens:,.0f} tokens of context; {_overhead(given.overhead_ms)}"
        )
    )
    table = Table(box=None, pad_edge=False)
    for name in (
        "reqs", "best fixed", "against none, %", "tok/s", "adaptive against it, %", "verdict", "AL needed", "AL had", "verified",
        "of gain: cliff",
    ):  # fmt: skip
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for line in plan.loads:
        table.add_row(*_cells(line))
    out.print(table)
    out.print(Text(_crossover(plan)))
    notes = [*plan.notes, *(f"{line.concurrency} requests: {line.outside}" for line in plan.loads if line.outside)]
    notes.append(
        "AL needed: where the depth shown would equal plain decoding. Ranges span 95 % of what is not known: confidence "
        "quality, calibration, costs. No queue, no prompts, no drain, and estimators that have learned."
    )
    for note in notes:
        out.print(Text(f"note: {note}", style="dim"))


def print_table_plan(plan: TablePlan) -> None:
    """Print what a throughput table implies."""
    out = console()
    cells = len(plan.posterior.fit.points)
    out.print(Text(f"Step cost and acceptance fitted to {cells} cells", style="bold"))
    out.print(Text(f"error of the fit: rms {plan.fit_rms_pct:.2f} %, worst {plan.fit_worst_pct:.2f} %"))
    table = Table(box=None, pad_edge=False)
    for name in ("workload", "reqs", "best arm", "adaptive against it, %", "80 %", "verdict", "measured, %"):
        table.add_column(name, justify="left" if name in ("workload", "verdict", "best arm") else "right")
    for line in plan.predictions:
        kind = " (explained)" if line.workload in plan.explains else ""
        measured = plan.measured.get((line.workload, line.concurrency))
        table.add_row(
            (line.workload or "all") + kind,
            str(line.concurrency),
            line.against,
            _percent(Quantiles(line.ratio, line.low, line.high)),
            f"{(line.low80 - 1) * 100:+.1f} to {(line.high80 - 1) * 100:+.1f}",
            line.word,
            "" if measured is None else f"{(measured - 1) * 100:+.1f}",
        )
    out.print(table)
    out.print(
        Text("note: ranges are those of a measurement, the noise of the cells included; 95 % in brackets", style="dim")
    )


def _cells(line: AtLoad) -> tuple[str, ...]:
    best = f"fixed:{line.best_fixed}" if line.best_fixed else "none"
    share = f" ({line.best_share:.0%})" if line.best_share < 0.95 else ""
    return (
        str(line.concurrency),
        best + share,
        _percent(line.fixed_over_none) if line.best_fixed else "·",
        f"{line.fixed_tok_s.middle:,.0f}",
        _percent(line.adaptive_over_fixed),
        line.word,
        f"{line.break_even_length:.2f} at {line.break_even_depth}",
        f"{line.length_there:.2f}",
        f"{line.verified_share:.0%}",
        ""
        if line.cliff_share is None
        else f"{line.cliff_share.middle:.0%} [{line.cliff_share.low:.0%}, {line.cliff_share.high:.0%}]",
    )


def _crossover(plan: Plan) -> str:
    if plan.crossover is None:
        return "fixed depths stay ahead of plain decoding up to 1024 requests" + _crossover_range(plan)
    return f"plain decoding is ahead of every fixed depth from about {plan.crossover} requests" + _crossover_range(plan)


def _crossover_range(plan: Plan) -> str:
    low, high = plan.crossover_range
    if low == high:
        return ""
    return f" (95 %: {low or 'beyond 1024'} to {high or 'beyond 1024'})"


def _overhead(overhead_ms: float | None) -> str:
    return (
        "AV's own overhead unknown, charged as nothing"
        if overhead_ms is None
        else f"AV overhead {overhead_ms:g} ms a step"
    )


def _percent(value: Quantiles) -> str:
    return f"{(value.middle - 1) * 100:+.1f} [{(value.low - 1) * 100:+.1f}, {(value.high - 1) * 100:+.1f}]"


def _range(value: Quantiles) -> str:
    return f"{value.middle:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _json(value: Quantiles) -> dict[str, float]:
    return {"middle": value.middle, "low": value.low, "high": value.high}
