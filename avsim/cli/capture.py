"""`avsim capture`: make traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avsim.cli.options import progress_bar, words
from avsim.errors import InputError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("dense")
def dense(
    target: Annotated[str, typer.Option(help="Folder of a Hugging Face causal language model.")],
    drafter: Annotated[
        str, typer.Option(help="KIND:DIR, such as draft-model:DIR (or :first-N), eagle:DIR; or ngram:min=1,max=3.")
    ],
    prompts: Annotated[list[Path], typer.Option(help="JSONL with prompt, question or turns; may be repeated.")],
    out: Annotated[Path, typer.Option(help="The trace folder to make.")],
    k: Annotated[int, typer.Option("--k", help="Draft slots per block.")] = 5,
    temperature: Annotated[float, typer.Option(help="Of target and drafter; 0 is greedy.")] = 0.0,
    draft_sampling: Annotated[str, typer.Option(help="greedy or probabilistic.")] = "greedy",
    max_tokens: Annotated[int, typer.Option(help="Cut outputs there.")] = 160,
    batch: Annotated[int, typer.Option(help="Requests generated at once.")] = 8,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    seed: Annotated[int, typer.Option(help="Seed of all samples.")] = 0,
    top_m: Annotated[int, typer.Option(help="Record the largest M draft logits.")] = 8,
    limit: Annotated[int | None, typer.Option(help="Only the first N prompts.", min=1)] = None,
    category: Annotated[str, typer.Option(help="Only these categories, separated by commas.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    name: Annotated[str | None, typer.Option(help="The trace's name. Default: the folder's.")] = None,
    target_name: Annotated[str | None, typer.Option(help="The target's name. Default: its folder's.")] = None,
    drafter_name: Annotated[str | None, typer.Option(help="The drafter's name. Default: its folder's.")] = None,
    prompts_name: Annotated[str | None, typer.Option(help="What the prompts are. Default: the files' names.")] = None,
    licence: Annotated[str, typer.Option(help="What may be done with the trace.")] = "unknown",
    hardware: Annotated[str | None, typer.Option(help="Default: as found.")] = None,
    notes: Annotated[str, typer.Option(help="Notes for the card.")] = "",
    outputs: Annotated[
        Path | None, typer.Option(help="Keep outputs (token ids) in this folder, for other drafters.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON.")] = False,
) -> None:
    """Draft a block at every output position of a target's own outputs; needs torch and transformers.

    Example: avsim capture dense --target DIR --drafter draft-model:first-26 --prompts gsm8k.jsonl --out trace
    """
    import datetime
    import sys
    import time

    from avsim.capture.dense.progress import LogLines
    from avsim.capture.dense.run import DenseSettings, run_dense
    from avsim.manifest import json_text

    if draft_sampling != "greedy" and draft_sampling != "probabilistic":
        raise InputError(f"--draft-sampling must be greedy or probabilistic, not {draft_sampling!r}")
    settings = DenseSettings(
        target=target,
        drafter=drafter,
        prompts=tuple(map(str, prompts)),
        num_slots=k,
        temperature=temperature,
        draft_sampling="greedy" if draft_sampling == "greedy" else "probabilistic",
        max_tokens=max_tokens,
        batch=batch,
        device=device,
        dtype=dtype,
        seed=seed,
        num_top=top_m,
        raw=raw,
        limit=limit,
        categories=words(category),
        name=name,
        target_name=target_name,
        drafter_name=drafter_name,
        prompts_name=prompts_name,
        licence=licence,
        hardware=hardware,
        notes=notes,
    )
    lines = LogLines(lambda line: typer.echo(line, err=True), time.monotonic)
    today = datetime.date.today().isoformat()
    with progress_bar("tracing") as bar:
        progress = bar if sys.stderr.isatty() else lines
        trace = run_dense(
            settings, out, date=today, outputs=outputs, resume=resume, overwrite=overwrite, progress=progress
        )
    if as_json:
        typer.echo(json_text({"path": str(trace.path), "card": trace.card.to_json()}), nl=False)
    else:
        typer.echo(f"{trace.path}: {trace.card.num_requests} requests, {trace.num_blocks} blocks")
