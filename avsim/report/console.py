"""Tables for people, on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from avsim.costs.base import CostModel, StepShape
from avsim.metrics.verdict import Verdict

__all__ = ["console", "print_cost", "print_replay", "print_rows", "verdict_text"]

_STYLE = {"gain": "green", "loss": "red", "gain withheld": "yellow"}


def console() -> Console:
    """Return the console that results go to; wide when nobody watches, so that files are not wrapped.

    Square brackets are text: names and notes come from data.
    """
    out = Console(highlight=False, markup=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, width=160)


def print_replay(summary: dict[str, Any]) -> None:
    """Print the result of a replay: one table of arms by load, then the verdicts, then what to know about them."""
    out = console()
    out.print(Text(summary["headline"], style="bold"))
    if summary["synthetic"]:
        out.print(Text("SYNTHETIC", style="bold yellow"))
    out.print(_throughput_table(summary))
    if summary["loads"][0]["verdicts"]:
        out.print(_verdict_table(summary))
    for note in summary["notes"]:
        out.print(Text(f"· {note}"))


def _throughput_table(summary: dict[str, Any]) -> Table:
    closed = summary["loop"] == "closed"
    table = Table(title="Throughput, tokens/s (simulated)", title_justify="left")
    table.add_column("concurrent requests")
    for arm in summary["loads"][0]["arms"]:
        name = arm["policy"] + ("*" if arm["unattainable"] else "")
        table.add_column(name, justify="right")
        if arm.get("throughput_cold_start_tok_s") is not None:
            table.add_column(f"{name}, cold start", justify="right")
    for load in summary["loads"]:
        name = str(load["concurrency"]) if closed else f"as recorded (mean {load['mean_num_reqs']:.1f})"
        best = max(a["throughput_tok_s"] for a in load["arms"] if not a["unattainable"])
        cells = []
        for arm in load["arms"]:
            rate, cold = arm["throughput_tok_s"], arm.get("throughput_cold_start_tok_s")
            cells.append(Text(f"{rate:,.0f}", style="bold" if rate == best else ""))
            if cold is not None:
                cells.append(Text(f"{cold:,.0f}"))
        table.add_row(name, *cells)
    table.caption = "* reads the verdict, so no engine can run it; bold: the best of the others"
    table.caption_justify = "left"
    return table


def _verdict_table(summary: dict[str, Any]) -> Table:
    table = Table(title="Verdicts (change of throughput, 95 % interval)", title_justify="left")
    for name in ("concurrent requests", "policy", "against"):
        table.add_column(name)
    table.add_column("change", justify="right")
    table.add_column("interval", justify="right")
    table.add_column("in hindsight", justify="right")
    table.add_column("break-even overhead", justify="right")
    table.add_column("verdict")
    for load in summary["loads"]:
        for verdict in (Verdict(**item) for item in load["verdicts"]):
            change, interval, margin = verdict_text(verdict)
            hindsight = verdict.hindsight_ratio
            cells = (change, interval, "" if hindsight is None else f"{(hindsight - 1) * 100:+.1f} %", margin)
            name = "as recorded" if load["concurrency"] is None else str(load["concurrency"])
            table.add_row(
                name, verdict.policy, verdict.against, *cells, Text(verdict.word, _STYLE.get(verdict.word, ""))
            )
    table.caption = (
        "in hindsight: against the depth that turned out best on all requests, which nobody knows beforehand"
    )
    table.caption_justify = "left"
    return table


def verdict_text(verdict: Verdict) -> tuple[str, str, str]:
    """Return change, interval and break-even overhead as short texts."""
    low, high = (verdict.low - 1) * 100, (verdict.high - 1) * 100
    return (
        f"{verdict.change_pct:+.1f} %",
        f"{low:+.1f} … {high:+.1f} %",
        f"{verdict.break_even_overhead_ms:.2f} ms/step" if verdict.break_even_overhead_ms >= 0 else "slower",
    )


def print_cost(model: CostModel) -> None:
    """Print a cost model's card and its step times at a few sizes."""
    out = console()
    card = model.card
    for label, value in (
        ("name", card.name),
        ("model", card.model),
        ("hardware", card.hardware),
        ("kind", f"{model.name}, {card.kind}"),
        ("source", card.source),
        ("context", f"{card.context_tokens} tokens" if card.context_tokens else "by its KV term"),
        ("notes", card.notes),
    ):
        out.print(Text(f"{label:9} {value}"))
    table = Table(title="Step times, ms (KV cache empty where the model has a KV term)", title_justify="left")
    for name in ("tokens or requests", "verify (tokens)", "draft (requests)"):
        table.add_column(name, justify="right")
    sizes = np.array([1, 8, 16, 32, 64, 128, 256, 512, 1024, 1025, 2048, 4096, 8192])
    zero = np.zeros(len(sizes), dtype=np.int64)
    verify = model.verify_ms(StepShape(np.ones_like(sizes), sizes, zero.astype(np.float64), zero))
    draft = model.draft_ms(StepShape(sizes, sizes, zero.astype(np.float64), zero))
    for size, v, d in zip(sizes.tolist(), verify.tolist(), draft.tolist(), strict=True):
        marks = ["" if model.outside(*args) is None else " (extrapolated)" for args in ((1, size), (size, 1))]
        table.add_row(str(size), f"{v:.3f}{marks[0]}", f"{d:.3f}{marks[1]}")
    out.print(table)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print dicts with equal keys as a table."""
    out = console()
    if not rows:
        out.print("nothing found")
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    out.print(table)
