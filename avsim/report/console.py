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
from avsim.report.serving import (
    Rows,
    belief_sentences,
    cliff_sentences,
    economy_rows,
    latency_rows,
    queue_rows,
    saving_rows,
)
from avsim.report.wording import load_name, loads_head

__all__ = ["console", "margin_text", "print_cost", "print_replay", "print_rows", "print_table", "verdict_text"]

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
    if summary.get("prompts") == "scheduled" or summary["loop"] == "arrivals":
        _print_rows_by_load(out, "Times of requests (simulated)", summary, latency_rows(summary))
        _print_rows_by_load(out, "Queues and steps (simulated)", summary, queue_rows(summary))
    if any(load["verdicts"] for load in summary["loads"]):
        out.print(_verdict_table(summary))
    if (summary.get("engine") or {}).get("price_per_gpu_hour") is not None:
        _print_rows_by_load(out, "What an output token takes (simulated)", summary, economy_rows(summary))
        title = "Change of what an output token takes (95 % interval)"
        _print_rows_by_load(out, title, summary, saving_rows(summary))
    for sentence in [*belief_sentences(summary), *cliff_sentences(summary)]:
        out.print(Text(f"· {sentence}"))
    for note in summary["notes"]:
        out.print(Text(f"· {note}"))


def _print_rows_by_load(out: Console, title: str, summary: dict[str, Any], rows: Rows) -> None:
    heads, groups = rows
    if not groups:
        return
    table = Table(title=title, title_justify="left")
    for number, head in enumerate((loads_head(summary), *heads)):
        table.add_column(head, justify="right" if number > 1 else "left")
    for name, lines in groups:
        for number, line in enumerate(lines):
            table.add_row("" if number else name, *line, end_section=number == len(lines) - 1)
    out.print(table)


def _throughput_table(summary: dict[str, Any]) -> Table:
    table = Table(title="Throughput, tokens/s (simulated)", title_justify="left")
    table.add_column(loads_head(summary) if summary["loop"] == "arrivals" else "concurrent requests")
    for arm in summary["loads"][0]["arms"]:
        name = arm["policy"] + ("*" if arm["unattainable"] else "")
        table.add_column(name, justify="right")
        if arm.get("throughput_cold_start_tok_s") is not None:
            table.add_column(f"{name}, cold start", justify="right")
    for load in summary["loads"]:
        name = load_name(load) + " SATURATED" * bool(load.get("saturated"))
        best = max(a["throughput_tok_s"] for a in load["arms"] if not a["unattainable"])
        if summary["loop"] == "arrivals" and not load["saturated"]:
            best = None  # it is that of the arrivals
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
    arrive = summary["loop"] == "arrivals"
    what = "change" if arrive else "change of throughput"
    table = Table(title=f"Verdicts ({what}, 95 % interval)", title_justify="left")
    heads = (loads_head(summary) if arrive else "concurrent requests", "policy", "against", *["of"] * arrive)
    for name in heads:
        table.add_column(name)
    table.add_column("change", justify="right")
    table.add_column("interval", justify="right")
    if not arrive:
        table.add_column("in hindsight", justify="right")
        table.add_column("break-even overhead", justify="right")
    table.add_column("verdict")
    for load in summary["loads"]:
        for verdict in (Verdict(**item) for item in load["verdicts"]):
            change, interval, margin = verdict_text(verdict)
            hindsight = verdict.hindsight_ratio
            cells = [change, interval, "" if hindsight is None else f"{(hindsight - 1) * 100:+.1f} %", margin]
            if arrive:
                cells = [verdict.metric, change, interval]
            name = "as recorded" if summary["loop"] == "open" else load_name(load)
            table.add_row(
                name, verdict.policy, verdict.against, *cells, Text(verdict.word, _STYLE.get(verdict.word, ""))
            )
    table.caption = (
        "a time that goes down is a gain; throughput is that of the arrivals unless the engine is saturated"
        if arrive
        else "in hindsight: against the depth that turned out best on all requests, which nobody knows beforehand"
    )
    table.caption_justify = "left"
    return table


def verdict_text(verdict: Verdict) -> tuple[str, str, str]:
    """Return change, interval and break-even overhead as short texts."""
    low, high = (verdict.low - 1) * 100, (verdict.high - 1) * 100
    return (
        f"{verdict.change_pct:+.1f} %",
        f"{low:+.1f} … {high:+.1f} %",
        margin_text(verdict.break_even_overhead_ms, " ms/step"),
    )


def margin_text(margin_ms: float | None, unit: str = "") -> str:
    """Return a break-even overhead as a short text."""
    if margin_ms is None:
        return ""
    return f"{margin_ms:.2f}{unit}" if margin_ms >= 0 else "slower"


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
        ("context", _context(model)),
        ("drafter", _drafter(model)),
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


def _context(model: CostModel) -> str:
    held = model.card.context_tokens
    if held:
        return f"{held} tokens"
    return "by its KV term" if model.uses_kv else "unknown"


def _drafter(model: CostModel) -> str:
    own = model.card.num_speculative_tokens
    depth = "cost known by depth" if model.draft_depends_on_depth else f"cost of K = {own or 'unknown'} at any depth"
    skip = "known" if model.skip_is_known else "unknown, charged as 0 ms"
    return f"{model.card.drafter_kind or 'kind not stated'}; {depth}; a skipped step: {skip}"


def print_table(document: dict[str, Any], out_file: str | None) -> None:
    """Print what a table for vLLM holds: where it comes from, and both tables at a few sizes."""
    out, card, engine = console(), document["card"], document["engine"]
    out.print(Text(f"{card['name']}: {document['made_by']}", style="bold"))
    for label, value in (
        ("model", f"{card['model']} on {card['hardware']} ({card['kind']})"),
        ("engine", ", ".join(f"{name} {value}" for name, value in engine.items())),
        ("context", f"{card['context_tokens']} tokens"),
        ("includes", ", ".join(document["includes"])),
        ("gap", f"at most {document['largest_gap_to_model_pct']:.3g} % to the cost model at any size"),
        ("sha256", document["sha256"]),
    ):
        out.print(Text(f"{label:9} {value}"))
    for name, unit in (("verify", "tokens"), ("draft", "requests")):
        points = document[name]
        table = Table(title=f"{name}: {len(points)} points, ms", title_justify="left")
        shown = points[:: max(1, len(points) // 9)]
        for size, _ in shown:
            table.add_column(f"{size:,}", justify="right")
        table.add_row(*(f"{ms:.3f}" for _, ms in shown))
        table.caption, table.caption_justify = f"by {unit}", "left"
        out.print(table)
    out.print(Text(f"written to {out_file}" if out_file else "nothing written: pass --out FILE"))


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
