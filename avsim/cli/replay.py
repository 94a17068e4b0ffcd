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
    arrivals: Annotated[
        str, typer.Option(help="Loads that arrive by themselves: poisson:4, bursty:4,cv=3, ramp:1,to=8, recorded.")
    ] = "",
    num_requests: Annotated[int | None, typer.Option(help="Requests of each load with arrivals, at least.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests that run at once at most.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="free, or scheduled beside decoding. Default: free in a closed loop.")
    ] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens of a step at most.")] = None,
    no_chunked_prefill: Annotated[
        bool, typer.Option("--no-chunked-prefill", help="Do not split scheduled prompts over steps.")
    ] = False,
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
    av_overhead_us_per_req: Annotated[
        float | None, typer.Option(help="AV's own cost per request and step. Default: unknown.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a GPU-hour, for a cost per token.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the engine. Default: those of the cost card.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Allow step costs of another model.")] = False,
    vocab: Annotated[int | None, typer.Option(help="The target's vocabulary size.")] = None,
    bootstrap: Annotated[int, typer.Option(help="Re-simulations for the intervals.")] = 60,
    warm_refits: Annotated[int, typer.Option(help="Refits before counting starts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of orders, splits and resamples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write a run folder with report.html.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run folder.")] = False,
    manifest: Annotated[Path | None, typer.Option(help="Repeat the run of a manifest.json.")] = None,
    chrome_trace: Annotated[
        Path | None, typer.Option(help="Write the steps of one arm as a trace for Perfetto or chrome://tracing.")
    ] = None,
    chrome_trace_of: Annotated[
        str | None, typer.Option(help="ARM or ARM@LOAD of that trace. Default: the first judged arm, the last load.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Replay a trace under several policies and say what each would gain or lose.

    Example: avsim replay traces/smollm2-eagle1-greedy --cost deepseek-v4-flash-tp4-b300 --what-if --out run
    """
    from avsim.config import ReplayConfig
    from avsim.manifest import check_writable, json_text, read_manifest, write_file
    from avsim.report.console import print_replay
    from avsim.runs import pick_traced, run_replay, traced_run, write_run

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
            arrivals=words(arrivals.replace(";", ",")),
            num_requests=num_requests,
            max_num_seqs=max_num_seqs,
            prompts=_prompts(prompts),
            max_num_batched_tokens=max_num_batched_tokens,
            chunked_prefill=not no_chunked_prefill,
            policies=words(policy),
            baselines=words(baseline),
            estimators=words(estimator),
            num_slots=k,
            lag=lag,
            av_overhead_ms=av_overhead_ms,
            av_overhead_us_per_req=av_overhead_us_per_req,
            price_per_gpu_hour=price,
            gpus=gpus,
            what_if=what_if,
            vocab=vocab,
            bootstrap=bootstrap,
            warm_refits=warm_refits,
            seed=seed,
        )
    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{out} exists; choose another folder or pass --overwrite")
    if chrome_trace is not None:
        check_writable(chrome_trace)
        pick_traced(config, chrome_trace_of)
    elif chrome_trace_of is not None:
        raise InputError("--chrome-trace-of says what to trace; say where to with --chrome-trace FILE")
    with progress_bar("replaying") as progress:
        run = run_replay(config, progress=progress, workers=workers, expect=recorded)
    if out is not None:
        write_run(run, out, overwrite=overwrite)
    if chrome_trace is not None:
        write_file(chrome_trace, traced_run(config, chrome_trace_of))
    if as_json:
        typer.echo(json_text(run.summary), nl=False)
    else:
        print_replay(run.summary)
        if out is not None:
            typer.echo(f"report: {out / 'report.html'}", err=True)
        if chrome_trace is not None:
            typer.echo(f"trace: {chrome_trace}; open it at ui.perfetto.dev", err=True)


def _loop(text: str) -> Literal["closed", "open"]:
    if text == "closed" or text == "open":
        return "closed" if text == "closed" else "open"
    raise InputError(f"--loop must be closed or open, not {text!r}")


def _prompts(text: str | None) -> Literal["free", "scheduled"] | None:
    if text is None or text == "free" or text == "scheduled":
        return None if text is None else "free" if text == "free" else "scheduled"
    raise InputError(f"--prompts must be free or scheduled, not {text!r}")
