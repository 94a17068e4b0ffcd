"""A plan from a throughput table: fit it, then predict adaptive verification at its loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from avsim.errors import InputError
from avsim.planning.infer import Posterior, Priors, fit_points
from avsim.planning.predict import Overhead, Prediction, predict_adaptive
from avsim.planning.throughput_table import Point
from avsim.policies import NO_LOGIT_LIMIT

__all__ = ["TablePlan", "plan_from_points"]


@dataclass(frozen=True)
class TablePlan:
    """A fit, how well it reproduces its cells, and predictions.

    Attributes:
        measured: adaptive cells over the best plain or fixed cell of their load, where given.
        explains: workloads whose adaptive cells were fitted: what is said of them is no prediction.
        depth: K that adaptive drafts.
        overhead: its own cost; None: unknown, charged as nothing.
        draws: of the posterior behind the ranges.
    """

    posterior: Posterior
    predictions: tuple[Prediction, ...]
    measured: dict[tuple[str, int], float]
    explains: tuple[str, ...]
    depth: int
    overhead: Overhead | None
    draws: int

    @property
    def fit_rms_pct(self) -> float:
        return float(np.sqrt((self.posterior.errors_pct() ** 2).mean()))

    @property
    def fit_worst_pct(self) -> float:
        return float(np.abs(self.posterior.errors_pct()).max())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        lines = [
            line.to_json() | {"measured_ratio": self.measured.get((line.workload, line.concurrency))}
            for line in self.predictions
        ]
        return {
            "cells": len(self.posterior.fit.points),
            "fit_rms_pct": self.fit_rms_pct,
            "fit_worst_pct": self.fit_worst_pct,
            "accepted_moves": self.posterior.accepted_moves,
            "explains": list(self.explains),
            "num_speculative_tokens": self.depth,
            "capture_limit": self.posterior.fit.limit,
            "max_total_logits": self.posterior.fit.max_total_logits,
            "av_overhead_ms": None if self.overhead is None else asdict(self.overhead),
            "draws": self.draws,
            "confidence_priors": {name: list(pair) for name, pair in self.posterior.fit.priors.confidence.items()},
            "predictions": lines,
            "notes": list(self.notes),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What the predictions rest on."""
        fit = self.posterior.fit
        mean, sd = fit.priors.confidence["log_sd"]
        found = [
            f"adaptive drafts K = {self.depth} slots and sizes its budget on the fitted costs, as if the engine's own "
            "profile were right: a profile that is off costs more",
            f"cliff: {f'steps past {fit.limit} tokens fall out of captured graphs' if fit.limit else 'none assumed'}"
            + ("" if fit.limit else "; name the engine's --capture-limit if full steps pass it"),
            (
                "logit rows of a step: no limit assumed; name the target's --vocab, which limits the budget in vLLM"
                if fit.max_total_logits == NO_LOGIT_LIMIT
                else f"logit rows of a step: at most {fit.max_total_logits:,}"
            ),
            f"spread of the confidences' logits: {np.exp(mean):.2f} (sd of its logarithm {sd:.2f}), from "
            "avsim/planning/priors.toml unless --auc or --borrow set it; throughputs of fixed arms say nothing of it",
            "AV's own overhead: "
            + (
                "unknown, charged as nothing; a gain that the published size would erase is withheld"
                if self.overhead is None
                else f"{self.overhead.mean_ms:g} ms a step"
            ),
            "ranges are those of a measurement, the noise of the table's cells included; fit and priors, and how they "
            "fared on published tables: experiments/published",
        ]
        if self.explains:
            found.append("explained: adaptive cells of that workload were fitted too, so nothing is predicted there")
        return tuple(found)


def plan_from_points(
    points: Sequence[Point],
    priors: Priors,
    *,
    limit: int | None,
    max_total_logits: int = NO_LOGIT_LIMIT,
    depth: int | None = None,
    explain: Sequence[str] = (),
    overhead: Overhead | None = None,
    seed: int = 0,
    sweeps: int = 2000,
    draws: int = 200,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> TablePlan:
    """Fit plain and fixed-depth cells, and predict adaptive verification.

    Args:
        points: a table. Its adaptive cells are compared with, never fitted, but for the workloads in `explain`.
        limit, max_total_logits, seed, sweeps: see `fit_points`.
        depth, overhead, draws: see `predict_adaptive`.

    Raises:
        InputError: the table cannot be fitted, `explain` names no workload of it, or `depth` or `draws` is too small
            or large.
    """
    workloads = {point.workload for point in points}
    unknown = sorted(set(explain) - workloads - ({"all"} if workloads == {""} else set()))
    if unknown:
        names = ", ".join(sorted(workloads)) if workloads != {""} else "no workload column: write --explain all"
        raise InputError(f"no workload {unknown[0]!r} in the table; it has {names}")
    explain = [""] if workloads == {""} and explain else list(explain)
    deepest = max((point.depth for point in points), default=0)
    if depth is not None and not 1 <= depth <= deepest:
        raise InputError(f"depth must lie between 1 and the table's largest, {deepest}, not {depth}")
    if draws < 40:
        raise InputError(f"draws must be at least 40 for a 95 % interval, not {draws}")
    used = [point for point in points if point.policy != "adaptive" or point.workload in explain]
    progress(0, 2, "fitting")
    posterior = fit_points(used, priors, limit=limit, max_total_logits=max_total_logits, seed=seed, sweeps=sweeps)
    progress(1, 2, "predicting")
    predictions = predict_adaptive(posterior, depth=depth, overhead=overhead, draws=draws, seed=seed)
    measured = {}
    for point in points:
        if point.policy == "adaptive":
            rivals = [
                p.throughput_tok_s
                for p in points
                if (p.workload, p.concurrency) == (point.workload, point.concurrency) and p.policy != "adaptive"
            ]
            if rivals:
                measured[point.workload, point.concurrency] = point.throughput_tok_s / max(rivals)
    return TablePlan(
        posterior, tuple(predictions), measured, tuple(explain), depth or posterior.fit.num_slots, overhead, draws
    )
