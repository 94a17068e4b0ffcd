"""`avsim compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avsim.cli.options import progress_bar, words
from avsim.errors import InputError

__all__ = ["compare"]


def compare(
    traces: Annotated[list[Path], typer.Argument(help="Dense trace folders.")],
    estimators: Annotated[str, typer.Option(help="Specs, the reference first; 'all' is every one that fits.")] = "all",
    admission: Annotated[str, typer.Option(help="What is verified: 'full', or a policy such as 'adaptive'.")] = "full",
    admission_estimator: Annotated[
        str, typer.Option(help="The estimator that an adaptive admission reads.")
    ] = "online-logistic",
    cost: Annotated[str | None, typer.Option(help="Step costs that an adaptive admission reads.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Allow step costs of another model.")] = False,
    concurrency: Annotated[int, typer.Option(help="Requests served at once.", min=1)] = 8,
    k: Annotated[int | None, typer.Option("--k", help="Truncate the traces' K.")] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples for the intervals.", min=100)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of orders and resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Score acceptance estimators on traces: predict, then learn, all on the same path.

    Example: avsim compare traces/smollm2-eagle1-greedy traces/smollm2-eagle1-sampled
    """
    from avsim import estimators as registered
    from avsim import policies
    from avsim.comparison import compare as run
    from avsim.costs import load
    from avsim.manifest import json_text
    from avsim.report.console import print_comparison
    from avsim.simulate import Arm
    from avsim.sources import open_trace

    model = None if cost is None else load(cost)
    arm = None
    if admission != "full":
        policy = policies.make(admission)
        arm = Arm(policy, registered.make(admission_estimator) if policy.uses_confidence else None)
    results = []
    with progress_bar("comparing") as progress:
        for done, path in enumerate(traces):
            progress(done, len(traces), str(path))
            trace = open_trace(path)
            specs = registered.available() if estimators == "all" else words(estimators)
            chosen = [registered.make(spec) for spec in specs]
            if estimators == "all":
                held = {*trace.card.recorded, "label"}
                chosen = [estimator for estimator in chosen if set(estimator.features) <= held]
            if not chosen:
                raise InputError("name at least one estimator")
            results.append(
                run(
                    trace,
                    chosen,
                    admission=arm,
                    cost=model,
                    what_if=what_if,
                    concurrency=concurrency,
                    num_slots=k,
                    bootstrap=bootstrap,
                    seed=seed,
                )
            )
    if as_json:
        typer.echo(json_text(results), nl=False)
    else:
        for result in results:
            print_comparison(result)
