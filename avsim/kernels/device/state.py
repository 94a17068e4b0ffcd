"""Between an estimator's arrays in NumPy and its tensors on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avsim.errors import InputError
from avsim.estimators.base import Arrays

__all__ = ["copy_in", "copy_out", "taken"]


def taken(arrays: Arrays, key: str, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Return one array of a state.

    Raises:
        InputError: it is missing, or belongs to another number of slots.
    """
    if key not in arrays or np.shape(arrays[key]) != shape:
        found = f"{key} of shape {np.shape(arrays[key])}" if key in arrays else f"no {key}"
        raise InputError(f"{name}: the state has {found}; expected shape {shape}: was it made for another K?")
    return np.asarray(arrays[key])


def copy_in(target: Any, arrays: Arrays, key: str, name: str) -> None:
    """Copy one array of a state into a tensor of the same shape, in place.

    Raises:
        InputError: see `taken`.
    """
    target.copy_(torch.from_numpy(np.array(taken(arrays, key, tuple(target.shape), name))))


def copy_out(source: Any) -> NDArray[Any]:
    """Return a tensor as an array of its own; waits for the device."""
    return np.array(source.cpu().numpy())
