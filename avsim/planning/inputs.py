"""From what a planner writes to what a plan takes."""

from __future__ import annotations

from pathlib import Path

from avsim.costs import load
from avsim.errors import InputError
from avsim.planning.acceptance import Acceptance
from avsim.planning.infer import Priors
from avsim.planning.plan import PlanInput
from avsim.sources import open_trace
from avsim.study import max_total_logits

__all__ = ["confidence_priors", "plan_input"]


def confidence_priors(auc: float | None, auc_sd: float, borrow: Path | None, estimator: str) -> Priors:
    """Return the shipped priors, with a known quality of the confidences if it is given or borrowed."""
    priors = Priors.load()
    found, _ = _quality(auc, borrow, estimator)
    return priors if found is None else priors.with_auc(found, auc_sd)


def plan_input(
    conditional: str | None,
    marginal: str | None,
    lengths: str | None,
    cost: str | None,
    gpu: str | None,
    model: str | None,
    drafter: str,
    tp: int,
    auc: float | None,
    auc_sd: float,
    borrow: Path | None,
    estimator: str,
    *,
    context: float,
    cost_sd: float | None,
    overhead_ms: float | None,
    vocab: int | None,
    draws: int,
    seed: int,
) -> PlanInput:
    """Put a plan's input together.

    Raises:
        InputError: not exactly one form of acceptance, no step costs, or a malformed number.
    """
    forms = {"--conditional": conditional, "--marginal": marginal, "--lengths": lengths}
    given = [(name, text) for name, text in forms.items() if text is not None]
    if len(given) != 1:
        raise InputError("give acceptance in exactly one form: --conditional, --marginal or --lengths (or --table)")
    name, text = given[0]
    make = {"--conditional": Acceptance.from_conditional, "--marginal": Acceptance.from_marginal,
            "--lengths": Acceptance.from_lengths}[name]  # fmt: skip
    acceptance = make(_rates(text, name))
    if cost is None:
        if gpu is None or model is None:
            raise InputError("name step costs: --cost, or --model and --gpu for an estimate (see `avsim list costs`)")
        cost = f"roofline:model={model},gpu={gpu},tp={tp},drafter={drafter},k={acceptance.num_slots}"
    elif gpu is not None or model is not None:
        raise InputError("--cost names the step costs itself; leave --model and --gpu out")
    costs = load(cost)
    quality, share = _quality(auc, borrow, estimator)
    return PlanInput(
        acceptance,
        costs,
        context,
        quality,
        auc_sd,
        share,
        cost_sd,
        overhead_ms,
        max_total_logits(vocab or costs.card.vocab_size),
        draws,
        seed,
    )


def _quality(auc: float | None, borrow: Path | None, estimator: str) -> tuple[float | None, float | None]:
    if borrow is None:
        return auc, None
    if auc is not None:
        raise InputError("--auc and --borrow both say how good confidences are; give one")
    from avsim.planning.borrow import borrow as measure

    found = measure(open_trace(borrow), estimator)
    return float(found.auc.mean()), found.request_share


def _rates(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"{name} must be numbers separated by commas, not {text!r}") from None
