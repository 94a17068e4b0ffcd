"""The closed loop compiled with numba (the `jit` extra): the same numbers as the NumPy loop, several times as fast."""

from avsim.jit.loop import Engine, take_steps

__all__ = ["Engine", "take_steps"]
