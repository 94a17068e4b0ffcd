"""What an engine reports, and the blocks that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.types import F32Array

__all__ = ["DETAILS", "Finish", "Proposals", "Rows", "Start", "Verdicts"]

DETAILS = ("id", "prompt_len", "temperature", "top_p", "category", "arrival_s")
"""What is known of a request when it starts."""


@dataclass(frozen=True, slots=True)
class Start:
    """A request begins, or goes on after a preemption; `number` counts the recorded requests of this process.

    `details` are the values of `DETAILS`, ready for JSON.
    """

    key: str
    number: int
    details: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """A request ends, and its slot may be used again; `output_len` counts every emitted token."""

    key: str
    number: int = -1
    output_len: int = -1
    aborted: bool = False


# Not frozen, which would double the time to make one: these two are made in every step of the engine.
@dataclass(slots=True, eq=False)
class Proposals:
    """Drafts made in a step: `features` name to float32 `[B, W]`, `draft_ids` int64 `[B, W]`, W ≤ K.

    `positions`, if known, says where their blocks start. Until `check`, everything is as the engine passed it in.
    """

    keys: Sequence[str]
    num_drafted: NDArray[np.int64]
    features: Mapping[str, F32Array]
    draft_ids: NDArray[np.int64] | None = None
    positions: NDArray[np.int64] | None = None

    def check(self, num_slots: int) -> None:
        """Make arrays of everything; check every shape, and that `num_drafted` lies within the features' width.

        Raises:
            ValueError: one is wrong.
        """
        self.num_drafted = _integers(self.num_drafted)
        self.features = {name: np.asarray(values, dtype=np.float32) for name, values in self.features.items()}
        self.draft_ids = None if self.draft_ids is None else _integers(self.draft_ids)
        self.positions = None if self.positions is None else _integers(self.positions)
        num_reqs, width = len(self.keys), num_slots
        for name, values in self.features.items():
            if values.ndim != 2 or len(values) != num_reqs or values.shape[1] > num_slots:
                raise ValueError(f"feature {name} has shape {values.shape} for {num_reqs} requests and K = {num_slots}")
            width = min(width, values.shape[1])
        _check_lengths("propose", num_reqs, self.num_drafted, *(() if self.positions is None else (self.positions,)))
        if num_reqs and not 0 <= self.num_drafted.min() <= self.num_drafted.max() <= width:
            raise ValueError(f"num_drafted is not in 0 … {width}: {self.num_drafted.tolist()}")
        _check_ids(self.draft_ids, num_reqs)


@dataclass(slots=True, eq=False)
class Verdicts:
    """Verdicts of a step, int64 `[B]` each; `mask` says why a label is unfit, None where it is fit.

    Until `check`, everything is as the engine passed it in.
    """

    keys: Sequence[str]
    positions: NDArray[np.int64]
    num_admitted: NDArray[np.int64]
    num_accepted: NDArray[np.int64]
    scheduled_ids: NDArray[np.int64] | None = None
    mask: Sequence[str | None] | None = None

    def check(self) -> None:
        """Make arrays of everything, and check every shape.

        Raises:
            ValueError: one is wrong.
        """
        num_reqs = len(self.keys)
        self.positions = _integers(self.positions)
        self.num_admitted, self.num_accepted = _integers(self.num_admitted), _integers(self.num_accepted)
        self.scheduled_ids = None if self.scheduled_ids is None else _integers(self.scheduled_ids)
        _check_lengths("verify", num_reqs, self.positions, self.num_admitted, self.num_accepted)
        if self.mask is not None and len(self.mask) != num_reqs:
            raise ValueError(f"verify got {len(self.mask)} masks for {num_reqs} requests")
        _check_ids(self.scheduled_ids, num_reqs)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Blocks of one step: int64 `[n]` each, features float32 `[F, n, K]`, `draft_ids` int64 `[n, K]`."""

    request: NDArray[np.int64]
    position: NDArray[np.int64]
    num_drafted: NDArray[np.int64]
    num_admitted: NDArray[np.int64]
    num_accepted: NDArray[np.int64]
    features: F32Array
    draft_ids: NDArray[np.int64] | None
    mask: list[str | None]

    def __len__(self) -> int:
        return len(self.request)


def _integers(values: Any) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def _check_lengths(what: str, num_reqs: int, *arrays: NDArray[np.int64]) -> None:
    for array in arrays:
        if array.shape != (num_reqs,):
            raise ValueError(f"{what} got an array of shape {array.shape} for {num_reqs} requests")


def _check_ids(ids: NDArray[np.int64] | None, num_reqs: int) -> None:
    if ids is not None and (ids.ndim != 2 or len(ids) != num_reqs):
        raise ValueError(f"token ids have shape {ids.shape} for {num_reqs} requests")
