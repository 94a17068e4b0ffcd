"""Losslessness: which combinations of score, policy, lag and draft sampling keep the target's distribution."""

from __future__ import annotations

from avsim.lossless.classify import Lossless, classify

__all__ = ["Lossless", "classify"]
