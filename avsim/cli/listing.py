"""`avsim list`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avsim.errors import InputError

__all__ = ["show"]


def show(
    what: Annotated[str, typer.Argument(help="estimators, policies, costs, sources or traces.")],
    folder: Annotated[Path, typer.Option(help="Where to look for traces.")] = Path("traces"),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what is installed."""
    from avsim.manifest import json_text
    from avsim.registry import suggest
    from avsim.report.console import print_rows
    from avsim.report.listing import LISTINGS

    if what not in LISTINGS:
        raise InputError(f"nothing to list under {what!r}{suggest(what, LISTINGS)}")
    rows = LISTINGS[what](folder)
    if as_json:
        typer.echo(json_text(rows), nl=False)
    else:
        print_rows(rows)
