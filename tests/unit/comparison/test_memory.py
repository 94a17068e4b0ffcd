"""What an estimator keeps of each request is the same in every loop that can serve the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from avsim import estimators
from avsim.comparison.scoring import predict_walk
from avsim.comparison.walk import Table, full_walk
from avsim.costs.linear import step_counter
from avsim.derive import derive_on_policy
from avsim.estimators import Estimator
from avsim.policies import FixedDepth, Policy, StepBatch
from avsim.replay import replay
from avsim.simulate import Arm, simulate
from avsim.sources import Trace
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.testing import Stream, drive
from avsim.types import IntArray
from avsim.workload import Pool, request_sequences

K, SEATS = 3, 4
ESTIMATOR = "request-adaptive:refit_interval=30"


@dataclass(frozen=True)
class _Everything(Policy):
    """Verifies all drafts, but reads confidences, and keeps the live ones."""

    name: ClassVar[str] = "everything"
    uses_confidence: ClassVar[bool] = True

    seen: list[StepBatch] = field(default_factory=list)

    def admit(self, step: StepBatch) -> IntArray:
        self.seen.append(step)
        return step.num_drafted


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Requests that differ much, so that what is kept of one matters."""
    law = SyntheticLaw(num_requests=14, output_len=50, num_speculative_tokens=K, request_sd=2.0, seed=5)
    return write_synthetic(tmp_path_factory.mktemp("differing") / "trace", law)


@pytest.fixture(scope="module")
def live(dense: Trace, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The same requests as an engine would have recorded them: every request once, on SEATS places."""
    return derive_on_policy(dense, tmp_path_factory.mktemp("live") / "trace", FixedDepth(k=K), SEATS)


@pytest.fixture(scope="module")
def pool(dense: Trace) -> Pool:
    return Pool.from_trace(dense, ["log_odds"])


@pytest.fixture(scope="module")
def served(pool: Pool) -> IntArray:
    return request_sequences([np.arange(len(pool.start))], 1, [[0]])[0]


@pytest.fixture(scope="module")
def expected(live: Trace) -> dict[tuple[int, int], np.ndarray]:
    """The open loop's confidences, by request and position."""
    policy = _Everything()
    replay(live, [Arm(policy, estimators.make(ESTIMATOR))], step_counter())
    blocks = live.blocks()
    assert len(policy.seen) > 100
    columns = np.concatenate([step.live[:, 0] for step in policy.seen], axis=1)
    keys = zip(blocks.request.tolist(), blocks.position.tolist(), strict=True)
    return dict(zip(keys, columns.T, strict=True))


def by_request(pool: Pool, rows: IntArray, confidence: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    request = np.searchsorted(pool.start, rows, side="right") - 1
    keys = zip(request.tolist(), (rows - pool.start[request]).tolist(), strict=True)
    return dict(zip(keys, confidence.T, strict=True))


def check(found: dict[tuple[int, int], np.ndarray], expected: dict[tuple[int, int], np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for key, line in expected.items():
        assert found[key] == pytest.approx(line, rel=1e-5), key


def test_the_case_is_one_that_tells(expected: dict[tuple[int, int], np.ndarray], pool: Pool, dense: Trace) -> None:
    """Seats are used again, and without memory the same blocks get quite other confidences."""
    walk = full_walk(pool, np.arange(len(pool.start)), SEATS)
    assert walk.fresh.sum() == len(pool.start) > 2 * SEATS
    plain, _ = predict_walk(estimators.make("bayes-logistic:refit_interval=30"), Table.of_pool(pool, dense), walk)
    other = by_request(pool, walk.rows, plain)
    assert np.mean([np.abs(other[key] - line).max() for key, line in expected.items()]) > 0.05


def test_the_comparisons_walk(
    expected: dict[tuple[int, int], np.ndarray], pool: Pool, dense: Trace, served: IntArray
) -> None:
    walk = full_walk(pool, served, SEATS)
    confidence, state = predict_walk(estimators.make(ESTIMATOR), Table.of_pool(pool, dense), walk)
    assert state.refits > 3
    check(by_request(pool, walk.rows, confidence), expected)


@pytest.mark.parametrize("runs", [1, 2])
def test_the_closed_loop(runs: int, expected: dict[tuple[int, int], np.ndarray], pool: Pool, served: IntArray) -> None:
    """Also beside a run of other requests, in lockstep."""
    sequences = np.stack([served, served[::-1]])[:runs]
    log = simulate(pool, Arm(_Everything(), estimators.make(ESTIMATOR)), sequences, SEATS, step_counter(), log=True).log
    assert log is not None
    active = np.stack(log.active)
    check(by_request(pool, np.stack(log.rows)[active], np.stack(log.confidence, axis=1)[:, active]), expected)


def test_the_contract_suites_loop(expected: dict[tuple[int, int], np.ndarray], pool: Pool, served: IntArray) -> None:
    """`drive` gives each request a column of its own."""
    estimator: Estimator = estimators.make(ESTIMATOR)
    walk = full_walk(pool, served, SEATS)
    step, request = walk.step_of(), np.searchsorted(pool.start, walk.rows, side="right") - 1
    shape = (walk.num_steps, len(pool.start))
    drafted, accepted = np.zeros((2, *shape), dtype=np.int64)
    odds = np.zeros((K, *shape), dtype=np.float32)
    drafted[step, request], accepted[step, request] = K, pool.num_accepted[walk.rows]
    odds[:, step, request] = pool.features["log_odds"][:, walk.rows]
    stream = Stream({"log_odds": odds}, np.zeros(odds.shape), drafted, drafted, accepted)
    driven = drive(estimator, stream)
    check(by_request(pool, walk.rows, driven.confidence[:, step, request]), expected)
