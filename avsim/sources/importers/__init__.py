"""Importers of foreign traces. To add one: a file here, and a line in the imports and in `IMPORTERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from avsim import registry
from avsim.sources.base import Trace
from avsim.sources.importers.base import Imported, Importer
from avsim.sources.importers.capture import Capture
from avsim.sources.importers.smollm2_eagle1_dense import SmolLM2Eagle1Dense
from avsim.sources.importers.specdecode_bench import SpecDecodeBench
from avsim.sources.importers.vllm_metrics import VllmMetrics
from avsim.sources.writer import write_trace

__all__ = [
    "IMPORTERS",
    "Capture",
    "Imported",
    "Importer",
    "SmolLM2Eagle1Dense",
    "SpecDecodeBench",
    "VllmMetrics",
    "available",
    "import_trace",
]

IMPORTERS: dict[str, type[Any]] = {cls.name: cls for cls in (Capture, SmolLM2Eagle1Dense, SpecDecodeBench, VllmMetrics)}


def available() -> dict[str, type[Any]]:
    """Return every importer by name, including those of installed packages."""
    return registry.installed("sources", IMPORTERS)


def import_trace(spec: str, source: str | Path, path: str | Path, overwrite: bool = False) -> Trace:
    """Import a foreign trace with the importer that a spec names, such as `specdecode-bench:drafter=ngram`.

    Raises:
        InputError: unknown importer or option, or a source that it cannot read.
    """
    importer: Importer = registry.from_spec(spec, "sources", available())
    found = importer.read(Path(source))
    return write_trace(path, found.card, found.requests, found.frames, found.steps, overwrite)
