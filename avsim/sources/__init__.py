"""Traces: reading, writing, checking, importing and making them.

To add an importer: a file in `importers/` and a line in its `IMPORTERS`.
"""

from __future__ import annotations

from avsim.sources.base import Trace, open_trace
from avsim.sources.card import TraceCard
from avsim.sources.importers import IMPORTERS, import_trace
from avsim.sources.validate import validate_trace
from avsim.sources.writer import write_trace

__all__ = ["IMPORTERS", "Trace", "TraceCard", "import_trace", "open_trace", "validate_trace", "write_trace"]
