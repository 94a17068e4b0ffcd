"""How good confidences are: log-loss, Brier score, ECE, AUC and slope per slot, from one pass in constant memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr

from avsim.types import BoolArray, F32Array, F64Array, IntArray, picked_slots, slot_sums

__all__ = ["LEAST_PROBABILITY", "Calibration", "brier_parts", "calibration_line", "debiased_ece", "equal_mass_bins"]

_BINS = 1 << 12
_FLUSH = 1 << 18  # counting touches every cell of the histogram, so it waits for many events
LEAST_PROBABILITY = 2.0**-24  # half a float32 ulp below 1: confidences that round to 0 or 1 cost at most 16.6 nats
ECE_BINS = 15
_EMPTY = (
    "log_loss", "brier", "brier_reliability", "brier_resolution", "brier_uncertainty", "brier_within_variance",
    "brier_within_covariance", "brier_rounding", "ece", "auc", "mean_confidence", "acceptance", "calibration_slope",
    "calibration_intercept",
)  # fmt: skip
_NEWTON_STEPS = 50
_CONVERGED = 1e-14  # gain of log-likelihood per event


@dataclass
class Calibration:
    """Running scores of confidences against labels, per slot.

    Log-loss and Brier score are exact sums; the rest comes from a histogram of p with 4096 cells per slot and label,
    so p is resolved to 2.4e-4 there: its log-odds read at most ±9.0, and the parts of the Brier score miss it by
    `brier_rounding`.
    """

    num_slots: int
    log_loss: F64Array = field(init=False)
    brier: F64Array = field(init=False)

    def __post_init__(self) -> None:
        self._counts = np.zeros((self.num_slots, 2, _BINS), dtype=np.int64)
        self._cells: list[NDArray[np.int32]] = []
        self._pending = 0
        self.log_loss = np.zeros(self.num_slots)
        self.brier = np.zeros(self.num_slots)

    def add(self, confidence: F32Array, accepted: BoolArray, scored: BoolArray) -> None:
        """Score some slots, all arrays `[K, n]`; only those where `scored`."""
        picked, counts = picked_slots(scored)
        self.add_picked(confidence.ravel().take(picked), accepted.ravel().take(picked), counts)

    def add_picked(self, p: F32Array, label: BoolArray, counts: IntArray) -> F32Array:
        """Score slots that lie slot after slot, `counts[k]` of them for slot k, and return the log-loss of each."""
        cell = (p * np.float32(_BINS - 1e-3)).astype(np.int32)  # p = 1 belongs to the last cell
        cell += label * np.int32(_BINS)
        cell += np.repeat(np.arange(self.num_slots, dtype=np.int32) * (2 * _BINS), counts)
        self._cells.append(cell)
        self._pending += len(cell)
        if self._pending > _FLUSH:
            self._flush()
        # p(right) is p for an acceptance and 1 − p for a rejection.
        right = np.abs(p - ~label)
        losses = np.empty((2, len(p)), dtype=np.float32)
        np.square(1 - right, out=losses[0])
        np.log(np.maximum(right, np.float32(LEAST_PROBABILITY), out=right), out=losses[1])
        brier, log_loss = slot_sums(losses, counts)
        self.brier += brier
        self.log_loss -= log_loss
        return np.negative(losses[1])

    def absorb(self, other: Calibration) -> None:
        """Add what another one has scored."""
        self._counts += other.counts
        self.log_loss += other.log_loss
        self.brier += other.brier

    def _flush(self) -> None:
        cells = np.concatenate(self._cells)
        self._cells, self._pending = [], 0
        self._counts += np.bincount(cells, minlength=self._counts.size).reshape(self._counts.shape)

    @property
    def counts(self) -> IntArray:
        """Scored slots per slot, label and cell, `[K, 2, cells]`."""
        if self._cells:
            self._flush()
        return self._counts

    def summary(self) -> dict[str, Any]:
        """Return the pooled scores, and the same per slot under `slots`; None where a score is undefined.

        brier = reliability − resolution + uncertainty + within_variance − within_covariance + rounding, see
        `brier_parts`; `calibration_slope` and `_intercept` are those of `calibration_line`, 1 and 0 where calibrated.
        """
        pooled = _scores(self.counts.sum(axis=0), self.log_loss.sum(), self.brier.sum())
        slots = [_scores(*parts) for parts in zip(self.counts, self.log_loss, self.brier, strict=True)]
        return pooled | {"slots": slots}

    def reliability(self, slot: int | None = None, bins: int = ECE_BINS) -> list[dict[str, float]]:
        """Return equal-mass bins with mean confidence, acceptance rate and count; over all slots by default."""
        counts = self.counts.sum(axis=0) if slot is None else self.counts[slot]
        mean, rate, count = equal_mass_bins(counts, bins)
        return [
            {"confidence": float(p), "acceptance": float(y), "count": int(n)}
            for p, y, n in zip(mean, rate, count, strict=True)
        ]


def _scores(counts: IntArray, log_loss: float, brier: float) -> dict[str, float | int | None]:
    negative, positive = counts
    n = int(counts.sum())
    if n == 0:
        return {"count": 0} | dict.fromkeys(_EMPTY)
    ranks = np.cumsum(negative) - negative / 2
    pairs = float(negative.sum()) * float(positive.sum())
    mean, rate, count = equal_mass_bins(counts, ECE_BINS)
    parts = brier_parts(counts, ECE_BINS)
    slope, intercept = calibration_line(counts)
    return {
        "count": n,
        "log_loss": float(log_loss) / n,
        "brier": float(brier) / n,
        **parts,
        "brier_rounding": float(brier) / n - _added_up(parts),
        "ece": debiased_ece(mean, rate, count),
        "auc": float((positive * ranks).sum() / pairs) if pairs else None,
        "mean_confidence": float((counts.sum(axis=0) * _centres()).sum() / n),
        "acceptance": float(positive.sum()) / n,
        "calibration_slope": slope,
        "calibration_intercept": intercept,
    }


def _centres(cells: int = _BINS) -> F64Array:
    return (np.arange(cells) + 0.5) / cells


def equal_mass_bins(counts: IntArray, bins: int) -> tuple[F64Array, F64Array, IntArray]:
    """Merge a fine histogram `[2, cells]` (rejected, accepted) into bins of about equal mass.

    Returns:
        Mean confidence, acceptance rate and count per bin; empty bins are left out.
    """
    total = counts.sum(axis=0)
    which = _bin_of_cell(total, bins)
    count = np.bincount(which, total, bins)
    kept = count > 0
    mean = np.bincount(which, total * _centres(len(total)), bins)[kept] / count[kept]
    rate = np.bincount(which, counts[1], bins)[kept] / count[kept]
    return mean, rate, count[kept].astype(np.int64)


def _bin_of_cell(total: IntArray, bins: int) -> IntArray:
    before = np.cumsum(total) - total / 2
    return np.minimum((before * bins / max(total.sum(), 1)).astype(np.int64), bins - 1)


def brier_parts(counts: IntArray, bins: int) -> dict[str, float]:
    """Split the Brier score of a fine histogram `[2, cells]`, not empty, over bins of about equal mass.

    With w_b the share of bin b, p̄_b its mean confidence, ȳ_b its acceptance rate, ȳ the overall rate:

        score = Σ w_b (p̄_b − ȳ_b)²  −  Σ w_b (ȳ_b − ȳ)²  +  ȳ (1 − ȳ)  +  mean (p − p̄_b)²  −  2 mean (y − ȳ_b)(p − p̄_b)
                reliability             resolution           uncertainty   within-bin variance  within-bin covariance

    The within-bin parts are what bins hide; the resolution of p itself is resolution − variance + covariance.

    Source: Murphy: A New Vector Partition of the Probability Score (J. Appl. Meteor. 12, 1973); the within-bin parts:
    Stephenson, Coelho, Jolliffe: Two Extra Components in the Brier Score Decomposition (Wea. Forecasting 23, 2008).

    >>> counts = np.array([[3, 1], [1, 3]])  # p = 1/4 and 3/4, each right
    >>> {name.removeprefix("brier_"): part for name, part in brier_parts(counts, 2).items() if part}
    {'resolution': 0.0625, 'uncertainty': 0.25}
    """
    total, p = counts.sum(axis=0), _centres(counts.shape[1])
    n, which = total.sum(), _bin_of_cell(total, bins)
    held = np.bincount(which, total, bins)
    count, weight = np.maximum(held, 1), held / n
    mean, rate = np.bincount(which, total * p, bins) / count, np.bincount(which, counts[1], bins) / count
    base, off = counts[1].sum() / n, p - mean[which]
    return {
        "brier_reliability": float((weight * (mean - rate) ** 2).sum()),
        "brier_resolution": float((weight * (rate - base) ** 2).sum()),
        "brier_uncertainty": float(base * (1 - base)),
        "brier_within_variance": float((total * off**2).sum() / n),
        "brier_within_covariance": float(2 * ((counts[1] - total * rate[which]) * off).sum() / n),
    }


def _added_up(parts: dict[str, float]) -> float:
    minus = ("brier_resolution", "brier_within_covariance")
    return sum(-value if name in minus else value for name, value in parts.items())


def calibration_line(counts: IntArray) -> tuple[float | None, float | None]:
    """Return slope s and intercept a of P(accepted) = σ(a + s·logit p), the maximum-likelihood fit to a histogram.

    A slope below 1 means confidences that are too extreme; the intercept is the log-odds at p = 1/2. Newton steps on
    standardised log-odds, halved while the likelihood falls. None where no finite fit exists: one label only, a single
    cell, or labels that a threshold on p separates.

    Source: Cox: Two Further Applications of a Model for Binary Regression (Biometrika 45, 1958).

    >>> slope, intercept = calibration_line(np.array([[3, 1], [1, 3]]))  # p = 1/4 and 3/4, each right
    >>> round(slope, 9), round(intercept, 9)
    (1.0, 0.0)
    """
    rejected, accepted = (np.flatnonzero(line) for line in counts)
    if not (len(rejected) and len(accepted)) or rejected[-1] <= accepted[0] or accepted[-1] <= rejected[0]:
        return None, None
    held = np.flatnonzero(counts.sum(axis=0))
    positive, total = counts[1, held].astype(np.float64), counts[:, held].sum(axis=0)
    x = logit(_centres(counts.shape[1])[held])
    n = total.sum()
    centre = (total * x).sum() / n
    scale = np.sqrt((total * (x - centre) ** 2).sum() / n)
    z = (x - centre) / scale
    line = np.array([logit(positive.sum() / n), 0.0])
    loss = _loss(line, z, positive, total)
    for _ in range(_NEWTON_STEPS):
        p = expit(line[0] + line[1] * z)
        residual, weight = positive - total * p, total * p * (1 - p)
        gradient = np.array([residual.sum(), (residual * z).sum()])
        a, b, c = weight.sum(), (weight * z).sum(), (weight * z * z).sum()
        determinant = a * c - b * b
        if not determinant > 0:
            return None, None
        step = np.array([c * gradient[0] - b * gradient[1], a * gradient[1] - b * gradient[0]]) / determinant
        if gradient @ step <= _CONVERGED * n:
            slope = (line[1] + step[1]) / scale
            return float(slope), float(line[0] + step[0] - slope * centre)
        while (after := _loss(line + step, z, positive, total)) > loss:
            step = step / 2
        line, loss = line + step, after
    return None, None


def _loss(line: F64Array, z: F64Array, positive: F64Array, total: IntArray) -> float:
    x = line[0] + line[1] * z
    return float((total * np.logaddexp(0, x) - positive * x).sum())


def debiased_ece(mean: F64Array, rate: F64Array, count: IntArray) -> float:
    """Return the expected calibration error over given bins, with its plug-in bias removed, at least 0.

    ECE = Σ w_b |ȳ_b − p̄_b|, w_b = n_b/n. Noise in ȳ_b inflates it; the bias is estimated as the excess of
    E|R_b − p̄_b| over |ȳ_b − p̄_b| with R_b ~ N(ȳ_b, ȳ_b(1 − ȳ_b)/n_b), and subtracted. Of a perfectly calibrated
    score's plug-in ECE that leaves three fifths, and nothing of it where the gaps are real.

    Source: Kumar, Liang, Ma: Verified Uncertainty Calibration (arXiv 1909.10155), §5.
    """
    weight = count / count.sum()
    gap = np.abs(rate - mean)
    sd = np.sqrt(np.maximum(rate * (1 - rate), 1e-12) / count)
    ratio = gap / sd
    folded = sd * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2) + gap * (1 - 2 * ndtr(-ratio))
    return float(max(0.0, (weight * (2 * gap - folded)).sum()))
