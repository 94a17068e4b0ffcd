"""`avsim plan`: answers from summary numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    drafter: Annotated[str | None, typer.Option(help="Drafter for a roofline [default: eagle].")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallelism for a roofline [default: 1].")] = None,
    table: Annotated[
        Path | None, typer.Option(help="CSV of measured throughputs, instead of acceptance and costs.")
    ] = None,
    explain: Annotated[str, typer.Option(help="Workloads of the table whose adaptive cells are fitted too.")] = "",
    capture_limit: Annotated[int | None, typer.Option(help="Of the table's engine, in tokens [default: none].")] = None,
    depth: Annotated[
        int | None, typer.Option(help="K that adaptive drafts, with --table [default: the table's largest].")
    ] = None,
    concurrency: Annotated[str | None, typer.Option(help="Loads [default: 1,8,32,64,128,256].")] = None,
    context: Annotated[
        float | None, typer.Option(help="Mean cached tokens of a request [default: those of the costs, or 1024].")
    ] = None,
    auc: Annotated[float | None, typer.Option(help="AUC of the confidences [default: what real traces show].")] = None,
    auc_sd: Annotated[float | None, typer.Option(help="How sure the AUC is [default: 0.04].")] = None,
    calibration_slope: Annotated[
        float | None, typer.Option(help="Confidences are read as σ(slope · logit p + offset) [default: about 1].")
    ] = None,
    calibration_offset: Annotated[float | None, typer.Option(help="See --calibration-slope [default: about 0].")] = (
        None
    ),
    borrow: Annotated[Path | None, typer.Option(help="Dense trace to take confidence quality from.")] = None,
    estimator: Annotated[
        str | None, typer.Option(help="Whose confidences, with --borrow [default: online-logistic].")
    ] = None,
    cost_sd: Annotated[
        float | None, typer.Option(help="How unsure costs are: sd of their logarithm [default: by their kind].")
    ] = None,
    av_overhead_ms: Annotated[float | None, typer.Option(help="AV's own cost per step [default: unknown].")] = None,
    vocab: Annotated[int | None, typer.Option(help="The target's vocabulary size, which limits the budget.")] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws of what is not known [default: 100, with --table 200].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the plan as JSON, with what is needed to repeat it.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    manifest: Annotated[Path | None, typer.Option(help="Repeat the plan of a file that --out wrote.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Plan from acceptance rates and a GPU name, or from a table of measured throughputs.

    Example: avsim plan --lengths 1.84,2.51,3.01 --model llama-3.1-8b --gpu h200
    """
    given: dict[str, Any] = {
        "conditional": conditional, "marginal": marginal, "lengths": lengths, "cost": cost, "gpu": gpu, "model": model,
        "drafter": drafter, "tp": tp, "table": _text(table), "explain": words(explain), "capture_limit": capture_limit,
        "depth": depth, "concurrency": None if concurrency is None else numbers(concurrency, "--concurrency"),
        "context": context, "auc": auc, "auc_sd": auc_sd, "borrow": _text(borrow), "estimator": estimator,
        "calibration_slope": calibration_slope, "calibration_offset": calibration_offset, "cost_sd": cost_sd,
        "av_overhead_ms": av_overhead_ms, "vocab": vocab, "draws": draws, "seed": seed,
    }  # fmt: skip
    if manifest is not None and any(value not in (None, ()) for value in (given | {"seed": seed or None}).values()):
        raise InputError("--manifest names everything itself; leave the other options out, save --out and --json")

    from avsim.manifest import check_writable, json_text, read_manifest, write_file
    from avsim.planning.inputs import PlanConfig, run_plan
    from avsim.report.plan import plan_json, print_plan

    if out is not None:
        check_writable(out)
        if out.exists() and not overwrite:
            raise InputError(f"{out} exists; choose another file or pass --overwrite")
    recorded = None if manifest is None else read_manifest(manifest)
    config = PlanConfig(**given) if recorded is None else PlanConfig.from_json(recorded.get("config"))
    with progress_bar("planning") as progress:
        run = run_plan(config, progress=progress, expect=recorded)
    if out is not None:
        write_file(out, json_text(run.manifest() | {"plan": plan_json(run)}))
    if as_json:
        typer.echo(json_text(plan_json(run)), nl=False)
    else:
        print_plan(run)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
