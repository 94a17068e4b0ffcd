"""`avsim cost`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A preset (see `avsim list costs`) or a JSON file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the model as JSON, in the form that --cost reads.")] = (
        False
    ),
) -> None:
    """Print a cost model: its card, and step times at a few sizes."""
    from avsim.costs import dump, load
    from avsim.manifest import json_text
    from avsim.report.console import print_cost

    model = load(name)
    if as_json:
        typer.echo(json_text(dump(model)), nl=False)
    else:
        print_cost(model)
