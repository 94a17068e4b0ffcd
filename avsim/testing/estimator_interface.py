"""Checks on what an estimator's methods take, return and leave alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from avsim.errors import AvsimError
from avsim.estimators.base import MEMORY, Arrays, Estimator, EstimatorState
from avsim.testing.stream import drive, fresh_memory, grade, make_stream
from avsim.types import F32Array, Observations

__all__ = ["INTERFACE_CHECKS", "same_arrays", "same_state"]

_UNIT = (0, 1)
_RANGES = {
    "label": _UNIT, "confidence": _UNIT, "alpha": _UNIT, "accept_prob": _UNIT, "draft_logprob": (-40, 0),
    "target_logprob": (-40, 0), "entropy": (0, 40), "margin": (0, 40),
}  # fmt: skip


def same_arrays(left: Arrays, right: Arrays) -> bool:
    """Say whether two mappings hold the same arrays bit for bit, types and shapes included."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


def same_state(left: EstimatorState, right: EstimatorState) -> bool:
    """Say whether two states are equal bit for bit."""
    counters = (left.steps_since_refit, left.refits) == (right.steps_since_refit, right.refits)
    return counters and same_arrays(left.params, right.params) and same_arrays(left.stats, right.stats)


def check_output_type(estimator: Estimator) -> None:
    """Confidences are float32 `[K, rows]`, for any number of slots and rows, none included."""
    for slots, rows in ((1, 1), (3, 0), (5, 13), (16, 2)):
        stream = make_stream(estimator.features, num_steps=1, num_reqs=rows, num_slots=slots, trimmed=False)
        p = estimator.predict(estimator.init(slots), stream.inputs(estimator), (slots, rows))
        assert isinstance(p, np.ndarray), f"predict returned a {type(p).__name__}, not an array"
        assert p.dtype == np.float32, f"predict returned {p.dtype}, not float32"
        assert p.shape == (slots, rows), f"predict returned shape {p.shape}, not {(slots, rows)}"


def check_probability_range(estimator: Estimator) -> None:
    """Confidences are finite and in [0, 1], cold and trained, on ordinary features and at features of ±40."""
    stream = make_stream(estimator.features)
    corners = list(product((-40, 0, 40), repeat=len(estimator.features)))
    extreme = {
        name: np.tile(np.array(line, dtype=np.float32).clip(*_RANGES.get(name, (-40, 40))), (stream.num_slots, 1))
        for name, line in zip(estimator.features, zip(*corners, strict=True), strict=False)
    } | fresh_memory(estimator, len(corners))
    for label, state in (("cold", estimator.start(stream.num_slots)), ("trained", drive(estimator, stream).state)):
        for where, features, rows in (
            ("ordinary features", stream.inputs(estimator), int(stream.active.sum())),
            ("features of ±40", extreme, len(corners)),
        ):
            p = estimator.predict(state.params, features, (stream.num_slots, rows))
            assert np.isfinite(p).all(), f"{label}: a confidence is not finite at {where}"
            assert ((p >= 0) & (p <= 1)).all(), f"{label}: confidence {p.min()} … {p.max()} at {where}"


