"""Traces that are read with one realistic mistake each; `test_source_contract.py` says which checks catch it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import polars as pl

from avsim.sources import Trace


def reread(trace, kind):
    """Return the same trace as an instance of a broken kind."""
    return kind(**{item.name: getattr(trace, item.name) for item in fields(Trace)})


@dataclass(frozen=True, eq=False)
class WidensIds(Trace):
    """Hands integers on in the width of the file."""

    def chunks(self, features, num_slots=None):
        for blocks in super().chunks(features, num_slots):
            yield replace(blocks, num_drafted=blocks.num_drafted.astype(np.int16))


@dataclass(frozen=True, eq=False)
class ZeroFills(Trace):
    """Fills slots that were not drafted by 0, which reads as even odds."""

    def chunks(self, features, num_slots=None):
        for blocks in super().chunks(features, num_slots):
            filled = {name: np.nan_to_num(values) for name, values in blocks.features.items()}
            yield replace(blocks, features=filled)


@dataclass(frozen=True, eq=False)
class RepeatsSlots(Trace):
    """Reads the first slot's column into every slot."""

    def chunks(self, features, num_slots=None):
        for blocks in super().chunks(features, num_slots):
            inside = np.arange(num_slots or self.card.num_speculative_tokens)[:, None] < blocks.num_drafted
            same = {name: np.where(inside, values[0], np.nan) for name, values in blocks.features.items()}
            yield replace(blocks, features={name: values.astype(np.float32) for name, values in same.items()})


@dataclass(frozen=True, eq=False)
class CountsBonus(Trace):
    """Counts the bonus token as accepted."""

    def chunks(self, features, num_slots=None):
        for blocks in super().chunks(features, num_slots):
            yield replace(blocks, num_accepted=blocks.num_accepted + 1)


@dataclass(frozen=True, eq=False)
class SortsByRequest(Trace):
    """Sorts each piece by request, whatever the trace is."""

    def chunks(self, features, num_slots=None):
        for blocks in super().chunks(features, num_slots):
            order = np.argsort(blocks.request, kind="stable")
            yield replace(
                blocks,
                **{
                    name: getattr(blocks, name)[order]
                    for name in ("request", "position", "step", "num_drafted", "num_admitted", "num_accepted")
                },
                features={name: values[:, order] for name, values in blocks.features.items()},
                unfit=None if blocks.unfit is None else blocks.unfit[order],
            )


@dataclass(frozen=True, eq=False)
class ReadsOnce(Trace):
    """Goes on where the last pass stopped, as an open file would."""

    passes: Any = field(default_factory=lambda: [0])

    def chunks(self, features, num_slots=None):
        for blocks in super().chunks(features, num_slots):
            self.passes[0] += 1
            yield replace(blocks, position=blocks.position + (self.passes[0] > 1))


@dataclass(frozen=True, eq=False)
class TearsSteps(Trace):
    """Cuts pieces by rows, in the middle of a step."""

    def iter_blocks(self, features=(), *, num_slots=None, min_rows=1 << 19):
        whole = self.blocks(features, num_slots=num_slots)
        for start in range(0, len(whole), min_rows):
            yield _rows(whole, slice(start, start + min_rows))


@dataclass(frozen=True, eq=False)
class DropsTail(Trace):
    """Drops the last piece when it is a small one."""

    def iter_blocks(self, features=(), *, num_slots=None, min_rows=1 << 19):
        pieces = list(super().iter_blocks(features, num_slots=num_slots, min_rows=min_rows))
        yield from pieces[: -1 if len(pieces) > 1 and len(pieces[-1]) < min_rows else None]


@dataclass(frozen=True, eq=False)
class ReadsEverything(Trace):
    """Reads every feature, whatever was asked for."""

    def chunks(self, features, num_slots=None):
        yield from super().chunks((*features, *(name for name in self.features if name not in features)), num_slots)


@dataclass(frozen=True, eq=False)
class CutsFeaturesOnly(Trace):
    """Cuts the features to fewer slots and forgets the counts."""

    def chunks(self, features, num_slots=None):
        for whole, cut in zip(super().chunks(features), super().chunks(features, num_slots), strict=True):
            yield replace(whole, features=cut.features)


@dataclass(frozen=True, eq=False)
class LowersTypes(Trace):
    """Hands on a request table with 32-bit ids."""

    def __post_init__(self):
        object.__setattr__(self, "requests", self.requests.with_columns(pl.col("request").cast(pl.Int32)))


def _rows(blocks, rows):
    return replace(
        blocks,
        **{
            name: getattr(blocks, name)[rows]
            for name in ("request", "position", "step", "num_drafted", "num_admitted", "num_accepted")
        },
        features={name: values[:, rows] for name, values in blocks.features.items()},
        unfit=None if blocks.unfit is None else blocks.unfit[rows],
    )
