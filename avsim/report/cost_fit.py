"""What `avsim cost fit` prints."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from avsim.costs.fit import OUTLIER_RULE, PartFit
from avsim.costs.fit_holdout import Errors, Figure
from avsim.costs.fit_run import FitRun
from avsim.report.console import console

__all__ = ["print_fit"]

_SHOWN_OUTLIERS = 5
_SHOWN_POINTS = 16


def print_fit(run: FitRun, path: Path) -> None:
    """Print a fit: what it is of, held-out errors of both forms, coefficients or points, outliers and notes."""
    out = console()
    card = run.fit.model.card
    out.print(Text(f"{path}: {run.options.kind} cost model {card.name!r}, {card.kind}", style="bold"))
    if card.kind == "synthetic":
        out.print(Text("SYNTHETIC", style="bold yellow"))
    context = f", {card.context_tokens} KV tokens a request" if card.context_tokens else ""
    out.print(Text(f"{card.model} on {card.hardware}{context}"))
    out.print(Text(f"from {card.source}"))
    for part in (run.fit.verify, run.fit.draft):
        _print_part(run, part)
    for note in run.notes:
        out.print(Text(f"· {note}"))
    for origin in run.origins:
        if origin.notes:
            out.print(Text(f"· {origin.name} says: {origin.notes}"))


def _print_part(run: FitRun, part: PartFit) -> None:
    out = console()
    what = "target's forward pass" if part.samples.label == "verify" else "drafter"
    left = ", ".join(f"{count} {reason}" for reason, count in part.samples.left_out.items())
    out.print(Text(f"\n{part.samples.label}: {what}, {len(part.samples)} samples", style="bold"), end="")
    out.print(Text(f"; left out: {left}" if left else ""))
    out.print(_error_table(run, part))
    blocking = part.blocking
    tau = "" if blocking.tau is None else f" (timings hang together over about {blocking.tau:.0f} steps)"
    closer = part.closer
    if closer is not None:
        verdict = f"Closer on held-out timings: {closer.word}"
        out.print(Text(f"{verdict} (median error of curve less linear: {_points(closer.points)})"))
    blocks = "blocks" if part.samples.ordered else "sizes"
    out.print(
        Text(
            f"Held out: {blocking.unit}{tau}, one part in {blocking.num_folds} at a time, each once; 95 % intervals "
            f"from resampling {blocking.num_blocks} {blocks}"
        )
    )
    out.print(_points_table(part) if run.options.kind == "curve" else _terms_table(part))
    _print_outliers(part)


def _error_table(run: FitRun, part: PartFit) -> Table:
    table = Table(title="Error on held-out timings, %: predicted ÷ measured − 1", title_justify="left")
    table.add_column("")
    for name in ("samples", "form", "median |error|", "95 % interval", "p95 |error|", "median error", "total time"):
        table.add_column(name, justify="left" if name == "form" else "right")
    forms = sorted(part.errors, key=lambda form: form != run.options.kind)
    by_group: dict[str, dict[str, Errors]] = {}
    for form in forms:
        for item in part.errors[form]:
            by_group.setdefault(item.group, {})[form] = item
    for group, found in by_group.items():
        for index, (form, item) in enumerate(found.items()):
            style = "bold" if form == run.options.kind else ""
            cells = (
                str(item.num_samples), form, f"{item.median_abs.value:.1f}", _interval(item.median_abs),
                f"{item.p95_abs.value:.1f}", f"{item.bias.value:+.1f}", _with_interval(item.total),
            )  # fmt: skip
            table.add_row("" if index else group, *(Text(cell, style=style) for cell in cells))
    table.caption = "total time: of all these steps together, as a clock would add them; bold: the form that is written"
    table.caption_justify = "left"
    return table


def _points_table(part: PartFit) -> Table | Text:
    curve = part.curve
    if curve is None:
        return Text("no curve: no size has enough samples")
    unit = "tokens" if part.samples.label == "verify" else "requests"
    table = Table(title=f"Points of the curve ({len(curve.points)})", title_justify="left")
    for name in (unit, "ms", "samples"):
        table.add_column(name, justify="right")
    rows = [
        (str(size), f"{ms:.4g}", str(count))
        for (size, ms), count in zip(curve.points, curve.counts.tolist(), strict=True)
    ]
    half = _SHOWN_POINTS // 2
    shown = rows if len(rows) <= _SHOWN_POINTS else [*rows[:half], ("…", "…", "…"), *rows[-half:]]
    for row in shown:
        table.add_row(*row)
    return table


def _terms_table(part: PartFit) -> Table:
    table = Table(title="Coefficients", title_justify="left")
    for name in ("term", "value", "standard error", "95 % interval", "variance inflation"):
        table.add_column(name, justify="left" if name == "term" else "right")
    for term in part.linear.terms:
        interval = "–" if term.low is None or term.high is None else f"{_number(term.low)} … {_number(term.high)}"
        se = "–" if term.se is None else _number(term.se)
        table.add_row(term.name, _number(term.value), se, interval, f"{term.inflation:.1f}")
    for name, _ in part.linear.dropped:
        table.add_row(name, "not fitted", "", "", "")
    return table


def _print_outliers(part: PartFit) -> None:
    out, found = console(), part.outliers
    use = "the curve's medians do not move with them, the linear fit leaves them out, the errors above count them"
    out.print(Text(f"Outliers: {found.count}, {found.share_of_time:.1%} of the time. {OUTLIER_RULE}; {use}"))
    for source, row, size, ms, ratio in found.largest[:_SHOWN_OUTLIERS]:
        where = f"source {source + 1} row {row}" if part.samples.ordered else f"row {row}"
        out.print(Text(f"  {where}: size {size}, {ms:.4g} ms, ×{ratio:.2f}"))
    if found.count > _SHOWN_OUTLIERS:
        out.print(Text(f"  and {found.count - _SHOWN_OUTLIERS} more; --json lists the 100 largest"))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _interval(figure: Figure) -> str:
    return "–" if figure.low is None or figure.high is None else f"{figure.low:.1f} … {figure.high:.1f}"


def _with_interval(figure: Figure) -> str:
    interval = "" if figure.low is None or figure.high is None else f" ({figure.low:+.1f} … {figure.high:+.1f})"
    return f"{figure.value:+.1f}{interval}"


def _points(figure: Figure) -> str:
    return f"{_with_interval(figure)} points"
