"""Comparisons of estimators as tables on stdout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from avsim.report.comparison_wording import (
    SHORT_STANDING,
    arm_text,
    bias_of,
    change_text,
    headline,
    labelled_text,
    marked,
    marked_spec,
    notes,
    recovery_text,
)
from avsim.report.console import console

__all__ = ["print_comparison"]

_Column = tuple[str, Callable[[dict[str, Any]], str]]


def print_comparison(result: dict[str, Any]) -> None:
    """Print what `compare` found on one trace: scores, then throughput, regret, drift and influence where asked for."""
    out = console()
    out.print(Text(headline(result), style="bold"))
    reference = result["reference"]
    columns: list[_Column] = [
        ("log-loss", lambda row: f"{row['conditional']['log_loss']:.4f}"),
        (f"change to {reference}", lambda row: change_text(row, "log_loss_change")),
        ("standing", lambda row: SHORT_STANDING.get(row["group"], "")),
        ("survival: change", lambda row: change_text(row, "cumulative_log_loss_change")),
        ("standing", lambda row: SHORT_STANDING.get(row["cumulative_group"], "")),
        ("ECE", lambda row: f"{row['conditional']['ece'] * 100:.1f} %"),
        ("AUC", lambda row: "" if row["conditional"]["auc"] is None else f"{row['conditional']['auc']:.3f}"),
        ("start", lambda row: row["start"]),
    ]
    if any(row["beside_the_cut"] for row in result["rows"]):
        columns.append(("beside the cut: log-loss, bias", _cut_text))
    _table(result["rows"], "estimator", lambda row: marked(row), columns)
    if result["throughput"]:
        columns = [
            ("tokens/s", lambda row: f"{row['throughput_tok_s']:,.0f}"),
            (f"change to adaptive + {reference}", lambda row: change_text(row, "change")),
            ("", lambda row: row["standing"]),
            ("verified", lambda row: _pct(row["verified_share"], 100)),
            ("budget regret", lambda row: _pct(row["budget_regret_pct"])),
            ("allocation regret", lambda row: _pct(row["allocation_regret_pct"])),
        ]
        mark = "SIMULATED, WHAT IF," if result["what_if_costs"] else "SIMULATED"
        for load in dict.fromkeys(row["load"] for row in result["throughput"]):
            rows = [row for row in result["throughput"] if row["load"] == load]
            _table(rows, f"{mark} at {load}", lambda row: arm_text(result, row), columns)
    if result["explain"]:
        columns = [("change", lambda row: change_text(row, "change")), ("", lambda row: row["what"])]
        mark = "SIMULATED, WHAT IF:" if result["what_if_costs"] else "SIMULATED:"
        for spec, load in dict.fromkeys((row["estimator"], row["load"]) for row in result["explain"]):
            rows = [row for row in result["explain"] if (row["estimator"], row["load"]) == (spec, load)]
            _table(rows, f"{mark} {marked_spec(result, spec)} at {load}", lambda row: row["rung"], columns, left=1)
    if result["drift"]:
        columns = [
            ("traffic", lambda row: f"{row['before']} → {row['after']}"),
            ("scenario", lambda row: row["scenario"]),
            ("excess log-loss", lambda row: change_text(row, "excess")),
            ("recovered after", recovery_text),
        ]
        _table(result["drift"], "drift", lambda row: marked_spec(result, row["estimator"]), columns)
    if result["influence"]:
        columns = [
            ("group", lambda row: f"{row['group']} ({row['share_of_rows'] * 100:.0f} % of rows)"),
            ("change of the others' log-loss by learning from it", lambda row: change_text(row, "change")),
        ]
        _table(result["influence"], "influence", lambda row: marked_spec(result, row["estimator"]), columns)
    if result["admission"] != "full":
        out.print(Text(labelled_text(result)))
    for note in notes(result):
        out.print(Text(f"· {note}"))


def _cut_text(row: dict[str, Any]) -> str:
    bias = bias_of(row["beside_the_cut"])
    return "" if bias is None else f"{row['beside_the_cut']['log_loss']:.4f}, {bias * 100:+.1f}".replace("-", "−")


def _pct(value: float | None, scale: float = 1) -> str:
    return "" if value is None else f"{value * scale:.1f} %"


def _table(
    rows: Sequence[dict[str, Any]],
    name: str,
    first: Callable[[dict[str, Any]], str],
    columns: Sequence[_Column],
    left: int = 0,
) -> None:
    table = Table()
    table.add_column(name, overflow="fold")
    for number, (heading, _) in enumerate(columns):
        words = heading in ("standing", "start", "traffic", "scenario", "group", "") or number == len(columns) - left
        table.add_column(heading, justify="left" if words else "right")
    for row in rows:
        table.add_row(first(row), *(value(row) for _, value in columns))
    console().print(table)
