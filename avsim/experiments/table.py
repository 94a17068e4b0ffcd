"""What experiments found, as tables: on a console, in results.md, and in an experiment's own README."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from avsim.errors import InputError
from avsim.experiments.checks import Check
from avsim.experiments.runner import Outcome
from avsim.manifest import read_text

__all__ = ["largest_error", "markdown", "print_outcomes", "refreshed_readme", "results_markdown"]

_STYLE = {"passed": "green", "failed": "bold red", "crashed": "bold red", "bad input": "red", "skipped": "yellow"}
_BLOCK = re.compile(r"<!-- result -->\n.*?<!-- /result -->", re.DOTALL)


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print one line per experiment, then every check that failed."""
    from avsim.report.console import console

    out = console()
    table = Table(title="Experiments", title_justify="left")
    for name in ("id", "question", "kind"):
        table.add_column(name)
    table.add_column("checks", justify="right")
    for name in ("largest error", "result", "finding"):
        table.add_column(name)
    for item in outcomes:
        facts = (item.experiment.id, item.experiment.title, item.experiment.kind, _tally(item), largest_error(item))
        said = item.message or item.result.finding
        table.add_row(*map(Text, facts), Text(item.status, style=_STYLE.get(item.status, "")), Text(said))
    out.print(table)
    for item in outcomes:
        for check in item.failed:
            cells = " · ".join(filter(None, _cells(check)))
            out.print(Text(f"failed: {item.experiment.id}: {cells}", style="red"))


def results_markdown(outcomes: Sequence[Outcome], link: Callable[[Outcome], str]) -> str:
    """Return results.md: one line per experiment; `link` gives the target of its id, or an empty text."""
    heads = ("id", "question", "kind", "fitted", "predicted", "asked for", "checks", "largest error", "result")
    lines = []
    for item in outcomes:
        spec, target = item.experiment, link(item)
        status = f"{item.status}: {item.message}" if item.message else item.status
        found = f"**{status}**. {item.result.finding}" if item.result.finding else f"**{status}**"
        name = f"[{spec.id}]({target})" if target else spec.id
        cells = (spec.title, spec.kind, spec.fitted, spec.predicted, spec.pass_if, _tally(item), largest_error(item))
        lines.append([name, *cells, found])
    counts = ", ".join(
        f"{sum(item.status == status for item in outcomes)} {status}"
        for status in dict.fromkeys(item.status for item in outcomes)
    )
    return f"# Results\n\n{len(outcomes)} experiments: {counts}.\n\n{markdown(heads, lines)}\n"


def refreshed_readme(outcome: Outcome) -> str:
    """Return an experiment's README with the block between `<!-- result -->` and `<!-- /result -->` written anew.

    Raises:
        InputError: the README or its markers are missing.
    """
    path = outcome.experiment.folder / "README.md"
    text = read_text(path)
    if len(_BLOCK.findall(text)) != 1:
        raise InputError(f"{path}: it must hold one pair of lines <!-- result --> and <!-- /result -->")
    block = f"<!-- result -->\n{_block(outcome)}\n<!-- /result -->"
    return _BLOCK.sub(lambda _: block, text)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def largest_error(outcome: Outcome) -> str:
    """Return the error that comes closest to (or goes furthest beyond) what is allowed; empty without graded checks."""
    graded = [check for check in outcome.graded if check.error is not None]
    if not graded:
        return ""
    worst = max(graded, key=_strain)
    return f"{_error(worst)} (allowed {_allowed(worst)})" if worst.error or worst.tolerance else "0"


def _strain(check: Check) -> tuple[bool, float]:
    size = abs(check.error or 0.0)
    return not check.passed, size / check.tolerance if check.tolerance else size


def _tally(outcome: Outcome) -> str:
    shown = len(outcome.result.checks) - len(outcome.graded)
    passed = f"{len(outcome.graded) - len(outcome.failed)}/{len(outcome.graded)}" if outcome.graded else ""
    return " + ".join(filter(None, (passed, f"{shown} shown" if shown else "")))


def _block(outcome: Outcome) -> str:
    spec = outcome.experiment
    facts = {
        "Kind": spec.kind, "Source": spec.source, "Fitted": spec.fitted, "Predicted": spec.predicted,
        "Passes if": spec.pass_if, "Inputs": ", ".join(outcome.result.inputs), "Result": f"**{outcome.status}**",
        "Found": outcome.result.finding,
    }  # fmt: skip
    listed = "\n".join(f"- {name}: {text}" for name, text in facts.items() if text)
    if not outcome.result.checks:
        return listed
    heads = ("check", "published", "here", "error", "allowed", "")
    return f"{listed}\n\n{markdown(heads, [_cells(check) for check in outcome.result.checks])}"


def _cells(check: Check) -> list[str]:
    unit = f" {check.unit}" if check.unit else ""
    got = f"{check.got:.6g}{unit}"
    if check.low is not None and check.high is not None:
        got += f" ({check.low:.4g} … {check.high:.4g})"
    expected = check.expected
    if isinstance(expected, tuple):
        published = f"{expected[0]:g} … {expected[1]:g}{unit}"
    else:
        published = "" if expected is None else f"{expected:.6g}{unit}"
    sign = {"at least": "≥ ", "at most": "≤ "}.get(check.rule, "")
    word = {True: "passed", False: "**FAILED**", None: "shown"}[check.passed]
    return [check.name, sign + published, got, _error(check), _allowed(check), word]


def _error(check: Check) -> str:
    if check.error is None:
        return ""
    if check.rule == "relative":
        return f"{100 * check.error:+.2g} %"
    return f"{check.error:+.3g}" if check.error else "0"


def _allowed(check: Check) -> str:
    if check.passed is None:
        return ""
    if check.rule == "relative":
        return f"±{100 * check.tolerance:g} %"
    return f"±{check.tolerance:g}" if check.tolerance else "0"


def relative_link(folder: Path) -> Callable[[Outcome], str]:
    """Return a function that links to an experiment's README from a file in `folder`."""
    return lambda outcome: (outcome.experiment.folder / "README.md").relative_to(folder.absolute()).as_posix()
