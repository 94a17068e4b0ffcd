"""Traces: reading, writing, checking, importing and making them.

To add an importer: a file in `importers/` and a line in its `BUILTIN`.
"""

from __future__ import annotations

from avsim.sources.base import Trace, open_trace
from avsim.sources.card import TraceCard
from avsim.sources.validate import validate_trace
from avsim.sources.writer import write_trace

__all__ = ["Trace", "TraceCard", "open_trace", "validate_trace", "write_trace"]
