"""Checks on what an estimator learns, and on what it must not learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from avsim.estimators.base import MEMORY, Arrays, Estimator, EstimatorState
from avsim.policies.adaptive import Adaptive
from avsim.testing.estimator_interface import same_arrays, same_state
from avsim.testing.stream import Stream, drive, fresh_memory, grade, log_loss, make_stream
from avsim.types import F32Array, IntArray, Observations

__all__ = ["LEARNING_CHECKS"]

_REFITS = 10
_MANY = 64  # an estimator that forgets at each refit knows a rate no better than one interval's sample of it


def check_statistics_add(estimator: Estimator) -> None:
    """Accumulating a block in pieces gives the statistics of the whole block, to 1e-9 of the slots counted."""
    stream = make_stream(estimator.features, num_steps=61)
    whole = _accumulate(estimator, stream, [0, 61])
    for cuts in ([0, 1, 61], [0, 30, 31, 61], list(range(62))):
        pieces = _accumulate(estimator, stream, cuts)
        for name, value in whole.stats.items():
            assert np.issubdtype(value.dtype, np.number), f"statistic {name!r} holds {value.dtype}, not numbers"
            gap = np.abs(pieces.stats[name].astype(np.float64) - value.astype(np.float64)).max(initial=0.0)
            scale = max(float(np.abs(value).max(initial=0.0)), float(stream.active.sum()))
            assert gap <= 1e-9 * scale, (
                f"statistic {name!r} depends on how a block is split: off by {gap:.3g} in {len(cuts) - 1} pieces"
            )


def check_block_split_invariance(estimator: Estimator) -> None:
    """Driven in blocks of 1, 7 and 100 steps: the same admissions, and the same log-loss to 1e-9."""
    stream = make_stream(estimator.features, num_steps=2 * estimator.refit_interval + 30)
    runs = {size: drive(estimator, stream, block_steps=size, policy=Adaptive()) for size in (1, 7, 100)}
    loss = {size: log_loss(stream, run) for size, run in runs.items()}
    for size in (7, 100):
        same = np.array_equal(runs[size].admitted, runs[1].admitted)
        assert same, f"decisions in blocks of {size} steps differ from those step by step"
        gap = abs(loss[size] - loss[1]) / loss[1]
        assert gap <= 1e-9, f"log-loss in blocks of {size} steps differs by {gap:.3g} from that step by step"


def check_no_look_ahead(estimator: Estimator) -> None:
    """Altering every step after t leaves the predictions up to t as they are."""
    interval = estimator.refit_interval
    stream = make_stream(estimator.features, num_steps=2 * interval + 9, seed=1)
    other = make_stream(estimator.features, num_steps=len(stream), seed=2)
    before = drive(estimator, stream)
    for kept in (interval // 2 + 1, interval + interval // 2 + 1):
        after = drive(estimator, _spliced(stream, other, kept))
        same = np.array_equal(before.confidence[:, :kept], after.confidence[:, :kept])
        assert same, f"predictions of the first {kept} steps changed with what came later"


def check_unobserved_labels(estimator: Estimator) -> None:
    """Flipping the label of every unobserved slot changes nothing that is learned."""

    def flip(observations: Observations) -> Observations:
        return replace(observations, accepted=observations.accepted ^ ~observations.observed)

    _unmoved_by(estimator, flip, "labels")


def check_unobserved_values(estimator: Estimator) -> None:
    """NaN and wild features or confidences in unobserved slots change nothing that is learned.

    Where an estimator learns from the cumulative label of every verified slot, only trimmed slots are spoiled.
    """
    for garbage in (np.float32(np.nan), np.float32(1e30)):

        def spoil(observations: Observations, value: np.float32 = garbage) -> Observations:
            known = observations.verified if estimator.cumulative else observations.observed

            def hidden(column: F32Array) -> F32Array:
                return np.where(known, column, value)

            columns = {
                name: column if name == MEMORY else hidden(column) for name, column in observations.features.items()
            }
            return replace(observations, features=columns, confidence=hidden(observations.confidence))

        _unmoved_by(estimator, spoil, f"values of {garbage}")


def check_request_order(estimator: Estimator) -> None:
    """The order of the requests inside a step is irrelevant, to rounding."""
    stream = make_stream(estimator.features)
    order = np.random.default_rng(3).permuted(np.tile(np.arange(6), (len(stream), 1)), axis=1)
    if estimator.memory_size:
        order[:] = order[0]  # a column is a request, of which something is kept from step to step
    shuffled = Stream(
        {name: np.take_along_axis(column, order[None], axis=2) for name, column in stream.features.items()},
        np.take_along_axis(stream.probability, order[None], axis=2),
        *(np.take_along_axis(c, order, axis=1) for c in (stream.num_drafted, stream.num_admitted, stream.num_accepted)),
    )
    plain = np.take_along_axis(drive(estimator, stream).confidence, order[None], axis=2)
    gap = float(np.abs(plain - drive(estimator, shuffled).confidence).max())
    assert gap <= 1e-5, f"shuffling the requests inside each step moved a confidence by {gap:.3g}"


def check_same_input_same_result(estimator: Estimator) -> None:
    """Two runs over the same stream give the same confidences and the same state, bit for bit."""
    stream = make_stream(estimator.features)
    first, second = drive(estimator, stream), drive(estimator, stream)
    assert np.array_equal(first.confidence, second.confidence), "a second run over the same stream predicts otherwise"
    assert same_state(first.state, second.state), "a second run over the same stream ends in another state"


def check_degenerate_data(estimator: Estimator) -> None:
    """On all-accepted, all-rejected and separable data, confidences and parameters stay finite over 30 refits."""
    num_steps = 30 * estimator.refit_interval
    base = make_stream(estimator.features, num_steps=num_steps, num_reqs=2, num_slots=3, slope=1e3, trimmed=False)
    ends: dict[str, IntArray] = {
        "all-accepted": np.full_like(base.num_accepted, 3),
        "all-rejected": np.zeros_like(base.num_accepted),
        "separable": base.num_accepted,
    }
    for label, num_accepted in ends.items():
        driven = drive(estimator, replace(base, num_accepted=num_accepted))
        p = driven.confidence
        assert np.isfinite(p).all(), f"{label} data: a confidence is not finite"
        assert ((p >= 0) & (p <= 1)).all(), f"{label} data: confidence {p.min()} … {p.max()}"
        for name, value in driven.state.params.items():
            assert np.isfinite(value).all(), f"{label} data: parameter {name!r} is not finite"


def check_starved_slot(estimator: Estimator) -> None:
    """A slot that is never verified keeps the confidence of a cold start, at features of 0."""
    stream = make_stream(estimator.features, num_steps=5 * estimator.refit_interval)
    stream = replace(stream, num_admitted=np.minimum(stream.num_admitted, 3))

    def at_zero(params: Arrays) -> F32Array:
        zero = {name: np.zeros((stream.num_slots, 1), dtype=np.float32) for name in estimator.features}
        zero |= fresh_memory(estimator, 1)
        return estimator.predict(params, zero, (stream.num_slots, 1))[3:].copy()

    cold = at_zero(estimator.init(stream.num_slots))
    late = at_zero(drive(estimator, stream).state.params)
    assert np.array_equal(cold, late), f"slots that were never verified went from {cold.ravel()} to {late.ravel()}"


def check_recovers_rates(estimator: Estimator) -> None:
    """Where acceptance depends on the slot alone, the mean confidence of each slot comes within 0.02 of it."""
    rates = np.array([0.85, 0.6, 0.75, 0.9])
    apart, stream = (
        make_stream(
            estimator.features,
            num_steps=_REFITS * estimator.refit_interval,
            num_reqs=_MANY,
            num_slots=4,
            slope=0.0,
            intercepts=np.log(rates / (1 - rates)).tolist(),
            trimmed=False,
            seed=seed,
        )
        for seed in (1, 0)
    )
    late = slice(len(stream) - estimator.refit_interval, None)
    driven = drive(estimator, stream, state=_learned(estimator, apart))
    confidence = driven.confidence[:, late].astype(np.float64)
    reached = np.arange(4)[:, None, None] <= stream.num_accepted[late]
    mean = (confidence * reached).sum(axis=(1, 2)) / reached.sum(axis=(1, 2))
    # An estimator that knows the labels follows the sample, so the sample is what it is compared with as well.
    label = np.arange(4)[:, None, None] < stream.num_accepted[late]
    sample = (label & reached).sum(axis=(1, 2)) / reached.sum(axis=(1, 2))
    gap = np.minimum(np.abs(mean - rates), np.abs(mean - sample)).max()
    assert gap <= 0.02, f"mean confidence {mean.round(3)} where the acceptance is {rates}"


def check_recovers_logistic_law(estimator: Estimator) -> None:
    """Where p = σ(0.8·log-odds + b_k), late confidences come within 0.02 (root mean square) of the law."""
    num_steps = _REFITS * estimator.refit_interval
    apart, stream = (
        make_stream(estimator.features, num_steps=num_steps, num_reqs=_MANY, trimmed=False, seed=seed)
        for seed in (1, 0)
    )
    late = slice(len(stream) - estimator.refit_interval, None)
    reached = np.arange(stream.num_slots)[:, None, None] <= stream.num_accepted[late]
    confidence = drive(estimator, stream, state=_learned(estimator, apart)).confidence
    error = (confidence - stream.probability)[:, late][reached]
    rms = float(np.sqrt(np.mean(error**2)))
    assert rms <= 0.02, f"confidences are {rms:.3f} from the law after {_REFITS} refits"


def _accumulate(estimator: Estimator, stream: Stream, cuts: list[int]) -> EstimatorState:
    state = estimator.start(stream.num_slots)
    stats = state.stats
    for start, stop in pairwise(cuts):
        part = stream.steps(start, stop)
        shape = (stream.num_slots, int(part.active.sum()))
        p = estimator.predict(state.params, part.inputs(estimator), shape)
        stats = estimator.accumulate(stats, grade(part, part.inputs(estimator), p.copy()))
    return EstimatorState(state.params, stats)


def _unmoved_by(estimator: Estimator, change: Callable[[Observations], Observations], what: str) -> None:
    stream = make_stream(estimator.features, num_steps=60)
    shape = (stream.num_slots, int(stream.active.sum()))
    state = estimator.start(stream.num_slots)
    p = estimator.predict(state.params, stream.inputs(estimator), shape).copy()
    observations = grade(stream, stream.inputs(estimator), p)
    stats = estimator.accumulate(state.stats, observations)
    with np.errstate(all="ignore"):
        moved = estimator.accumulate(state.stats, change(observations))
    assert same_arrays(stats, moved), f"{what} in unobserved slots changed the statistics"
    params = estimator.refit(state.params, stats)[0]
    assert same_arrays(params, estimator.refit(state.params, moved)[0]), f"{what} in unobserved slots changed a refit"
    if estimator.memory_size:
        with np.errstate(all="ignore"):
            kept = estimator.remember(state.params, change(observations))
        same = np.array_equal(kept, estimator.remember(state.params, observations))
        assert same, f"{what} in unobserved slots changed what is kept of a request"


def _learned(estimator: Estimator, stream: Stream) -> EstimatorState:
    """Return the cold start, or for an offline estimator what it fits to a stream of the same law kept apart."""
    if not estimator.offline:
        return estimator.start(stream.num_slots)
    features = stream.inputs(estimator)
    state = estimator.start(stream.num_slots)
    p = estimator.predict(state.params, features, (stream.num_slots, int(stream.active.sum()))).copy()
    return replace(state, params=estimator.fit(stream.num_slots, grade(stream, features, p)))


def _spliced(stream: Stream, other: Stream, kept: int) -> Stream:
    def join(left: np.ndarray, right: np.ndarray, axis: int) -> np.ndarray:
        first, _ = np.split(left, [kept], axis=axis)
        _, second = np.split(right, [kept], axis=axis)
        return np.concatenate([first, second], axis=axis)

    return Stream(
        {name: join(column, other.features[name], 1) for name, column in stream.features.items()},
        join(stream.probability, other.probability, 1),
        join(stream.num_drafted, other.num_drafted, 0),
        join(stream.num_admitted, other.num_admitted, 0),
        join(stream.num_accepted, other.num_accepted, 0),
    )


LEARNING_CHECKS = (
    check_statistics_add,
    check_block_split_invariance,
    check_no_look_ahead,
    check_unobserved_labels,
    check_unobserved_values,
    check_request_order,
    check_same_input_same_result,
    check_degenerate_data,
    check_starved_slot,
    check_recovers_rates,
    check_recovers_logistic_law,
)
