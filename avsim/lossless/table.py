"""The table of `avsim check lossless`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from avsim.report.console import console

__all__ = ["print_checks"]


def print_checks(rows: Sequence[dict[str, Any]], left: Sequence[str]) -> None:
    """Print one line per combination, and what could not be checked."""
    out = console()
    models = rows[0]["models"]
    table = Table(title=f"What two requests emit, against their targets, on {models} toy models", title_justify="left")
    for name in ("policy", "score", "lag", "drafts", "class"):
        table.add_column(name)
    for name in ("largest TV", "models off", "admission varies"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        lag = f"{row['lag']}, left out" if row["left_out"] else str(row["lag"])
        table.add_row(
            row["policy"],
            row["estimator"] or "–",
            lag if row["estimator"] else "–",
            ("sampled" if row["draft_sampling"] != "greedy" else "greedy") + ", T = 0" * row["temperature_0"],
            "exact" if row["expected"]["exact"] else "lossy",
            f"{row['largest_total_variation']:.1e}",
            str(row["models_off"]),
            str(row["models_admission_varies"]),
            Text("PASS", "green") if row["passed"] else Text("FAIL", "red"),
        )
    table.caption = (
        "TV: total variation, exact by enumeration; models off: TV above 1e-9; admission varies: models on which what "
        "is admitted depends on what is drawn; left out: the first request missed the step before"
    )
    table.caption_justify = "left"
    out.print(table)
    for note in left:
        out.print(Text(f"· not checked: {note}"))
