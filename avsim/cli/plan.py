"""`avsim plan`: answers from summary numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avsim.cli.options import numbers, progress_bar, words
from avsim.errors import InputError

__all__ = ["plan"]


def plan(
    conditional: Annotated[
        str | None, typer.Option(help="Acceptance by slot, given the slots before: 0.8,0.7,…")
    ] = None,
    marginal: Annotated[str | None, typer.Option(help="Acceptance by slot and drafted slot, as vLLM counts.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Acceptance lengths at depth 1, 2, …, bonus included.")] = None,
    cost: Annotated[str | None, typer.Option(help="Step costs: a preset, a JSON file or roofline:….")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU for a roofline, with --model.")] = None,
    model: Annotated[str | None, typer.Option(help="Model for a roofline, with --gpu.")] = None,
    drafter: Annotated[str, typer.Option(help="Drafter for a roofline.")] = "eagle",
    tp: Annotated[int, typer.Option(help="Tensor parallelism for a roofline.", min=1)] = 1,
    table: Annotated[
        Path | None, typer.Option(help="CSV of measured throughputs, instead of acceptance and costs.")
    ] = None,
    explain: Annotated[str, typer.Option(help="Workloads of the table whose adaptive cells are fitted too.")] = "",
    capture_limit: Annotated[int | None, typer.Option(help="Of the table's engine, in tokens.", min=1)] = None,
    depth: Annotated[
        int | None, typer.Option(help="K that adaptive drafts. Default: the table's largest.", min=1)
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Loads.")] = "1,8,32,64,128,256",
    context: Annotated[float, typer.Option(help="Mean cached tokens of a request.")] = 1024.0,
    auc: Annotated[float | None, typer.Option(help="AUC of the confidences. Default: what real traces show.")] = None,
    auc_sd: Annotated[float, typer.Option(help="How sure the AUC is.")] = 0.04,
    borrow: Annotated[Path | None, typer.Option(help="Dense trace to take confidence quality from.")] = None,
    estimator: Annotated[str, typer.Option(help="Whose confidences, with --borrow.")] = "online-logistic",
    cost_sd: Annotated[float | None, typer.Option(help="How unsure costs are: sd of their logarithm.")] = None,
    av_overhead_ms: Annotated[float | None, typer.Option(help="AV's own cost per step. Default: unknown.")] = None,
    vocab: Annotated[int | None, typer.Option(help="The target's vocabulary size, which limits the budget.")] = None,
    draws: Annotated[int, typer.Option(help="Draws of what is not known.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the draws.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Plan from acceptance rates and a GPU name, or from a table of measured throughputs.

    Example: avsim plan --lengths 1.84,2.51,3.01 --model llama-3.1-8b --gpu h200
    """
    from avsim.manifest import json_text
    from avsim.planning.inputs import confidence_priors, plan_input
    from avsim.planning.plan import make_plan
    from avsim.planning.points_plan import plan_from_points
    from avsim.planning.predict import Overhead
    from avsim.planning.throughput_table import read_points
    from avsim.report.plan import plan_json, print_plan, print_table_plan

    quality = (auc, auc_sd, borrow, estimator)
    if table is not None:
        if any(given is not None for given in (conditional, marginal, lengths, cost, gpu, model)):
            raise InputError("--table brings acceptance and costs itself; leave those options out")
        overhead = None if av_overhead_ms is None else Overhead(av_overhead_ms)
        with progress_bar("planning") as progress:
            found = plan_from_points(
                read_points(table), confidence_priors(*quality), limit=capture_limit, depth=depth, explain=words(explain),
                overhead=overhead, seed=seed, draws=max(draws, 100), progress=progress,
            )  # fmt: skip
        if as_json:
            typer.echo(json_text(found.to_json()), nl=False)
        else:
            print_table_plan(found)
        return
    given = plan_input(
        conditional, marginal, lengths, cost, gpu, model, drafter, tp, *quality, context=context, cost_sd=cost_sd,
        overhead_ms=av_overhead_ms, vocab=vocab, draws=draws, seed=seed,
    )  # fmt: skip
    result = make_plan(given, numbers(concurrency, "--concurrency"))
    if as_json:
        typer.echo(json_text(plan_json(result)), nl=False)
    else:
        print_plan(result)
