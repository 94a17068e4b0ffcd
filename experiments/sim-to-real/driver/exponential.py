"""e^x in float32 that the compiler can vectorise: libm's is called once per element, which costs as much as attention.

Source: the reduction and polynomial of Cephes `expf` (Moshier); error within about two units in the last place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def _bits_as_float(context: Any, bits: Any) -> Any:
    return types.float32(types.int32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


@njit(inline="always")
def exp(x: np.float32) -> np.float32:
    """Return e^x; arguments below −87 count as −87."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1)) * _bits_as_float((np.int32(n) + np.int32(127)) << np.int32(23))
