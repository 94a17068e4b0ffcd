"""`avsim trace`: look at, check, import and make traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from avsim.sources import Trace
    from avsim.sources.summary import PositionCounts, TraceSummary

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace folder.")]
Output = Annotated[Path, typer.Argument(metavar="OUT", help="The trace folder to make.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is already there.")]


@app.command()
def info(trace: TracePath, as_json: Json = False) -> None:
    """Show a trace's card, sizes, and acceptance by position with every denominator."""
    from avsim.sources import open_trace
    from avsim.sources.summary import summarise

    opened = open_trace(trace)
    summary = summarise(opened)
    if as_json:
        _print_json({"card": opened.card.to_json(), "summary": summary.to_json()})
    else:
        _print_info(opened, summary)


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
    """Import a foreign trace: smollm2-eagle1-dense, specdecode-bench, or one of an installed package."""
    from avsim.sources.importers import import_trace

    _print_made(import_trace(importer, source, out, overwrite), as_json)


@app.command()
def synth(
    out: Output,
    kind: Annotated[str, typer.Option(help="dense or on-policy.")] = "dense",
    requests: Annotated[int, typer.Option(help="Requests.")] = 64,
    k: Annotated[int, typer.Option("--k", help="Draft slots per block.")] = 7,
    output_len: Annotated[int, typer.Option(help="Tokens of each output.")] = 128,
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
    from avsim.sources.synthetic import SyntheticLaw, write_synthetic

    if kind not in ("dense", "on-policy"):
        raise InputError(f"--kind is {kind!r}; it is dense or on-policy")
    law = SyntheticLaw(
        kind="dense" if kind == "dense" else "on-policy",
        num_requests=requests,
        num_speculative_tokens=k,
        output_len=output_len,
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


def _print_json(data: dict[str, Any]) -> None:
    from avsim.manifest import json_text

    typer.echo(json_text(data), nl=False)


def _print_made(trace: Trace, as_json: bool) -> None:
    if as_json:
        _print_json({"path": str(trace.path), "card": trace.card.to_json()})
    else:
        typer.echo(f"{trace.path}: {trace.card.num_requests} requests, {trace.num_blocks} blocks")


def _print_info(trace: Trace, summary: TraceSummary) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    counted = {"content_hash", "num_requests", "num_blocks", "schema_version", "notes"}
    for name, value in trace.card.to_json().items():
        if name not in counted and value not in (None, [], ""):
            text = ", ".join(value) if isinstance(value, list) else str(value)
            console.print(f"{name:<24}{text}", markup=False, soft_wrap=True)
    sizes = {
        "requests": f"{len(trace.requests)} ({summary.num_sources} with different content)",
        "tokens": f"{summary.prompt_tokens} prompt, {summary.output_tokens} output",
        "blocks": f"{trace.num_blocks} ({summary.num_masked} masked)",
        "on disk": f"{summary.num_bytes / 1e6:.1f} MB",
        "content hash": trace.card.content_hash,
    }
    for name, value in sizes.items():
        console.print(f"{name:<24}{value}", markup=False, soft_wrap=True)
    if trace.card.notes:
        console.print(f"{'notes':<24}{trace.card.notes}", markup=False, soft_wrap=True)
    if summary.path is None:
        console.print(_table("The blocks of the trace", summary.rows))
        return
    console.print(_table("Dense rows: a block at every output position; they overweight easy positions", summary.rows))
    console.print(_table("Walked path from position 0: the blocks that a run visits", summary.path))


def _table(title: str, counts: PositionCounts) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{title}\n{counts.num_blocks} blocks, acceptance length {counts.acceptance_length:.3f}",
        caption="accepted ÷ denominator, in %, with 95 % Wilson intervals that count slots as independent;\n"
        "conditional: of the slots that verification reached",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("slot", "accepted", "per drafted", "per verified", "conditional"):
        table.add_column(heading, justify="right", no_wrap=True)
    rates = [counts.rates(name) for name in ("per_drafted", "per_verified", "conditional")]
    for slot, accepted in enumerate(counts.accepted):
        cells = [f"{100 * rate[slot]:.1f} [{100 * low[slot]:.1f}, {100 * high[slot]:.1f}]" for rate, low, high in rates]
        table.add_row(str(slot), str(accepted), *cells)
    return table
