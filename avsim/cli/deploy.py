"""`avsim deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avsim.errors import CheckFailed

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("bundle")
def bundle(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces to learn from, in this order.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle to write.")],
    estimator: Annotated[str, typer.Option(help="The estimator's spec; `avsim compare` ranks them.")],
    cold: Annotated[bool, typer.Option("--cold", help="Learn nothing; start in the engine as without data.")] = False,
    freeze: Annotated[bool, typer.Option("--freeze", help="Keep what was learned; never refit in the engine.")] = False,
    concurrency: Annotated[int, typer.Option(help="Requests served at once when a dense trace is learned from.")] = 8,
    target: Annotated[str | None, typer.Option(help="The engine's name of the target [default: trace's].")] = None,
    drafter: Annotated[str | None, typer.Option(help="The engine's name of the drafter [default: trace's].")] = None,
    cost_table: Annotated[
        Path | None, typer.Option(help="What `avsim cost table --out` wrote, in place of vLLM's own profile.")
    ] = None,
    allow_synthetic: Annotated[bool, typer.Option("--allow-synthetic", help="Accept made-up traces.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the order of requests of a dense trace.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the bundle as JSON.")] = False,
) -> None:
    """Let an estimator learn from traces, and write what it knows for a vLLM engine to load.

    Example: avsim deploy bundle traces/smollm2-eagle-live --estimator multi-logistic -o bundle.json
    """
    from avsim.deploy.bundle import write_bundle
    from avsim.deploy.check import bundle_rows
    from avsim.deploy.make import make_bundle
    from avsim.manifest import json_text
    from avsim.report.console import print_rows

    made = make_bundle(
        traces,
        estimator,
        cold=cold,
        freeze=freeze,
        concurrency=concurrency,
        seed=seed,
        target=target,
        drafter=drafter,
        cost_table=cost_table,
        allow_synthetic=allow_synthetic,
    )
    write_bundle(made, out, overwrite=overwrite)
    if as_json:
        typer.echo(json_text(made.to_json()), nl=False)
    else:
        print_rows(bundle_rows(made))
    typer.echo(f"bundle: {out}; start vLLM with AVSIM_DEPLOY={out}", err=True)


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what a bundle holds."""
    from avsim.deploy.bundle import read_bundle
    from avsim.deploy.check import bundle_rows
    from avsim.manifest import json_text
    from avsim.report.console import print_rows

    held = read_bundle(path)
    if as_json:
        typer.echo(json_text(held.to_json()), nl=False)
    else:
        print_rows(bundle_rows(held))


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle.")],
    steps: Annotated[int, typer.Option(help="Steps of the kernels' run against NumPy.", min=1)] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check that a bundle is whole and that this machine's kernels do with it what NumPy does.

    Exit code 1 if a check failed. Kernels need torch, Triton, and a GPU or TRITON_INTERPRET=1.
    """
    from avsim.deploy.check import check_bundle
    from avsim.manifest import json_text
    from avsim.report.console import print_rows

    rows = check_bundle(path, steps=steps)
    if as_json:
        typer.echo(json_text(rows), nl=False)
    else:
        words = {True: "passed", False: "FAILED", None: "left out"}
        print_rows([row | {"passed": words[row["passed"]]} for row in rows])
    failed = [row["check"] for row in rows if row["passed"] is False]
    if failed:
        raise CheckFailed(f"{path}: {', '.join(failed)}")
