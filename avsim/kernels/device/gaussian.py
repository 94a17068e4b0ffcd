"""`bayes-logistic`, `request-adaptive` and `multi-logistic` on a device: the same kernels, states of their own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from avsim.errors import InputError
from avsim.estimators.base import Arrays
from avsim.estimators.bayes_logistic import BayesLogistic
from avsim.estimators.multi_logistic import MultiLogistic
from avsim.estimators.request_adaptive import RequestAdaptive
from avsim.kernels.device.base import DeviceEstimator
from avsim.kernels.device.state import copy_in, copy_out, taken
from avsim.kernels.laws import LinearLaw
from avsim.kernels.ops.accumulate import add_products
from avsim.kernels.ops.gaussian import LARGEST, laplace_step
from avsim.kernels.ops.memory import track_requests
from avsim.types import F64Array

__all__ = ["DeviceBayesLogistic", "DeviceMultiLogistic", "DeviceRequestAdaptive"]


class _DeviceGaussian(DeviceEstimator):
    """A Gaussian posterior over F shared weights, a level and K slot offsets, D = F + 1 + K; see `ops.gaussian`.

    Attributes:
        sums: T of each slot, float64 `[K, F + 2, F + 1]`.
        mean, precision, coefficients: float64 `[D]`, `[D, D]`, `[D]`.
    """

    _history = False
    """Whether two of the shared weights are those of a request's memory."""
    _drifts = False
    """Whether the level drifts, and products are rounded to float32 before they are summed."""

    def _build(self) -> None:
        prior_mean, prior = self._prior()
        keep, level_keep, noise = self._constants()
        size, slots = len(prior), self.num_speculative_steps
        if size > LARGEST:
            raise InputError(
                f"{self.estimator.name}: its kernels hold {LARGEST} coefficients, and {slots} slots need {size}"
            )
        self._shared = size - 1 - slots
        self.sums = self._doubles(slots, self._shared + 2, self._shared + 1)
        self.mean, self.coefficients = self._doubles(size), self._doubles(size)
        self.precision = self._doubles(size, size)
        self._prior_mean, self._prior_precision, self._kept = self._doubles(size), self._doubles(size), self._doubles(3)
        for target, values in (
            (self._prior_mean, prior_mean),
            (self._prior_precision, prior),
            (self._kept, np.array([keep, level_keep, noise])),
        ):
            target.copy_(torch.from_numpy(values))
        single = {"dtype": torch.float32, "device": self.device}
        weights = torch.zeros(len(self.estimator.features), **single)
        intercepts = torch.zeros(slots, **single)
        # Of what is kept of a request, its level counts in full unless it has a weight of its own.
        memory_weights = torch.zeros(self.estimator.memory_size, **single) if self.memory is not None else None
        if memory_weights is not None:
            memory_weights[0] = 1.0
        self._law = LinearLaw(self.estimator.features, weights, intercepts, self.memory, memory_weights)

    @property
    def law(self) -> LinearLaw:
        return self._law

    @abstractmethod
    def _prior(self) -> tuple[F64Array, F64Array]:
        """Return the prior's mean and precisions, each `[D]`."""

    @abstractmethod
    def _constants(self) -> tuple[float, float, float]:
        """Return what a refit keeps of old data, what the level keeps of its distance, and how far it drifts."""

    def _accumulate(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        add_products(
            self.sums,
            self.features,
            self.predictions,
            self.memory if self._history else None,
            idx_mapping,
            num_sampled,
            num_rejected,
            rounded=self._drifts,
        )

    def _refit(self) -> None:
        laplace_step(
            self.sums,
            self.mean,
            self.precision,
            self.coefficients,
            self._prior_mean,
            self._prior_precision,
            self._kept,
            self._law.weights,
            self._law.intercepts,
            self._law.memory_weights if self._history else None,
            drifts=self._drifts,
        )

    def _load_posterior(self, params: Arrays, coefficients: str) -> None:
        name = self.estimator.name
        copy_in(self.mean, params, "mean", name)
        copy_in(self.precision, params, "precision", name)
        copy_in(self.coefficients, params, coefficients, name)
        law = torch.from_numpy(np.asarray(params[coefficients]).astype(np.float32))
        shared, features = self._shared, len(self.estimator.features)
        self._law.weights.copy_(law[:features])
        self._law.intercepts.copy_(law[shared] + law[shared + 1 :])
        if self._history and self._law.memory_weights is not None:
            self._law.memory_weights[::2] = law[features:shared].to(self.device)

    def _doubles(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)


class DeviceBayesLogistic(_DeviceGaussian):
    """`bayes-logistic` on a device, predicting from the posterior mean.

    Raises:
        InputError: `predictive="posterior"`, whose p needs a covariance in every row, or `explore`, whose draws are
            those of a generator on the host.
    """

    estimator: BayesLogistic
    _drifts = True

    def _build(self) -> None:
        for option, plain in (("predictive", "plug-in"), ("explore", False)):
            if (given := getattr(self.estimator, option)) != plain:
                raise InputError(
                    f"{self.estimator.name}: {option}={given} cannot run on a device; deploy with {option}={plain}"
                )
        self._param_refits = 0
        super()._build()

    def _prior(self) -> tuple[F64Array, F64Array]:
        return self.estimator._prior(self.num_speculative_steps)

    def _constants(self) -> tuple[float, float, float]:
        estimator = self.estimator
        lives = (estimator.half_life, estimator.level_half_life)
        keep, level_keep = (0.5 ** (estimator.refit_interval / life) for life in lives)
        return keep, level_keep, (1 - level_keep**2) * estimator.level_sd**2

    def _refit(self) -> None:
        super()._refit()
        self._param_refits += 1

    def _load(self, params: Arrays, stats: Arrays) -> None:
        name, slots = self.estimator.name, self.num_speculative_steps
        a, b, c, g0, g1 = taken(stats, "sums", (5, slots), name)
        nothing = np.zeros(slots)
        table = np.array([[a, b], [nothing, c], [g0, g1]], dtype=np.float64).transpose(2, 0, 1)
        self._load_posterior(params, "coefficients")
        self.sums.copy_(torch.from_numpy(np.ascontiguousarray(table)))
        self._param_refits = int(taken(params, "refits", (1,), name)[0])

    def _read(self) -> tuple[Arrays, Arrays]:
        table = copy_out(self.sums)
        sums = [table[:, 0, 0], table[:, 0, 1], table[:, 1, 1], table[:, 2, 0], table[:, 2, 1]]
        params = {name: copy_out(getattr(self, name)) for name in ("mean", "precision", "coefficients")}
        params["refits"] = np.array([self._param_refits], dtype=np.int64)
        return params, {"sums": np.stack(sums)}


class DeviceRequestAdaptive(DeviceBayesLogistic):
    """`request-adaptive` on a device: `bayes-logistic`'s kernels, and the level of each request in `memory`."""

    estimator: RequestAdaptive

    def _remember(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        own = self.estimator
        batch = (idx_mapping, num_sampled, num_rejected)
        track_requests(self.memory, self.predictions, *batch, own.request_sd, own.request_half_life)


class DeviceMultiLogistic(_DeviceGaussian):
    """`multi-logistic` on a device, with or without the drafter's `logits` and the request's `history`."""

    estimator: MultiLogistic

    def _build(self) -> None:
        self._history = self.estimator.history
        super()._build()

    def _prior(self) -> tuple[F64Array, F64Array]:
        cold = self.estimator.init(self.num_speculative_steps)
        return cold["mean"], cold["precision"].diagonal().copy()

    def _constants(self) -> tuple[float, float, float]:
        return 0.5 ** (self.estimator.refit_interval / self.estimator.half_life), 1.0, 0.0

    def _remember(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        own = self.estimator
        batch = (idx_mapping, num_sampled, num_rejected)
        track_requests(self.memory, self.predictions, *batch, own.request_sd, own.request_half_life)

    def _load(self, params: Arrays, stats: Arrays) -> None:
        name, slots, shared = self.estimator.name, self.num_speculative_steps, self._shared
        per_slot = taken(stats, "slots", (shared + 2, slots), name)
        table = np.zeros((slots, shared + 2, shared + 1))
        table[:, :, shared] = per_slot.T
        # What NumPy has summed over all slots is the sum of the tables; one of them can hold it.
        table[0, :shared, :shared] = taken(stats, "information", (shared, shared), name)
        table[0, shared + 1, :shared] = taken(stats, "gradient", (shared,), name)
        self._load_posterior(params, "mean")
        self.sums.copy_(torch.from_numpy(table))

    def _read(self) -> tuple[Arrays, Arrays]:
        table, shared = copy_out(self.sums), self._shared
        stats = {
            "gradient": table[:, shared + 1, :shared].sum(axis=0),
            "information": table[:, :shared, :shared].sum(axis=0),
            "slots": np.ascontiguousarray(table[:, :, shared].T),
        }
        return {"mean": copy_out(self.mean), "precision": copy_out(self.precision)}, stats
