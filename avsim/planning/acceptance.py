"""Acceptance from summary numbers: per-position rates, marginal or conditional, or acceptance lengths by depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim.errors import InputError
from avsim.types import F64Array

__all__ = ["Acceptance"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Per-position acceptance at full admission.

    Attributes:
        conditional: P(slot k accepted | slots before it accepted), float64 `[K]`, strictly between 0 and 1.
        notes: what had to be mended in the numbers given.
    """

    conditional: F64Array
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rates = self.conditional
        if rates.ndim != 1 or not len(rates):
            raise InputError("acceptance: give at least one position")
        bad = np.flatnonzero(~(np.isfinite(rates) & (rates > 0) & (rates < 1)))
        if len(bad):
            raise InputError(
                f"acceptance at position {bad[0]} is {rates[bad[0]]:g} given that those before were accepted; it must "
                "be above 0 and below 1"
            )

    @property
    def num_slots(self) -> int:
        return len(self.conditional)

    @property
    def marginal(self) -> F64Array:
        """S_k: probability that slot k and all before it are accepted, `[K]`."""
        return np.cumprod(self.conditional, dtype=np.float64)

    @property
    def acceptance_length(self) -> float:
        """Tokens per request and step at full depth, the bonus token included."""
        return float(1 + self.marginal.sum())

    @classmethod
    def from_conditional(cls, rates: Sequence[float]) -> Acceptance:
        """Take conditional acceptance per position, as fractions."""
        return cls(_numbers(rates, "conditional acceptance"))

    @classmethod
    def from_marginal(cls, rates: Sequence[float]) -> Acceptance:
        """Take P(accepted) per position and *drafted* slot, as vLLM's counters give it; it must fall.

        >>> Acceptance.from_marginal([0.8, 0.4]).conditional.tolist()
        [0.8, 0.5]
        """
        marginal = _numbers(rates, "marginal acceptance")
        rises = np.flatnonzero(np.diff(marginal) >= 0)
        if len(rises):
            at = rises[0] + 1
            raise InputError(
                f"marginal acceptance must fall from position to position, but position {at} has {marginal[at]:g} "
                f"after {marginal[at - 1]:g}; conditional rates need --conditional"
            )
        return cls(marginal / np.concatenate(([1.0], marginal[:-1])))

    @classmethod
    def from_lengths(cls, lengths: Sequence[float]) -> Acceptance:
        """Take acceptance lengths measured at depth 1, 2, …, K, the bonus token included.

        Each length is a run of its own, so the curve need not be smooth: where it does not rise, or rises faster than
        one position before, no acceptance law has these lengths, and the law with the nearest rises stands in (a note
        says so). S_k is the rise from depth k to k + 1.

        >>> Acceptance.from_lengths([1.8, 2.2]).marginal.round(3).tolist()
        [0.8, 0.4]
        """
        given = _numbers(lengths, "acceptance length")
        if (given < 1).any() or (given > np.arange(2, len(given) + 2)).any():
            raise InputError("an acceptance length at depth K lies between 1 and K + 1, the bonus token included")
        rise = np.diff(np.concatenate(([1.0], given)))
        if (rise > 0).all() and (np.diff(rise) <= 0).all() and rise[0] < 1:
            return cls(np.clip(rise / np.concatenate(([1.0], rise[:-1])), None, 1 - 1e-6))
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression(increasing=False, y_min=1e-3, y_max=1 - 1e-3).fit_transform(
            np.arange(len(rise)), rise
        )
        marginal = fitted * (1 - 1e-6) ** np.arange(len(rise))
        worst = float(np.abs(1 + np.cumsum(marginal) - given).max())
        note = (
            "the acceptance lengths do not come from one acceptance law (the tail falls, or rises faster than before); "
            f"the nearest law is used, up to {worst:.2f} tokens away"
        )
        return cls(marginal / np.concatenate(([1.0], marginal[:-1])), (note,))


def _numbers(values: Sequence[float], what: str) -> F64Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise InputError(f"{what}: give one finite number per position")
    return array
