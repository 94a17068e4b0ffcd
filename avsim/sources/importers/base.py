"""What an importer is: options, and one method that reads a foreign file into the tables of a trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import polars as pl

from avsim.sources.card import TraceCard

__all__ = ["Imported", "Importer"]


@dataclass(frozen=True, slots=True)
class Imported:
    """The arguments of `write_trace`: a card and the tables."""

    card: TraceCard
    requests: pl.DataFrame
    frames: Iterable[pl.DataFrame]
    steps: pl.DataFrame | None = None


@dataclass(frozen=True)
class Importer(ABC):
    """Base of every importer; subclasses are frozen dataclasses of options."""

    name: ClassVar[str]
    reads: ClassVar[str]
    """What to point it at, in a few words."""

    @abstractmethod
    def read(self, source: Path) -> Imported:
        """Read `source` into the tables of a trace.

        Raises:
            InputError: it is not what this importer reads.
        """
