"""Matrix products whose result for a row does not depend on the other rows, fast from one row to hundreds.

A weight matrix `[out, in]` is packed into panels `[out / 16, in, 16]`. A tile multiplies up to six rows with one
panel, its sums in registers: y[r, n] = ((x[r, 0] w[0, n]) + x[r, 1] w[1, n]) + …, in this order whatever the number
of rows. So a token's logits are the same, bit for bit, alone and in a batch, and greedy decoding by verification is
decoding. MKL's own kernels are neither: on the machine that this was written on, two rows took them 1.8 times as long
as one.

Bytes moved: the panels once per six rows (from the second time on out of the L2 cache), so one row is bound by memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS, LANES, VECTORS = 6, 8, 2
WIDTH = LANES * VECTORS
_FLOAT, _FOUR = ir.FloatType(), 4
_VECTOR = ir.VectorType(_FLOAT, LANES)


def pack(weight: np.ndarray) -> np.ndarray:
    """Return `[out, in]` as panels `[out / 16, in, 16]`, float32."""
    out, depth = weight.shape
    if out % WIDTH:
        raise ValueError(f"{out} outputs are no multiple of {WIDTH}")
    return np.ascontiguousarray(weight.reshape(out // WIDTH, WIDTH, depth).transpose(0, 2, 1), dtype=np.float32)


def _tile(rows: int) -> Any:
    """Make the function of one tile: addresses of x, w and y, the row lengths of x and y, and the depth."""

    @intrinsic
    def tile(context: Any, x: Any, row_x: Any, w: Any, y: Any, row_y: Any, depth: Any) -> Any:
        return types.void(*[types.intp] * 6), lambda _, builder, __, args: _write_tile(builder, rows, *args)

    return tile


def _write_tile(b: Any, rows: int, x: Any, row_x: Any, w: Any, y: Any, row_y: Any, depth: Any) -> Any:
    def at(base: Any, floats: Any, kind: Any) -> Any:
        return b.inttoptr(b.add(base, b.mul(floats, ir.Constant(floats.type, _FOUR))), kind.as_pointer())

    def number(value: int) -> Any:
        return ir.Constant(x.type, value)

    zeros = ir.Constant(_VECTOR, [0.0] * LANES)
    sums = [[cgutils.alloca_once(b, _VECTOR) for _ in range(VECTORS)] for _ in range(rows)]
    for sum_ in (one for row in sums for one in row):
        b.store(zeros, sum_)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    with cgutils.for_range(b, depth) as loop:
        k = loop.index
        first = b.mul(k, number(WIDTH))
        panel = [b.load(at(w, b.add(first, number(v * LANES)), _VECTOR), align=_FOUR) for v in range(VECTORS)]
        for r, row in enumerate(sums):
            value = b.load(at(x, b.add(b.mul(number(r), row_x), k), _FLOAT))
            one = b.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            spread = b.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), everywhere)
            for sum_, weights in zip(row, panel, strict=True):
                product = b.fmul(spread, weights, flags=["contract"])
                b.store(b.fadd(b.load(sum_), product, flags=["contract"]), sum_)
    for r, row in enumerate(sums):
        for v, sum_ in enumerate(row):
            place = b.add(b.mul(number(r), row_y), number(v * LANES))
            b.store(b.load(sum_), at(y, place, _VECTOR), align=_FOUR)
    return ir.Constant(ir.IntType(8).as_pointer(), None)


_one, _two, _three, _four, _five, _six = (_tile(rows) for rows in range(1, ROWS + 1))


@njit(parallel=True, cache=True)
def linear(x: np.ndarray, panels: np.ndarray, y: np.ndarray, rows: int) -> None:
    """Write x[:rows] · Wᵀ into y[:rows]; both are contiguous, float32."""
    depth = panels.shape[1]
    row_x, row_y = x.shape[1], y.shape[1]
    for p in prange(panels.shape[0]):
        w = panels.ctypes.data + 4 * p * depth * WIDTH
        for first in range(0, rows, ROWS):
            a = x.ctypes.data + 4 * first * row_x
            c = y.ctypes.data + 4 * (first * row_y + p * WIDTH)
            left = rows - first
            if left >= 6:
                _six(a, row_x, w, c, row_y, depth)
            elif left == 5:
                _five(a, row_x, w, c, row_y, depth)
            elif left == 4:
                _four(a, row_x, w, c, row_y, depth)
            elif left == 3:
                _three(a, row_x, w, c, row_y, depth)
            elif left == 2:
                _two(a, row_x, w, c, row_y, depth)
            else:
                _one(a, row_x, w, c, row_y, depth)
