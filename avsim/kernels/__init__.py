"""Estimators and budgets as Triton kernels, with the meaning that their NumPy forms give them.

    reference/  what each operation means, in NumPy, in the layout of the kernels
    ops/        the kernels and what launches them (torch and Triton)
    device/     estimators made of them, drop-ins for vLLM's `OnlineAcceptanceEstimator`
    laws.py     the forms that a prediction takes

Importing this package imports neither torch nor Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from avsim.errors import InputError
from avsim.estimators.base import Estimator

if TYPE_CHECKING:
    from avsim.kernels.device.base import DeviceEstimator

__all__ = ["ON_DEVICE", "device_estimator"]

ON_DEVICE: dict[str, str] = {
    "online-logistic": "avsim.kernels.device.online_logistic:DeviceOnlineLogistic",
    "bayes-logistic": "avsim.kernels.device.gaussian:DeviceBayesLogistic",
    "request-adaptive": "avsim.kernels.device.gaussian:DeviceRequestAdaptive",
    "multi-logistic": "avsim.kernels.device.gaussian:DeviceMultiLogistic",
    "isotonic": "avsim.kernels.device.lookup:DeviceIsotonic",
    "beta-bernoulli": "avsim.kernels.device.lookup:DeviceBetaBernoulli",
}
"""Estimators that have kernels, and the class of each."""


def device_estimator(
    estimator: Estimator, max_num_reqs: int, num_speculative_steps: int, device: Any
) -> DeviceEstimator:
    """Return an estimator on a device, cold.

    Raises:
        InputError: there are no kernels for it, or for one of its options.
    """
    import importlib

    if estimator.name not in ON_DEVICE:
        raise InputError(f"{estimator.name} has no kernels; those that have: {', '.join(ON_DEVICE)}")
    module, _, name = ON_DEVICE[estimator.name].partition(":")
    made: DeviceEstimator = getattr(importlib.import_module(module), name)(
        estimator, max_num_reqs, num_speculative_steps, device
    )
    return made
