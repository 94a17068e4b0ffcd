"""A plan from a throughput table: fit it, then predict adaptive verification at its loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from avsim.errors import InputError
from avsim.planning.infer import Posterior, Priors, fit_points
from avsim.planning.predict import Overhead, Prediction, predict_adaptive
from avsim.planning.throughput_table import Point

__all__ = ["TablePlan", "plan_from_points"]


@dataclass(frozen=True)
class TablePlan:
    """A fit, how well it reproduces its cells, and predictions; `measured` holds adaptive cells, where given.

    `explains` names the workloads whose adaptive cells were fitted: what is said of them is no prediction.
    """

    posterior: Posterior
    predictions: tuple[Prediction, ...]
    measured: dict[tuple[str, int], float]
    explains: tuple[str, ...]

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
            "predictions": lines,
        }


def plan_from_points(
    points: Sequence[Point],
    priors: Priors,
    *,
    limit: int | None,
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
        limit, seed, sweeps: see `fit_points`.
        depth, overhead, draws: see `predict_adaptive`.

    Raises:
        InputError: the table cannot be fitted, or `explain` names no workload of it.
    """
    workloads = {point.workload for point in points}
    unknown = sorted(set(explain) - workloads)
    if unknown:
        raise InputError(f"no workload {unknown[0]!r} in the table; it has {', '.join(sorted(workloads)) or 'one'}")
    used = [point for point in points if point.policy != "adaptive" or point.workload in explain]
    progress(0, 2, "fitting")
    posterior = fit_points(used, priors, limit=limit, seed=seed, sweeps=sweeps)
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
    return TablePlan(posterior, tuple(predictions), measured, tuple(explain))
