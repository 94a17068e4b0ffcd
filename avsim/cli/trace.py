"""`avsim trace`: look at, check, import, make, merge and convert traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from avsim.sources import Trace

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace folder.")]
Output = Annotated[Path, typer.Argument(metavar="OUT", help="The trace folder to make.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is already there.")]


_LENGTHS = "a number, uniform:low=,high=, lognormal:mean=,sigma=,max= or geometric:mean=,max="


@app.command()
def info(trace: TracePath, as_json: Json = False) -> None:
    """Show a trace's card, sizes, acceptance by slot with every denominator, and what looks wrong."""
    from avsim.report.trace_info import print_trace_info
    from avsim.sources import open_trace
    from avsim.sources.summary import summarise
    from avsim.sources.warning_signs import warning_signs

    opened = open_trace(trace)
    summary = summarise(opened)
    signs = warning_signs(opened, summary)
    if as_json:
        warnings = [sign.to_json() for sign in signs]
        _print_json({"card": opened.card.to_json(), "summary": summary.to_json(), "warnings": warnings})
    else:
        print_trace_info(opened, summary, signs)


@app.command()
def validate(trace: TracePath, as_json: Json = False) -> None:
    """Check every row of a trace and its content hash."""
    from avsim.sources import open_trace, validate_trace

    findings = validate_trace(trace)
    card = open_trace(trace).card
    if as_json:
        _print_json({"valid": True, "content_hash": card.content_hash, "findings": findings})
        return
    typer.echo(f"{trace}: valid, {card.num_requests} requests, {card.num_blocks} blocks, {card.content_hash}")
    for finding in findings:
        typer.echo(f"  note: {finding}")


@app.command("import")
def import_(
    importer: Annotated[
        str, typer.Argument(metavar="IMPORTER", help="An importer and its options: specdecode-bench:drafter=ngram.")
    ],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The file or folder to read.")],
    out: Output,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Import a foreign trace; `avsim list sources` names the importers, those of installed packages too."""
    from avsim.sources.importers import import_trace

    _print_made(import_trace(importer, source, out, overwrite), as_json)


@app.command()
def synth(
    out: Output,
    kind: Annotated[str, typer.Option(help="dense or on-policy.")] = "dense",
    requests: Annotated[int, typer.Option(help="Requests.")] = 64,
    k: Annotated[int, typer.Option("--k", help="Draft slots per block.")] = 7,
    output_len: Annotated[str, typer.Option(help=f"Tokens of each output: {_LENGTHS}.")] = "128",
    prompt_len: Annotated[str, typer.Option(help="Tokens of each prompt, in the same way.")] = "64",
    concurrency: Annotated[int, typer.Option(help="Requests per step, if on-policy.")] = 16,
    slope: Annotated[float, typer.Option(help="Weight of the log-odds.")] = 0.5,
    intercept: Annotated[float, typer.Option(help="Intercept of slot 0.")] = -0.2,
    intercept_step: Annotated[float, typer.Option(help="Added to the intercept per slot.")] = 0.0,
    feature_mean: Annotated[float, typer.Option(help="Mean of the log-odds.")] = 1.0,
    feature_sd: Annotated[float, typer.Option(help="Spread of the log-odds.")] = 2.0,
    request_sd: Annotated[float, typer.Option(help="Spread of the requests' own intercepts.")] = 0.0,
    drift: Annotated[float, typer.Option(help="Added to the intercept from the first request to the last.")] = 0.0,
    switch_at: Annotated[float, typer.Option(help="Share of requests after which the law switches.")] = 1.0,
    switch_shift: Annotated[float, typer.Option(help="Added to the intercept after the switch.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make a trace with a known acceptance law; results on it hold for that law only."""
    from avsim.errors import InputError
    from avsim.sources import lengths
    from avsim.sources.synthetic import SyntheticLaw, write_synthetic

    if kind not in ("dense", "on-policy"):
        raise InputError(f"--kind is {kind!r}; it is dense or on-policy")
    law = SyntheticLaw(
        kind="dense" if kind == "dense" else "on-policy",
        num_requests=requests,
        num_speculative_tokens=k,
        output_len=lengths.make(output_len),
        prompt_len=lengths.make(prompt_len),
        num_reqs=concurrency,
        slope=slope,
        intercept=intercept,
        intercept_step=intercept_step,
        feature_mean=feature_mean,
        feature_sd=feature_sd,
        request_sd=request_sd,
        drift=drift,
        switch_at=switch_at,
        switch_shift=switch_shift,
        seed=seed,
    )
    _print_made(write_synthetic(out, law, overwrite), as_json)


@app.command()
def derive(
    trace: TracePath,
    out: Output,
    policy: Annotated[str, typer.Option(help="A fixed depth: fixed:K.")] = "fixed:5",
    concurrency: Annotated[int, typer.Option(help="Requests served at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the order of requests.")] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Walk a dense trace as an engine would, and write the on-policy trace that it would have recorded."""
    from avsim.derive import derive_on_policy
    from avsim.errors import InputError
    from avsim.policies import FixedDepth, make
    from avsim.sources import open_trace

    chosen = make(policy)
    if not isinstance(chosen, FixedDepth):
        raise InputError(f"--policy is {policy!r}; only a fixed depth (fixed:K) walks without step costs")
    made = derive_on_policy(open_trace(trace), out, chosen, concurrency, seed=seed, overwrite=overwrite)
    _print_made(made, as_json)


@app.command()
def merge(
    out: Output,
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="The trace folders to merge, in order.")],
    name: Annotated[str | None, typer.Option(help="Name of the merged trace.")] = None,
    allow_mixed_temperature: Annotated[
        bool, typer.Option("--allow-mixed-temperature", help="Merge traces of different temperatures.")
    ] = False,
    same_prompts: Annotated[
        bool,
        typer.Option("--same-prompts", help="Requests with the same id have the same prompt: they become one source."),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Merge traces of the same target, drafter and settings into one; requests, steps and sources are renumbered."""
    from avsim.sources.merge import merge_traces

    made = merge_traces(
        out,
        traces,
        name=name,
        allow_mixed_temperature=allow_mixed_temperature,
        same_prompts=same_prompts,
        overwrite=overwrite,
    )
    _print_made(made, as_json)


@app.command()
def convert(
    trace: TracePath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    to: Annotated[str, typer.Option("--to", help="csv or jsonl.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace such a folder that is already there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a trace's blocks, requests, steps and card as CSV or JSON lines."""
    from avsim.errors import InputError
    from avsim.sources.convert import convert_trace

    if to not in ("csv", "jsonl"):
        raise InputError(f"--to is {to!r}; it is csv or jsonl")
    files = convert_trace(trace, out, "csv" if to == "csv" else "jsonl", overwrite=overwrite)
    if as_json:
        _print_json({"path": str(out), "files": files})
    else:
        typer.echo(f"{out}: {', '.join(files)}")


def _print_json(data: dict[str, Any]) -> None:
    from avsim.manifest import json_text

    typer.echo(json_text(data), nl=False)


def _print_made(trace: Trace, as_json: bool) -> None:
    if as_json:
        _print_json({"path": str(trace.path), "card": trace.card.to_json()})
    else:
        typer.echo(f"{trace.path}: {trace.card.num_requests} requests, {trace.num_blocks} blocks")