class _Guarded(Mapping[str, F32Array]):
    """The declared columns; asking for any other name fails, even through `get` and `in`."""

    def __init__(self, columns: dict[str, F32Array]):
        self._columns = columns

    def __getitem__(self, name: str) -> F32Array:
        if name not in self._columns:
            raise AssertionError(f"reads the feature {name!r}, which is not in its declared {tuple(self._columns)}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def check_declared_features(estimator: Estimator) -> None:
    """`predict` and `accumulate` read no feature that `features` does not list."""
    stream = make_stream(estimator.features, num_steps=20)
    guarded = _Guarded(stream.inputs(estimator))
    state = estimator.start(stream.num_slots)
    p = estimator.predict(state.params, guarded, (stream.num_slots, int(stream.active.sum())))
    estimator.accumulate(state.stats, grade(stream, guarded, p))


def _graded(estimator: Estimator, num_steps: int = 40) -> tuple[Arrays, dict[str, F32Array], Observations]:
    stream = make_stream(estimator.features, num_steps=num_steps)
    features = stream.inputs(estimator)
    params = estimator.init(stream.num_slots)
    p = estimator.predict(params, stream.inputs(estimator), (stream.num_slots, int(stream.active.sum())))
    return params, features, grade(stream, features, p.copy())


def check_predict_is_pure(estimator: Estimator) -> None:
    """`predict` changes neither features nor parameters, and gives the same answer twice."""
    params, features, observations = _graded(estimator)
    before = copy.deepcopy((dict(params), features))
    num_slots, rows = observations.confidence.shape
    first = estimator.predict(params, features, (num_slots, rows)).copy()
    assert same_arrays(features, before[1]), "predict changed the features that it was given"
    assert same_arrays(params, before[0]), "predict changed the parameters that it was given"
    second = estimator.predict(params, features, (num_slots, rows))
    assert np.array_equal(first, second), "predict gave two answers to the same question"


def check_learning_is_pure(estimator: Estimator) -> None:
    """`accumulate` and `refit` change nothing that they were given."""
    params, features, observations = _graded(estimator)
    stats = estimator.accumulate(estimator.zero_stats(5), observations)
    before = copy.deepcopy((dict(params), dict(stats), observations))
    estimator.accumulate(stats, observations)
    assert same_arrays(stats, before[1]), "accumulate changed the statistics that it was given"
    assert same_arrays(features, before[2].features), "accumulate changed the features that it was given"
    for name in ("confidence", "observed", "accepted", "step_starts", "num_admitted"):
        same = np.array_equal(getattr(observations, name), getattr(before[2], name))
        assert same, f"accumulate changed observations.{name}"
    estimator.refit(params, stats)
    assert same_arrays(params, before[0]), "refit changed the parameters that it was given"
    assert same_arrays(stats, before[1]), "refit changed the statistics that it was given"


def check_only_refit_changes_predictions(estimator: Estimator) -> None:
    """Accumulating leaves predictions alone until a refit."""
    params, features, observations = _graded(estimator)
    shape = observations.confidence.shape
    before = estimator.predict(params, copy.deepcopy(features), (shape[0], shape[1])).copy()
    # Labels that no earlier call has seen, so that a hidden memory cannot agree by chance.
    unlikely = replace(observations, accepted=~observations.accepted)
    estimator.accumulate(estimator.zero_stats(shape[0]), unlikely)
    after = estimator.predict(params, features, (shape[0], shape[1]))
    assert np.array_equal(before, after), "accumulate changed what predict returns for the same parameters"


def check_state_json(estimator: Estimator) -> None:
    """A state survives JSON bit for bit, and a fresh estimator goes on from it as if nothing had happened."""
    stream = make_stream(estimator.features)
    half = len(stream) // 2
    first = drive(estimator, stream.steps(0, half))
    state = first.state
    try:
        back = EstimatorState.from_json(json.loads(json.dumps(state.to_json())))
    except (AvsimError, TypeError, ValueError) as error:
        raise AssertionError(f"the state does not go through JSON: {error}") from error
    assert same_state(state, back), "the state that JSON gives back is another one"
    rest = stream.steps(half, len(stream))
    straight = drive(estimator, rest, state=state, memory=first.memory)
    resumed = drive(copy.deepcopy(estimator), rest, state=back, memory=first.memory)
    assert same_state(straight.state, resumed.state), "learning from the restored state ends elsewhere"
    assert np.array_equal(straight.confidence, resumed.confidence), "the restored state predicts otherwise"


def check_state_size(estimator: Estimator) -> None:
    """The state holds the same arrays, of the same shapes and types, however long it learns."""
    stream = make_stream(estimator.features, num_steps=3 * estimator.refit_interval + 7)
    start = estimator.start(stream.num_slots)
    end = drive(estimator, stream).state
    for label, was, now in (("parameters", start.params, end.params), ("statistics", start.stats, end.stats)):
        before = {name: (array.dtype.name, array.shape) for name, array in was.items()}
        after = {name: (array.dtype.name, array.shape) for name, array in now.items()}
        assert before == after, f"the {label} went from {before} to {after}"


def check_memory(estimator: Estimator) -> None:
    """What is kept of requests is finite float32 `[D, rows]`, each from its own block only, and nothing is changed."""
    size = estimator.memory_size
    if not size:
        return
    params, features, observations = _graded(estimator, num_steps=1)
    rng = np.random.default_rng(0)
    rows = observations.confidence.shape[1]
    for _ in range(50):
        before = copy.deepcopy((dict(params), dict(observations.features)))
        kept = estimator.remember(params, observations)
        assert same_arrays(params, before[0]), "remember changed the parameters that it was given"
        assert same_arrays(observations.features, before[1]), "remember changed the features that it was given"
        assert str(kept.dtype) == "float32", f"memory is {kept.dtype}, not float32"
        assert kept.shape == (size, rows), f"memory is {kept.dtype} {kept.shape}"
        assert np.isfinite(kept).all(), "what is kept of a request is not finite"
        other = replace(
            observations, accepted=np.where(np.arange(rows) > 0, ~observations.accepted, observations.accepted)
        )
        assert np.array_equal(estimator.remember(params, other)[:, 0], kept[:, 0]), (
            "a request remembers another's verdict"
        )
        held = features | {MEMORY: kept}
        p = estimator.predict(params, held, observations.confidence.shape)
        alone = {name: column[:, :1] for name, column in held.items()}
        first = estimator.predict(params, alone, (len(p), 1))[:, 0]
        assert np.allclose(first, p[:, 0], rtol=0, atol=1e-6), "a confidence depends on what is kept of another request"
        observations = replace(observations, features=held, confidence=p, accepted=rng.random(p.shape) < p)


INTERFACE_CHECKS = (
    check_memory,
    check_output_type,
    check_probability_range,
    check_declared_features,
    check_predict_is_pure,
    check_learning_is_pure,
    check_only_refit_changes_predictions,
    check_state_json,
    check_state_size,
)
