"""From draft timings to the draft half of a cost model: points by requests, or two parts that know depth and cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from avsim.costs.draft import DraftForm, DraftParts
from avsim.costs.profile.measure import Measured
from avsim.costs.profile.summary import MISFIT, median_interval
from avsim.errors import InputError
from avsim.types import F64Array

__all__ = ["PartsFit", "changing_draft", "draft_points", "fit_parts"]

_TERMS = ("_ms", "_per_token_us", "_per_kv_token_ns")
_UNITS = (1.0, 1e3, 1e6)


@dataclass(frozen=True, slots=True)
class PartsFit:
    """Draft times as `first` + passes · `next`, and how far that is off.

    Attributes:
        worst_misfit, median_misfit: |made ÷ median − 1| over the cells.
    """

    parts: DraftParts
    worst_misfit: float
    median_misfit: float


def draft_points(measured: Measured, depth: int, contexts: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """Return (requests, ms) at a depth: the median of the cell, the mean of it over several contexts."""
    found: dict[int, list[float]] = {}
    for cell, ms in zip(measured.cells, measured.ms, strict=True):
        if cell.depth == depth and cell.context in contexts:
            found.setdefault(cell.num_reqs, []).append(float(np.median(ms)))
    return tuple((reqs, float(np.mean(found[reqs]))) for reqs in sorted(found))


def changing_draft(measured: Measured, depth: int) -> tuple[float, int] | None:
    """Return (largest ratio of draft times between two contexts, its requests) where contexts differ, or None.

    They differ where medians are more than 10 % apart and their intervals do not meet.
    """
    worst: tuple[float, int] | None = None
    by_reqs: dict[int, list[F64Array]] = {}
    for cell, ms in zip(measured.cells, measured.ms, strict=True):
        if cell.depth == depth:
            by_reqs.setdefault(cell.num_reqs, []).append(ms)
    for reqs, found in by_reqs.items():
        ordered = sorted(found, key=lambda ms: float(np.median(ms)))
        least, most = ordered[0], ordered[-1]
        ratio = float(np.median(most) / np.median(least))
        apart = median_interval(least)[1] < median_interval(most)[0]
        if ratio > 1 + MISFIT and apart and (worst is None or ratio > worst[0]):
            worst = (ratio, reqs)
    return worst


def fit_parts(measured: Measured, num_slots: int, form: DraftForm = "autoregressive") -> PartsFit:
    """Fit draft times to first(r) + (depth − 1) · next(r), both fixed + per request + per cached token.

    Non-negative least squares on relative errors of the medians. A first pass was measured over one row per request;
    the model charges its slope for every row of the target's step, T + B.

    Raises:
        InputError: fewer than two depths were measured.
    """
    rows = [index for index, cell in enumerate(measured.cells) if cell.depth]
    cells = [measured.cells[row] for row in rows]
    if len({cell.depth for cell in cells}) < 2:
        raise InputError(
            "--draft-form parts needs two depths to tell the first pass from those that follow: --depths 1"
        )
    medians = np.median(measured.ms[rows], axis=1)
    one = np.ones(len(cells))
    reqs, kv = (np.asarray([getattr(cell, name) for cell in cells], np.float64) for name in ("num_reqs", "kv_tokens"))
    more = np.asarray([cell.depth - 1 for cell in cells], dtype=np.float64)
    knows_kv = len({cell.context for cell in cells}) > 1
    first = [one, reqs, kv] if knows_kv else [one, reqs]
    columns = np.column_stack([*first, *(more * column for column in first)])
    scale = columns.max(axis=0)
    solution = nnls(columns / scale / medians[:, None], one)[0] / scale
    misfit = np.abs(columns @ solution / medians - 1)
    values = solution.reshape(2, -1)
    terms = {
        f"{which}{term}": float(value * unit)
        for which, found in zip(("first", "next"), values, strict=True)
        for term, value, unit in zip(_TERMS, found, _UNITS, strict=False)
    }
    return PartsFit(DraftParts(form, num_slots, **terms), float(misfit.max()), float(np.median(misfit)))
