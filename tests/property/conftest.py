"""Hypothesis without a database or deadlines, and with the same examples on every run."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("avsim", database=None, deadline=None, derandomize=True, max_examples=150)
settings.load_profile("avsim")
