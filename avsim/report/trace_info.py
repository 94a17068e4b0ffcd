"""What `avsim trace info` prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from avsim.sources.base import Trace
from avsim.sources.summary import DENOMINATORS, PositionCounts, TraceSummary
from avsim.sources.warning_signs import Sign

__all__ = ["print_trace_info"]

_COUNTED = {"content_hash", "num_requests", "num_blocks", "schema_version", "notes"}
_CAPTION = (
    "Accepted ÷ slots drafted, verified, or (conditional) reached by verification; in %, with 95 % Wilson intervals "
    "that count blocks as independent. "
)
_ON_POLICY = "Blocks of a request hang together, so the intervals are somewhat too narrow."
_DENSE = (
    "Blocks of a request hang together, and dense rows overlap, so the intervals are too narrow, most of all those "
)
_DENSE += "of the rows."


def print_trace_info(trace: Trace, summary: TraceSummary, signs: list[Sign]) -> None:
    """Print a trace's card and sizes, acceptance by slot with every denominator, and what looks wrong."""
    console = Console(highlight=False, markup=False)

    def line(name: str, value: str) -> None:
        console.print(f"{name:<24}{value}", soft_wrap=True)

    for name, value in trace.card.to_json().items():
        if name not in _COUNTED and value not in (None, [], ""):
            line(name, ", ".join(value) if isinstance(value, list) else str(value))
    line("requests", f"{len(trace.requests)} ({summary.num_sources} with different content)")
    line("tokens", f"{summary.prompt_tokens} prompt, {summary.output_tokens} output")
    line("blocks", f"{trace.num_blocks} ({summary.num_masked} masked)")
    line("on disk", f"{summary.num_bytes / 1e6:.1f} MB")
    line("content hash", trace.card.content_hash)
    if trace.card.notes:
        line("notes", trace.card.notes)
    if summary.path is None:
        _print_rates(console, "The blocks of the trace", summary.rows)
    else:
        title = "Dense rows: a block at every output position; they overweight easy positions"
        _print_rates(console, title, summary.rows)
        _print_rates(console, "Walked path from position 0: the blocks that a run visits", summary.path)
    console.print(_CAPTION + (_ON_POLICY if summary.path is None else _DENSE), style="dim")
    for sign in signs:
        console.print(Text.assemble(("warning: ", "bold yellow"), sign.text))


def _print_rates(console: Console, title: str, counts: PositionCounts) -> None:
    console.print(f"\n{title}\n{counts.num_blocks} blocks, acceptance length {counts.acceptance_length:.3f}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("slot", "accepted", *(name.replace("_", " ") for name in DENOMINATORS)):
        table.add_column(heading, justify="right", no_wrap=True)
    rates = [counts.rates(name) for name in DENOMINATORS]
    for slot, accepted in enumerate(counts.accepted):
        cells = [_rate(*(100 * float(bound[slot]) for bound in rate)) for rate in rates]
        table.add_row(str(slot), str(accepted), *cells)
    console.print(table)


def _rate(rate: float, low: float, high: float) -> str:
    return "–" if rate != rate else f"{rate:.1f} [{low:.1f}, {high:.1f}]"
