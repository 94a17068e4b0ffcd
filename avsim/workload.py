"""What a closed loop serves: a dense trace laid out for walking, and seeded sequences of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim.errors import InputError
from avsim.sources.base import Trace
from avsim.types import BoolArray, F32Array, IntArray

__all__ = [
    "Pool",
    "fill_missing",
    "keyed_uniform",
    "request_sequences",
    "requests_for",
    "resample_units",
    "split_units",
]


@dataclass(frozen=True, slots=True)
class Pool:
    """A dense trace as arrays: the block at output position x of request r is row `start[r] + x`.

    Attributes:
        num_slots: K.
        start, prompt_len, output_len: per request, int `[num_requests]`.
        unit: bootstrap unit of each request: requests with the same content share one, int `[num_requests]`.
        num_accepted: leading slots that the target accepts at full admission, int `[rows]`.
        num_recorded: slots that the trace holds, int `[rows]`.
        num_drafted: slots that an engine drafts, int `[rows]`: those recorded, or K where the trace lacks what lies
            past the end of an output.
        features: float32 `[K, rows]`; slots beyond `num_recorded` are filled with the slot's mean, as an engine
            that does not know where the output ends sees drafts like any other there.
        unfit: rows whose labels must not be learned from, bool `[rows]`.
    """

    num_slots: int
    start: IntArray
    prompt_len: IntArray
    output_len: IntArray
    unit: IntArray
    num_accepted: IntArray
    num_recorded: IntArray
    num_drafted: IntArray
    features: dict[str, F32Array]
    unfit: BoolArray

    @property
    def num_units(self) -> int:
        return len(np.unique(self.unit))

    @classmethod
    def from_trace(cls, trace: Trace, features: Sequence[str] = (), *, num_slots: int | None = None) -> Pool:
        """Load a dense trace; `label` among the features is made from the verdicts.

        Raises:
            InputError: the trace is not dense, has gaps, or lacks a feature.
        """
        if trace.card.kind != "dense":
            raise InputError(
                f"{trace.path}: an on-policy trace holds only the blocks that its engine ran; a closed loop needs a "
                "dense trace (use --loop open)"
            )
        blocks = trace.blocks([name for name in features if name != "label"], num_slots=num_slots)
        output_len = trace.requests["output_len"].to_numpy().astype(np.int64)
        counts = np.bincount(blocks.request, minlength=len(output_len))
        start = np.concatenate(([0], np.cumsum(counts)[:-1]))
        if not np.array_equal(blocks.position, np.arange(len(blocks)) - start[blocks.request]):
            row = int(np.argmax(blocks.position != np.arange(len(blocks)) - start[blocks.request]))
            raise InputError(f"{trace.path}: block row {row} leaves a gap: a dense trace has a block at every position")
        if (counts < output_len - 1).any():
            row = int(np.argmax(counts < output_len - 1))
            raise InputError(
                f"{trace.path}: request row {row} has {counts[row]} blocks for {output_len[row]} output tokens; a "
                "dense trace has a block at every position"
            )
        if (output_len <= 1).all():
            raise InputError(f"{trace.path}: no request has more than one output token, so there is nothing to decode")
        slots = num_slots or trace.card.num_speculative_tokens
        slot = np.arange(slots)[:, None]
        recorded = slot < blocks.num_drafted
        arrays = {name: fill_missing(array, recorded) for name, array in blocks.features.items()}
        if "label" in features:
            arrays["label"] = (slot < blocks.num_accepted).astype(np.float32)
        _, unit = np.unique(trace.requests["source"].to_numpy(), return_inverse=True)
        return cls(
            slots,
            start,
            trace.requests["prompt_len"].to_numpy().astype(np.int64),
            output_len,
            unit,
            blocks.num_accepted,
            blocks.num_drafted,
            blocks.num_drafted if trace.card.complete_blocks else np.full(len(blocks), slots),
            arrays,
            np.zeros(len(blocks), dtype=bool) if blocks.unfit is None else blocks.unfit,
        )


def fill_missing(array: F32Array, recorded: BoolArray) -> F32Array:
    """Fill slots that a trace lacks with the mean of their slot, `[K, n]`."""
    if recorded.all():
        return array
    count = np.maximum(recorded.sum(axis=1), 1)
    mean = np.where(recorded, array, np.float32(0)).sum(axis=1, dtype=np.float64) / count
    return np.where(recorded, array, mean[:, None]).astype(np.float32)


def requests_for(pool: Pool, num_reqs: int, steps: int) -> int:
    """Return how many requests keep `num_reqs` places busy for some steps, however much is accepted."""
    tokens = num_reqs * steps * (pool.num_slots + 1)
    return int(tokens / max(1.0, (pool.output_len - 1).mean())) + 2 * num_reqs


def keyed_uniform(first: IntArray, second: IntArray) -> F32Array:
    """Return a number in [0, 1) for each pair of keys, float32: the same for the same pair, however it is reached.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).

    >>> a, b = keyed_uniform(np.array([1, 1]), np.array([2, 2]))
    >>> bool(a == b), bool(0 <= a < 1)
    (True, True)
    """
    x = first.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + second.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def split_units(unit: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Split requests into a calibration and a judged half, whole units at a time; returns request indices."""
    rng = np.random.default_rng([seed, 0x5917])
    order = rng.permutation(np.unique(unit))
    calibration = np.isin(unit, order[: len(order) // 2])
    return np.flatnonzero(calibration), np.flatnonzero(~calibration)


def resample_units(requests: IntArray, unit: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw units with replacement and return all requests of each draw."""
    units = np.unique(unit[requests])
    members = [requests[unit[requests] == u] for u in units]
    return np.concatenate([members[i] for i in rng.integers(len(units), size=len(units))])


def request_sequences(samples: Sequence[IntArray], minimum: int, seeds: Sequence[Sequence[int]]) -> IntArray:
    """Return one request sequence per sample: whole permutations until `minimum` is reached; −1 pads the end.

    Args:
        samples: request indices of each run.
        minimum: N is the smallest multiple of the sample's length that is at least this.
        seeds: the seed of each run; the same seed gives the same sequence to every arm.

    Returns:
        int64 `[runs, N]`.
    """
    sequences = []
    for sample, seed in zip(samples, seeds, strict=True):
        rng = np.random.default_rng(list(seed))
        rounds = -(-max(minimum, len(sample)) // len(sample))
        sequences.append(np.concatenate([rng.permutation(sample) for _ in range(rounds)]))
    out = np.full((len(sequences), max(map(len, sequences))), -1, dtype=np.int64)
    for row, sequence in zip(out, sequences, strict=True):
        row[: len(sequence)] = sequence
    return out
