"""Offline comparison of estimators: what each predicts, how it decides, and what traffic that changes does to it."""

from __future__ import annotations

from avsim.comparison.config import CompareConfig
from avsim.comparison.run import compare, read_states

__all__ = ["CompareConfig", "compare", "read_states"]
