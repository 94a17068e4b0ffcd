"""`avsim cost profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["profile"]


def profile(
    out: Annotated[Path, typer.Option("--out", help="The JSON file to write; --cost reads it.")],
    model: Annotated[str | None, typer.Option(help="Folder of a Hugging Face causal language model.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Random weights instead: layers=…,hidden=…,heads=…,kv_heads=…,intermediate=…,vocab=…,experts=…,"
            "top_k=…, or a shape's name with changes: llama-3.1-8b,layers=4."
        ),
    ] = None,
    runner: Annotated[
        str | None, typer.Option(help="Anything else: module:factory or file.py:factory (docs/cost-profile.md).")
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help="eagle:DIR, draft-model:DIR or :first-N; beside --shape: eagle, draft-model:SHAPE; or none."),
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="Tokens of the target's steps [default: 1,2,4,…; on cuda, captured]")
    ] = "",
    context: Annotated[str, typer.Option(help="Cached tokens per request.")] = "256,1024",
    requests: Annotated[str, typer.Option(help="Request counts of the drafter's steps [default: as --tokens]")] = "",
    k: Annotated[int, typer.Option("--k", help="Draft slots per request.")] = 5,
    depths: Annotated[
        str, typer.Option(help="Further draft depths to measure [default: 1 with --draft-form parts]")
    ] = "",
    spread: Annotated[
        str,
        typer.Option(
            help="block: up to K + 1 tokens a request, as verified; single: one, as vLLM profiles. First: --out."
        ),
    ] = "block,single",
    max_reqs: Annotated[int | None, typer.Option(help="Most requests of single steps (vLLM's max_num_seqs).")] = None,
    draft_form: Annotated[
        str, typer.Option(help="points: by requests, at K. parts: by depth and cache too.")
    ] = "points",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int | None, typer.Option(help="CPU threads [default: torch's].", min=1)] = None,
    capture_limit: Annotated[
        int, typer.Option(help="On cuda: the largest size that runs in a CUDA graph; 0 for none.", min=0)
    ] = 512,
    flush_l2: Annotated[
        bool, typer.Option("--flush-l2", help="On cuda: overwrite the L2 cache before each timing.")
    ] = False,
    repeats: Annotated[int, typer.Option(help="Timings of each step, in as many rounds.")] = 20,
    minutes: Annotated[float, typer.Option(help="Most time to take; rounds that do not fit are left out.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of weights and of the order of timings.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the cost model [default: that of the file].")] = None,
    model_name: Annotated[
        str | None, typer.Option(help="The target's name [default: its folder's, or its shape].")
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="[default: as found]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written document as JSON.")] = False,
) -> None:
    """Measure step costs of a model on this machine, and write them as a cost table with its raw samples.

    Example: avsim cost profile --shape llama-3.1-8b,layers=2 --drafter eagle --tokens 1,8,32 --context 256 --out x.json
    """
    import datetime
    import json
    import sys
    import time

    from avsim.capture.dense.progress import LogLines
    from avsim.cli.options import numbers, progress_bar, words
    from avsim.costs.profile.make import Asked, make_plan, make_runner
    from avsim.costs.profile.run import ProfileCard, check_targets, run_profile, write_profile
    from avsim.costs.profile.timers import timer_for
    from avsim.report.cost_profile import print_profile

    asked = Asked(
        model=model, shape=shape, runner=runner, drafter=drafter, device=device, dtype=dtype, threads=threads, seed=seed
    )
    plan = make_plan(
        asked,
        tokens=numbers(tokens, "--tokens"),
        contexts=numbers(context, "--context"),
        requests=numbers(requests, "--requests"),
        num_slots=k,
        depths=numbers(depths, "--depths"),
        spreads=words(spread),
        max_num_reqs=max_reqs,
        draft_form=draft_form,
        capture_limit=capture_limit,
        repeats=repeats,
        minutes=minutes,
    )
    card = ProfileCard(
        name=name or out.stem, model=model_name, hardware=hardware, no_drafter=asked.no_drafter, draft_form=draft_form
    )
    check_targets(out, plan, overwrite=overwrite)
    timer = timer_for(device, capture_limit, flush_l2=flush_l2)
    lines = LogLines(lambda line: typer.echo(line, err=True), time.monotonic, every_s=10.0)
    with progress_bar("profiling") as bar:
        progress = bar if sys.stderr.isatty() else lines
        made = make_runner(asked, plan)
        run = run_profile(
            made, plan, card, timer, date=datetime.date.today().isoformat(), clock=time.monotonic, progress=progress
        )
    paths = write_profile(run, out, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(json.loads(paths[0].read_text(encoding="utf-8")), indent=1, ensure_ascii=False))
    else:
        print_profile(run, paths)
