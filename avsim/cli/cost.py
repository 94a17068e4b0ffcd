"""`avsim cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avsim.cli import cost_profile

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("profile")(cost_profile.profile)


@app.callback()
def _group() -> None:
    pass


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="A preset (see `avsim list costs`), a JSON file, or a spec: roofline:model=…,gpu=….")
    ],
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


@app.command("table")
def table(
    name: Annotated[str, typer.Argument(metavar="COST", help="A preset, a JSON file, or a spec.")],
    max_reqs: Annotated[int, typer.Option(help="The engine's max_num_seqs.")],
    max_tokens: Annotated[int, typer.Option(help="The engine's max_num_batched_tokens.")],
    context: Annotated[int, typer.Option(help="Cached tokens per request of the traffic.")],
    k: Annotated[int, typer.Option("--k", help="The engine's num_speculative_tokens.")],
    capture_limit: Annotated[
        int | None, typer.Option(help="The engine's largest captured size [default: the cost model's].")
    ] = None,
    overhead_ms: Annotated[float, typer.Option(help="Added to every step: AV's own work, input preparation.")] = 0.0,
    as_profiled: Annotated[
        bool, typer.Option("--as-profiled", help="What vLLM's own start-up profile would measure instead.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write: JSON that --cost reads, or CSV by its name.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document as JSON.")] = False,
) -> None:
    """Write the two tables that vLLM's budget rule reads, for an engine's own sizes and traffic."""
    from avsim.costs import load
    from avsim.costs.table import Engine, table_document, write_table
    from avsim.manifest import json_text
    from avsim.report.console import print_table

    model = load(name)
    engine = Engine(
        max_num_reqs=max_reqs,
        max_num_tokens=max_tokens,
        capture_limit=(int(getattr(model, "capture_limit", 0)) or 512) if capture_limit is None else capture_limit,
        context_tokens=context,
        num_speculative_tokens=k,
        overhead_ms=overhead_ms,
    )
    document = table_document(model, engine, as_profiled=as_profiled)
    if out is not None:
        write_table(document, out, overwrite=overwrite)
    if as_json:
        typer.echo(json_text(document), nl=False)
    else:
        print_table(document, str(out) if out is not None else None)


@app.command("fit")
def fit(
    out: Annotated[Path, typer.Option("--out", help="The JSON file to write; --cost reads it.")],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SOURCE]...", help="Trace folders, or CSVs with a row per engine step."),
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(help="A start-up profile of the target: num_target_tokens,ms,kind.")
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="A start-up profile of the drafter: num_reqs,ms,kind.")] = None,
    kind: Annotated[str, typer.Option(help="The form to write: curve or linear. Both are judged.")] = "curve",
    name: Annotated[str | None, typer.Option(help="Name of the cost model [default: that of the file].")] = None,
    model: Annotated[str | None, typer.Option(help="The target [default: what the traces say].")] = None,
    hardware: Annotated[str | None, typer.Option(help="GPUs and parallelism [default: what the traces say].")] = None,
    context: Annotated[int | None, typer.Option(help="KV tokens per request [default: median of the steps].")] = None,
    k: Annotated[int | None, typer.Option("--k", help="The drafter's K [default: what the traces say].")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the target [default: what the traces say].")] = None,
    drafter_kind: Annotated[
        str | None, typer.Option(help="eagle, mtp, dflash, … [default: what the traces say].")
    ] = None,
    capture_limit: Annotated[
        int | None, typer.Option(help="The engine's largest captured size; 0: unknown [default: see docs/cost-fit.md].")
    ] = None,
    capture_sizes: Annotated[
        str | None, typer.Option(help="All captured sizes, 1,2,4,…: steps count for the size they are padded to.")
    ] = None,
    min_samples: Annotated[int, typer.Option(help="Fewest steps of a point of the curve.")] = 5,
    monotone: Annotated[str, typer.Option(help="running-max (vLLM's; medians stay raw) or isotonic.")] = "running-max",
    prefill: Annotated[
        str, typer.Option(help="Steps with prompt tokens: leave-out, or own: fit them with their own term (linear).")
    ] = "leave-out",
    holdout: Annotated[float, typer.Option(help="Share of the timings held out at a time.")] = 0.2,
    by: Annotated[str, typer.Option(help="Break errors down by size, context, graph-mode or time.")] = "size",
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written document as JSON.")] = False,
) -> None:
    """Fit a cost model to recorded step timings, and say how far it is off on timings it has not seen."""
    from avsim.cli.options import numbers
    from avsim.costs.fit import FitOptions
    from avsim.costs.fit_curve import CurveRule
    from avsim.costs.fit_run import CardOptions, check_target, run_fit, write_fit
    from avsim.manifest import json_text
    from avsim.report.cost_fit import print_fit

    check_target(out, overwrite=overwrite)
    sizes = numbers(capture_sizes, "--capture-sizes") if capture_sizes else ()
    rule = CurveRule(min_samples, capture_limit, sizes, monotone)
    run = run_fit(
        sources or [],
        verify=verify,
        draft=draft,
        card=CardOptions(name or out.stem, model, hardware, context, k, vocab_size, drafter_kind),
        options=FitOptions(kind, rule, holdout, by, seed),
        prefill=prefill,
    )
    write_fit(run, out, overwrite=overwrite)
    if as_json:
        typer.echo(json_text(run.document), nl=False)
    else:
        print_fit(run, out)
