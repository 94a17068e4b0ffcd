"""Whose labels move whose confidences: estimators share coefficients between all requests of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from avsim import registry
from avsim.comparison.scoring import score
from avsim.comparison.walk import Table, Walk
from avsim.estimators.base import Estimator
from avsim.metrics.confidence_set import paired_change, unit_draws

__all__ = ["influence"]


def influence(
    estimator: Estimator, table: Table, walks: Sequence[Walk], *, bootstrap: int, seed: int
) -> list[dict[str, Any]]:
    """Say how learning from one group of rows changes the log-loss on all others, %; above 0 the group does harm.

    Groups are the categories, and the rows that the trace's mask calls unfit (for instance those whose penalties act
    on the target alone, vLLM issue #57533): these are left out of learning by default, so there the question is what
    including them would do. Only rows that are fit and outside the group are scored.

    Returns:
        one line per group: its share of rows, and the change with its interval over resampled source requests.
    """
    fit = ~table.unfit
    groups = [(name, table.category == number) for number, name in enumerate(table.categories)]
    groups = [(name, mine & fit) for name, mine in groups if len(table.categories) > 1]
    if table.unfit.any():
        groups.append(("masked", table.unfit))
    lines = []
    for name, mine in groups:
        others = fit & ~mine
        losses = []
        for learn in (fit | mine, others):
            found = score(estimator, table, walks, learn=learn, scored=others, detailed=False)
            losses.append(found.unit_loss[0])
        units = np.flatnonzero(losses[1] > 0)
        if not len(units):
            continue
        with_group, without = (loss[units] for loss in losses)
        change = paired_change(with_group, without, unit_draws(len(units), bootstrap, seed))
        lines.append(
            {
                "estimator": registry.format_spec(estimator),
                "group": name,
                "share_of_rows": float(mine.mean()),
                "change_pct": change.change_pct,
                "change_low_pct": change.low_pct,
                "change_high_pct": change.high_pct,
            }
        )
    return lines
