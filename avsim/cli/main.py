"""The `avsim` command: its subcommands, and errors as one line with an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from avsim import __version__
from avsim.cli import capture, check, compare, cost, deploy, experiment, listing, plan, replay, trace
from avsim.errors import AvsimError

__all__ = ["app", "main"]

app = typer.Typer(
    name="avsim",
    help="Predict what adaptive verification would save, from recorded speculative-decoding traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"avsim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("replay")(replay.replay)
app.command("compare")(compare.compare)
app.command("plan")(plan.plan)
app.add_typer(trace.app, name="trace", help="Look at, check, import, make, merge and convert traces.")
app.add_typer(check.app, name="check", help="Check what avsim claims, on toy models.")
app.add_typer(capture.app, name="capture", help="Make traces from models.")
app.add_typer(cost.app, name="cost", help="Look at, tabulate, fit and measure step-cost models.")
app.add_typer(deploy.app, name="deploy", help="Take an estimator from a trace into a vLLM engine.")
app.add_typer(experiment.app, name="experiment", help="Run experiments against published numbers, and sweeps.")
app.command("list")(listing.show)


def main() -> None:
    """Run the command line; exit codes: 0 ok, 1 a check failed, 2 bad input or usage, 3 internal."""
    try:
        app()
    except AvsimError as error:
        typer.echo(f"avsim: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("AVSIM_DEBUG"):
            raise
        typer.echo(f"avsim: internal error: {error!r} (set AVSIM_DEBUG=1 for the traceback)", err=True)
        sys.exit(3)
