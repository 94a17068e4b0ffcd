"""`avsim compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from avsim.cli.options import numbers, progress_bar, words
from avsim.errors import InputError

if TYPE_CHECKING:
    from avsim.comparison import CompareConfig

__all__ = ["compare"]


def compare(
    traces: Annotated[list[Path], typer.Argument(help="Trace folders.")],
    estimators: Annotated[str, typer.Option(help="Specs, the reference first; 'all' is every one that fits.")] = "all",
    admission: Annotated[str, typer.Option(help="What is verified: 'full', or a policy such as 'adaptive'.")] = "full",
    admission_estimator: Annotated[
        str, typer.Option(help="The estimator that an adaptive admission reads.")
    ] = "online-logistic",
    cost: Annotated[str | None, typer.Option(help="Step costs: a preset or a JSON file.")] = None,
    belief: Annotated[str | None, typer.Option(help="Step costs that policies read. Default: the clock's.")] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Allow step costs of another model.")] = False,
    concurrency: Annotated[int, typer.Option(help="Requests served at once.", min=1)] = 8,
    k: Annotated[int | None, typer.Option("--k", help="Truncate the traces' K.")] = None,
    offsets: Annotated[
        int | None, typer.Option(help="Walks, from as many first positions. Default: K + 1, at most 8.")
    ] = None,
    masked: Annotated[
        str, typer.Option(help="Labels that the mask calls unfit: exclude, or include in learning.")
    ] = "exclude",
    prior: Annotated[str, typer.Option(help="Trace folders to learn from before, separated by commas.")] = "",
    states: Annotated[Path | None, typer.Option(help="Start from states that --save-states wrote.")] = None,
    save_states: Annotated[Path | None, typer.Option(help="Write what each estimator knows at the end.")] = None,
    loads: Annotated[str, typer.Option(help="Also simulate throughput at these loads; needs --cost.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Split the distance to the oracle at each load.")] = False,
    then: Annotated[str, typer.Option(help="Also let traffic change to these traces, or to category=NAME.")] = "",
    drift_steps: Annotated[int, typer.Option(help="Steps before and after a change.")] = 1000,
    influence: Annotated[bool, typer.Option("--influence", help="Say whose labels move whose confidences.")] = False,
    bootstrap: Annotated[int, typer.Option(help="Resamples for the intervals of scores.", min=100)] = 1000,
    replicates: Annotated[int, typer.Option(help="Re-simulations for the intervals of throughput.", min=10)] = 20,
    warm_steps: Annotated[int, typer.Option(help="Steps learned from before a simulation counts.", min=0)] = 300,
    vocab: Annotated[int | None, typer.Option(help="The target's vocabulary size.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of orders, splits and resamples.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.", min=1)] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the scores as CSV, one line per trace and estimator.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Rank acceptance estimators on traces: predict, then learn, all on the same walks.

    Example: avsim compare traces/smollm2-eagle1-greedy traces/smollm2-eagle1-sampled --report compare.html
    """
    from avsim.comparison import CompareConfig, read_states
    from avsim.comparison import compare as run
    from avsim.manifest import check_writable, json_text, make_manifest, read_text, write_file
    from avsim.report.comparison_console import print_comparison
    from avsim.report.comparison_html import comparison_csv, comparison_html

    if save_states is not None and len(traces) > 1:
        raise InputError("--save-states takes one trace; to learn on several, pass the others as --prior")
    for path in filter(None, (report, csv, save_states)):
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists; choose another name or pass --overwrite")
        check_writable(path)
    config = CompareConfig(
        estimators=words(estimators),
        admission=admission,
        admission_estimator=admission_estimator,
        cost=cost,
        belief=belief,
        what_if=what_if,
        concurrency=concurrency,
        num_slots=k,
        offsets=offsets,
        masked=_masked(masked),
        prior=words(prior),
        loads=numbers(loads, "--loads"),
        explain=explain,
        then=words(then),
        drift_steps=drift_steps,
        influence=influence,
        bootstrap=bootstrap,
        replicates=replicates,
        warm_steps=warm_steps,
        vocab=vocab,
        seed=seed,
    )
    given = read_states(read_text(states), str(states)) if states is not None else None
    with progress_bar("comparing") as progress:
        results = run(traces, config, states=given, progress=progress, workers=workers)
    if save_states is not None:
        write_file(save_states, json_text(results[0]["states"]))
    if csv is not None:
        write_file(csv, comparison_csv(results))
    if report is not None:
        write_file(
            report,
            comparison_html(
                results, make_manifest("compare", {"traces": traces} | asdict(config), _inputs(traces, config))
            ),
        )
    if as_json:
        typer.echo(json_text(results), nl=False)
    else:
        for result in results:
            print_comparison(result)
    if report is not None:
        typer.echo(f"report: {report}", err=True)


def _inputs(traces: Sequence[Path], config: CompareConfig) -> dict[str, str]:
    """Return the content hash of everything that was read."""
    from avsim.costs import dump, load
    from avsim.manifest import sha256_json
    from avsim.sources import open_trace

    paths = [*map(str, traces), *config.prior, *(then for then in config.then if "=" not in then)]
    found = {path: str(open_trace(path).card.content_hash) for path in paths}
    return found | {spec: sha256_json(dump(load(spec))) for spec in (config.cost, config.belief) if spec}


def _masked(text: str) -> Literal["exclude", "include"]:
    if text == "exclude" or text == "include":
        return "exclude" if text == "exclude" else "include"
    raise InputError(f"--masked must be exclude or include, not {text!r}")
