"""`avsim experiment`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from avsim.cli.options import progress_bar
from avsim.errors import CheckFailed, InputError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("run")
def run(
    folder: Annotated[Path, typer.Argument(help="An experiment, or a folder that holds some.")],
    out: Annotated[Path | None, typer.Option(help="Write results.md, results.json and every experiment here.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Rewrite the results in the experiments' folders.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Only those that take seconds.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run experiments against published numbers, or a sweep over configurations, and print one table.

    Published measurements are read from the folder that AVSIM_REFERENCE names; experiments that need them are skipped
    without it. A sweep that was stopped goes on where it was. Exit code 1 if a check failed, 2 for bad input.

    Example: avsim experiment run experiments/published --fast
    """
    from avsim.experiments.folder import document, run_folder
    from avsim.experiments.table import print_outcomes
    from avsim.manifest import json_text

    with _progress() as progress:
        outcomes = run_folder(folder, out=out, update=update, fast=fast, workers=workers, progress=progress)
    if as_json:
        typer.echo(json_text(document(outcomes, folder)), nl=False)
    else:
        print_outcomes(outcomes)
    wrong = [item.experiment.id for item in outcomes if item.status in ("failed", "crashed")]
    refused = [item for item in outcomes if item.status == "bad input"]
    if wrong:
        raise CheckFailed(f"{len(wrong)} of {len(outcomes)} experiments failed: {', '.join(wrong)}")
    if refused:
        raise InputError(f"{refused[0].experiment.id}: {refused[0].message}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal, and a line for each thing done elsewhere."""
    from rich.console import Console

    if Console(stderr=True).is_terminal:
        with progress_bar("running") as bar:
            yield bar
        return
    first: list[tuple[float, int]] = []

    def line(done: int, total: int, what: str) -> None:
        if not first:
            first.append((time.monotonic(), done))
        since, before = first[0]
        left = (time.monotonic() - since) / (done - before) * (total - done) if done > before else 0
        eta = f" (about {left:.0f} s left)" if done < total and left >= 1 else ""
        typer.echo(f"{done}/{total} {what}{eta}", err=True)

    yield line
