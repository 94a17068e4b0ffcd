"""The blocks of an open loop between two refits: how they are cut from a stream, and where each sits in its step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from avsim.types import Blocks, IntArray
from avsim.workload import fill_missing

__all__ = ["Epoch", "epochs"]


def epochs(pieces: Iterable[Blocks], interval: int) -> Iterator[Blocks]:
    """Cut a stream of blocks at every `interval` steps, counted from step 0."""
    held: list[Blocks] = []
    held_epoch = -1
    for piece in pieces:
        assert piece.step is not None
        epoch = piece.step // interval
        cuts = [0, *(np.flatnonzero(np.diff(epoch)) + 1).tolist(), len(piece)]
        for start, stop in pairwise(cuts):
            if held and epoch[start] != held_epoch:
                yield _joined(held)
                held = []
            held_epoch = int(epoch[start])
            held.append(_rows(piece, slice(start, stop)))
    if held:
        yield _joined(held)


def _rows(blocks: Blocks, rows: slice) -> Blocks:
    values: dict[str, Any] = {}
    for item in fields(Blocks):
        value = getattr(blocks, item.name)
        if item.name == "features":
            values[item.name] = {name: array[:, rows] for name, array in value.items()}
        else:
            values[item.name] = None if value is None else value[rows]
    return Blocks(**values)


def _joined(parts: Sequence[Blocks]) -> Blocks:
    if len(parts) == 1:
        return parts[0]
    values: dict[str, Any] = {}
    for item in fields(Blocks):
        columns = [getattr(part, item.name) for part in parts]
        if item.name == "features":
            values[item.name] = {name: np.concatenate([c[name] for c in columns], axis=1) for name in columns[0]}
        else:
            values[item.name] = None if columns[0] is None else np.concatenate(columns)
    return Blocks(**values)


class Epoch:
    """The blocks between two refits, and where each sits in the `[steps, reqs]` grid."""

    def __init__(self, blocks: Blocks, interval: int, num_slots: int, complete: bool):
        assert blocks.step is not None
        self.blocks = blocks
        self.index = int(blocks.step[0] // interval)
        self.first_step = self.index * interval
        self.starts = np.concatenate(([0], np.flatnonzero(np.diff(blocks.step)) + 1, [len(blocks)]))
        starts, counts = self.starts[:-1], np.diff(self.starts)
        self.steps = blocks.step[starts]
        self.counts = counts
        self.width = int(counts.max())
        self.regular = bool((counts == self.width).all())
        offset = np.arange(len(counts)) * self.width - starts
        self.cell = np.arange(len(blocks)) + np.repeat(offset, counts)
        order = _stable_order(blocks.request)
        same = blocks.request[order[1:]] == blocks.request[order[:-1]]
        self.previous = np.full(len(blocks), -1)
        self.previous[order[1:][same]] = order[:-1][same]
        last = np.ones(len(blocks), dtype=bool)
        last[order[:-1][same]] = False
        self.last = np.flatnonzero(last)
        slot, taken, verified = _narrow(np.arange(num_slots)[:, None], blocks.num_accepted, blocks.num_admitted)
        self.accepted = slot < taken
        self.reached = (slot <= taken) & (slot < verified)
        self.features = blocks.features
        self.charged = blocks.num_admitted
        if not complete:
            # Nothing was trimmed from these blocks: the rest of their K slots lies past the end of an output.
            self.charged = np.where(blocks.num_admitted == blocks.num_drafted, num_slots, blocks.num_admitted)
            recorded = slot < blocks.num_drafted
            self.features = {name: fill_missing(array, recorded) for name, array in blocks.features.items()}

    def grid(self, column: np.ndarray) -> np.ndarray:
        """Lay out rows `[..., n]` as `[..., steps, reqs]`, with 0 in empty places."""
        shape = (*column.shape[:-1], len(self.steps), self.width)
        if self.regular:
            return column.reshape(shape)
        out = np.zeros((*column.shape[:-1], len(self.steps) * self.width), dtype=column.dtype)
        out[..., self.cell] = column
        return out.reshape(shape)

    def rows(self, grid: IntArray) -> IntArray:
        """The inverse of `grid` for `[steps, reqs]`."""
        return grid.reshape(-1) if self.regular else grid.reshape(-1)[self.cell]


def _narrow(*counts: IntArray) -> tuple[IntArray, ...]:
    """Cast slot counts, at most 255, to 16 bits: comparing them over all slots is then four times faster."""
    return tuple(count.astype(np.int16) for count in counts)


def _stable_order(key: IntArray) -> IntArray:
    """Sort stably; a narrow range goes through NumPy's radix sort, which takes 16 bits only."""
    shifted = key - key.min()
    return np.argsort(shifted.astype(np.uint16) if shifted.max() < 1 << 16 else shifted, kind="stable")
