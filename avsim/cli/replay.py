"""`avsim replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from avsim.cli.options import numbers, progress_bar, words
from avsim.errors import InputError

__all__ = ["replay"]


def replay(
    trace: Annotated[Path | None, typer.Argument(help="Trace folder. Not given with --manifest.")] = None,
    cost: Annotated[str | None, typer.Option(help="Step costs, the clock: a preset or a JSON file.")] = None,
    belief: Annotated[str | None, typer.Option(help="Step costs that policies read. Default: the clock's.")] = None,
    concurrency: Annotated[str, typer.Option(help="Loads of the closed loop.")] = "1,8,32,64,128,256",
    policy: Annotated[str, typer.Option(help="Policies to judge.")] = "adaptive",
    baseline: Annotated[
        str, typer.Option(help="Policies to compare with; 'fixed' is every depth 1…K.")
    ] = "none,fixed,oracle",
    estimator: Annotated[str, typer.Option(help="Estimators for the policies that read confidences.")] = (
        "online-logistic"
    ),
    k: Annotated[int | None, typer.Option("--k", help="Truncate the trace's K.")] = None,
    lag: Annotated[int, typer.Option(help="Age of the sizing confidences in records; 1 is vLLM.")] = 1,
    loop: Annotated[str, typer.Option(help="closed (dense traces) or open (on-policy traces).")] = "closed",
    av_overhead_ms: Annotated[float | None, typer.Option(help="AV's own cost per step. Default: unknown.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Allow step costs of another model.")] = False,
    vocab: Annotated[int | None, typer.Option(help="The target's vocabulary size.")] = None,
    bootstrap: Annotated[int, typer.Option(help="Re-simulations for the intervals.")] = 60,
    warm_refits: Annotated[int, typer.Option(help="Refits before counting starts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of orders, splits and resamples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write a run folder with report.html.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run folder.")] = False,
    manifest: Annotated[Path | None, typer.Option(help="Repeat the run of a manifest.json.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Replay a trace under several policies and say what each would gain or lose.

    Example: avsim replay traces/smollm2-eagle1-greedy --cost deepseek-v4-flash-tp4-b300 --what-if --out run
    """
    from avsim.config import ReplayConfig
    from avsim.manifest import json_text, read_manifest
    from avsim.report.console import print_replay
    from avsim.runs import run_replay, write_run

    recorded = None
    if manifest is not None:
        if trace is not None or cost is not None:
            raise InputError("--manifest names the trace and the costs itself; leave TRACE and --cost out")
        recorded = read_manifest(manifest)
        config = ReplayConfig.from_json(recorded["config"])
    else:
        if trace is None or cost is None:
            raise InputError("name a trace folder and --cost (see `avsim list costs`), or --manifest")
        config = ReplayConfig(
            trace=str(trace),
            cost=cost,
            belief=belief,
            loop=_loop(loop),
            concurrency=numbers(concurrency, "--concurrency"),
            policies=words(policy),
            baselines=words(baseline),
            estimators=words(estimator),
            num_slots=k,
            lag=lag,
            av_overhead_ms=av_overhead_ms,
            what_if=what_if,
            vocab=vocab,
            bootstrap=bootstrap,
            warm_refits=warm_refits,
            seed=seed,
        )
    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{out} exists; choose another folder or pass --overwrite")
    with progress_bar("replaying") as progress:
        run = run_replay(config, progress=progress, workers=workers, expect=recorded)
    if out is not None:
        write_run(run, out, overwrite=overwrite)
    if as_json:
        typer.echo(json_text(run.summary), nl=False)
    else:
        print_replay(run.summary)
        if out is not None:
            typer.echo(f"report: {out / 'report.html'}", err=True)


def _loop(text: str) -> Literal["closed", "open"]:
    if text == "closed" or text == "open":
        return "closed" if text == "closed" else "open"
    raise InputError(f"--loop must be closed or open, not {text!r}")
