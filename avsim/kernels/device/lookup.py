"""Estimators that read confidences from a table over log-odds: isotonic curves and Beta posteriors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from avsim.estimators.base import Arrays
from avsim.estimators.beta_bernoulli import EDGES, BetaBernoulli
from avsim.estimators.isotonic import CENTRES, Isotonic
from avsim.features import sigmoid
from avsim.kernels.device.base import DeviceEstimator
from avsim.kernels.device.state import copy_in, copy_out
from avsim.kernels.laws import GridLaw
from avsim.kernels.ops.histogram import beta_posterior, count
from avsim.kernels.ops.isotonic import fit_all_slots, fit_each_slot

__all__ = ["DeviceBetaBernoulli", "DeviceIsotonic"]


class _Lookup(DeviceEstimator):
    """What the two share: counts per bin, and a table that predictions are read from."""

    _sums: Any
    """Two counts of each bin, float64 `[2, K, bins]`."""
    _table: Any
    """float32 `[K, cells]`."""
    _bin_of_cell: Any
    """int32 `[cells]`."""

    def _make(self, bin_of_cell: np.ndarray) -> None:
        bins, num_slots = int(bin_of_cell[-1]) + 1, self.num_speculative_steps
        self._bin_of_cell = torch.tensor(bin_of_cell, dtype=torch.int32, device=self.device)
        self._sums = self._float64(np.zeros((2, num_slots, bins)))
        self._table = torch.zeros((num_slots, len(bin_of_cell)), dtype=torch.float32, device=self.device)

    def _float64(self, values: Any) -> Any:
        return torch.tensor(values, dtype=torch.float64, device=self.device)


class DeviceIsotonic(_Lookup):
    """`isotonic` on a device; its curves are read between bin centres."""

    estimator: Isotonic

    @property
    def law(self) -> GridLaw:
        return self._law

    def _build(self) -> None:
        self._make(np.arange(len(CENTRES)))
        self._law = GridLaw(self._table, lowest=-5.0, per_unit=3.0, interpolate=True)
        self._prior = self._float64(sigmoid(0.5 * CENTRES - 0.2))
        self._fitted = torch.empty_like(self._prior)
        self._prior_weight = self._float64([self.estimator.prior_weight])
        self._shared_weight = self._float64([self.estimator.shared_weight])

    def _accumulate(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        count(
            self._sums,
            idx_mapping,
            num_sampled,
            num_rejected,
            self.features[0],
            self._bin_of_cell,
            lowest=self._law.lowest,
            per_unit=self._law.per_unit,
            nearest=True,
            count_observed=True,
        )

    def _refit(self) -> None:
        shared = self.estimator.shared
        fit_all_slots(self._sums, self._prior, self._prior_weight, self._fitted, self._table, shared=shared)
        if not shared:
            fit_each_slot(self._sums, self._fitted, self._shared_weight, self._table)
        self._sums.mul_(self.estimator.discount)

    def _load(self, params: Arrays, stats: Arrays) -> None:
        copy_in(self._table, params, "curve", self.estimator.name)
        for sums, key in zip(self._sums, ("accepted", "observed"), strict=True):
            copy_in(sums, stats, key, self.estimator.name)

    def _read(self) -> tuple[Arrays, Arrays]:
        accepted, observed = copy_out(self._sums)
        return {"curve": copy_out(self._table)}, {"accepted": accepted, "observed": observed}


class DeviceBetaBernoulli(_Lookup):
    """`beta-bernoulli` on a device; its table has a cell for every half unit of log-odds."""

    estimator: BetaBernoulli

    @property
    def law(self) -> GridLaw:
        return self._law

    def _build(self) -> None:
        # All edges are multiples of a half; one cell lies below the lowest.
        halves = np.arange(int(2 * EDGES[0]) - 1, int(2 * EDGES[-1]) + 1)
        self._make(np.searchsorted(EDGES, halves / 2, side="right"))
        self._law = GridLaw(self._table, lowest=float(halves[0]) / 2, per_unit=2.0, interpolate=False)
        prior = self.estimator.init(1)
        self._prior = self._float64(np.concatenate([prior["alpha"], prior["beta"]]))
        self._discount = self._float64([self.estimator.discount])
        self._posterior = torch.empty_like(self._sums)

    def _accumulate(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        count(
            self._sums,
            idx_mapping,
            num_sampled,
            num_rejected,
            self.features[0],
            self._bin_of_cell,
            lowest=self._law.lowest,
            per_unit=self._law.per_unit,
            nearest=False,
            count_observed=False,
        )

    def _refit(self) -> None:
        self._update(learn=True)

    def _update(self, *, learn: bool) -> None:
        beta_posterior(
            self._posterior,
            self._sums,
            self._prior,
            self._discount,
            self._bin_of_cell,
            self._table,
            learn=learn,
        )

    def _load(self, params: Arrays, stats: Arrays) -> None:
        for number, key in enumerate(("alpha", "beta")):
            copy_in(self._posterior[number], params, key, self.estimator.name)
            copy_in(self._sums[number], stats, key, self.estimator.name)
        self._update(learn=False)

    def _read(self) -> tuple[Arrays, Arrays]:
        posterior, sums = copy_out(self._posterior), copy_out(self._sums)
        return dict(zip(("alpha", "beta"), posterior, strict=True)), dict(zip(("alpha", "beta"), sums, strict=True))
