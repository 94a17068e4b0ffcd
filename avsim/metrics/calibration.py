"""How good confidences are: log-loss, Brier score, ECE and AUC per slot, from one pass in constant memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from avsim.types import BoolArray, F32Array, F64Array, IntArray, picked_slots, slot_sums

__all__ = ["Calibration", "debiased_ece", "equal_mass_bins"]

_BINS = 1 << 12
_FLUSH = 1 << 18  # counting touches every cell of the histogram, so it waits for many events
_SMALLEST = 2.0**-24  # half a float32 ulp below 1: confidences that round to 0 or 1 cost at most 16.6 nats
ECE_BINS = 15


@dataclass
class Calibration:
    """Running scores of confidences against labels, per slot.

    Log-loss and Brier score are exact sums; ECE, AUC and reliability come from a histogram of p with 4096 cells per
    slot and label, so p is resolved to 2.4e-4 there.
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
        p, label = confidence.ravel().take(picked), accepted.ravel().take(picked)
        cell = (p * np.float32(_BINS - 1e-3)).astype(np.int32)  # p = 1 belongs to the last cell
        cell += label * np.int32(_BINS)
        cell += np.repeat(np.arange(self.num_slots, dtype=np.int32) * (2 * _BINS), counts)
        self._cells.append(cell)
        self._pending += len(cell)
        if self._pending > _FLUSH:
            self._flush()
        # p(right) is p for an acceptance and 1 − p for a rejection.
        right = np.abs(p - ~label)
        losses = np.empty((2, len(picked)), dtype=np.float32)
        np.square(1 - right, out=losses[0])
        np.log(np.maximum(right, np.float32(_SMALLEST), out=right), out=losses[1])
        brier, log_loss = slot_sums(losses, counts)
        self.brier += brier
        self.log_loss -= log_loss

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
        """Return the pooled scores, and the same per slot under `slots`."""
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
        empty = dict.fromkeys(("log_loss", "brier", "ece", "auc", "mean_confidence", "acceptance"))
        return {"count": 0} | empty
    ranks = np.cumsum(negative) - negative / 2
    pairs = float(negative.sum()) * float(positive.sum())
    mean, rate, count = equal_mass_bins(counts, ECE_BINS)
    return {
        "count": n,
        "log_loss": float(log_loss) / n,
        "brier": float(brier) / n,
        "ece": debiased_ece(mean, rate, count),
        "auc": float((positive * ranks).sum() / pairs) if pairs else None,
        "mean_confidence": float((counts.sum(axis=0) * _centres()).sum() / n),
        "acceptance": float(positive.sum()) / n,
    }


def _centres() -> F64Array:
    return (np.arange(_BINS) + 0.5) / _BINS


def equal_mass_bins(counts: IntArray, bins: int) -> tuple[F64Array, F64Array, IntArray]:
    """Merge a fine histogram `[2, cells]` (rejected, accepted) into bins of about equal mass.

    Returns:
        Mean confidence, acceptance rate and count per bin; empty bins are left out.
    """
    total = counts.sum(axis=0)
    before = np.cumsum(total) - total / 2
    which = np.minimum((before * bins / max(total.sum(), 1)).astype(np.int64), bins - 1)
    count = np.bincount(which, total, bins)
    kept = count > 0
    mean = np.bincount(which, total * _centres(), bins)[kept] / count[kept]
    rate = np.bincount(which, counts[1], bins)[kept] / count[kept]
    return mean, rate, count[kept].astype(np.int64)


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
