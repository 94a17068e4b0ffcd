"""What `avsim cost profile` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from avsim.costs.profile.run import ProfileRun
from avsim.costs.profile.summary import CellStats
from avsim.report.console import console

__all__ = ["print_profile"]


def print_profile(run: ProfileRun, paths: Sequence[Path]) -> None:
    """Print a profile: what was measured, every step with its spread, drift, and the files written."""
    out = console()
    card = run.tables[0].model.card
    out.print(Text(f"{paths[0]}: curve {card.name!r}, {card.kind}", style="bold"))
    out.print(Text(f"{card.model} on {card.hardware}"))
    drawn, calls = run.measured.num_rounds, run.measured.ms.size
    out.print(Text(f"{drawn} rounds of {len(run.stats)} steps ({calls} timings) in {run.measured.seconds:.0f} s"))
    verify = [item for item in run.stats if not item.depth]
    draft = [item for item in run.stats if item.depth]
    out.print(_steps("Target steps, ms", verify))
    if draft:
        out.print(_steps("Draft steps, ms", draft))
    drift = run.drift
    out.print(
        Text(
            f"Drift: late rounds {drift.trend_pct:+.1f} % ({drift.trend_low_pct:+.1f} … {drift.trend_high_pct:+.1f}) "
            f"against early ones; the first step at the end {drift.repeat_pct:+.1f} % ({drift.repeat_low_pct:+.1f} … "
            f"{drift.repeat_high_pct:+.1f}) against the start (99 % intervals)"
        )
    )
    for note in run.notes:
        out.print(Text(f"· {note}"))
    for path, table in zip(paths, run.tables, strict=True):
        profile = table.document["profile"]
        contexts = ", ".join(map(str, profile["contexts"]))
        out.print(Text(f"{path}: {profile['spread']} steps at {contexts} cached tokens; samples {path.stem}.csv"))


def _steps(title: str, items: Sequence[CellStats]) -> Table:
    table = Table(title=title, title_justify="left")
    is_draft = items[0].depth > 0
    names = ("requests", "slots") if is_draft else ("tokens", "requests")
    for name in (*names, "context", "graph", "median", "95 % interval", "p10 … p90", "IQR", "outliers"):
        table.add_column(name, justify="right")
    for item in items:
        sizes = (item.num_reqs, item.depth) if is_draft else (item.num_tokens, item.num_reqs)
        table.add_row(
            *map(str, sizes), str(item.context_tokens), item.graph_mode, f"{item.median:.4g}",
            f"{item.low:.4g} … {item.high:.4g}", f"{item.p10:.4g} … {item.p90:.4g}", f"{item.iqr:.3g}",
            f"{item.num_outliers} of {item.num_samples}",
        )  # fmt: skip
    return table
