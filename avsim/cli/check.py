"""`avsim check`."""

from __future__ import annotations

from typing import Annotated

import typer

from avsim.cli.options import progress_bar
from avsim.errors import CheckFailed, InputError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("lossless")
def lossless(
    policy: Annotated[str | None, typer.Option(help="Check this policy only, with --estimator and --lag.")] = None,
    estimator: Annotated[str, typer.Option(help="The score that --policy reads.")] = "online-logistic",
    lag: Annotated[int, typer.Option(help="Age of the sizing confidences in records; 1 is vLLM.")] = 1,
    draft_sampling: Annotated[str, typer.Option(help="probabilistic or greedy.")] = "probabilistic",
    left_out: Annotated[bool, typer.Option("--left-out", help="A request has missed the step before.")] = False,
    models: Annotated[int, typer.Option(help="Toy models for each combination.")] = 500,
    k: Annotated[int, typer.Option("--k", help="Draft slots of the toy models.")] = 2,
    vocab: Annotated[int, typer.Option(help="Their vocabulary.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the models.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Enumerate what sampled drafts emit on toy models, and hold it against each combination's class.

    Exit code 1 if an exact combination leaves the target's distribution, or a lossy one never does.

    Example: avsim check lossless --policy adaptive --estimator online-logistic --lag 0
    """
    from avsim import estimators, policies
    from avsim.lossless.cases import Case, Settings, default_cases
    from avsim.lossless.check import check_case
    from avsim.lossless.table import print_checks
    from avsim.manifest import json_text

    settings = Settings(models, k, vocab, seed)
    if draft_sampling not in ("greedy", "probabilistic"):
        raise InputError(f"--draft-sampling must be greedy or probabilistic, not {draft_sampling!r}")
    if policy is None:
        cases, left = default_cases(settings)
    else:
        chosen = policies.make(policy)
        case = Case(chosen, estimators.make(estimator) if chosen.uses_confidence else None, lag, left_out=left_out)
        cases, left = [case.greedy() if draft_sampling == "greedy" else case], []
    rows = []
    with progress_bar("enumerating") as progress:
        for done, case in enumerate(cases):
            progress(done, len(cases), case.policy.name)
            rows.append(check_case(case, settings))
    if as_json:
        typer.echo(json_text({"k": k, "vocab": vocab, "seed": seed, "rows": rows, "not_checked": left}), nl=False)
    else:
        print_checks(rows, left)
    wrong = sum(not row["passed"] for row in rows)
    if wrong:
        raise CheckFailed(f"{wrong} of {len(rows)} combinations are not what their class says")
