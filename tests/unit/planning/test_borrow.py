"""What is borrowed from a trace, against scikit-learn on a walk written out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from avsim import estimators
from avsim.errors import InputError
from avsim.planning.borrow import _calibration, _lag_correlation, borrow
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.sources import Trace, open_trace
from avsim.workload import Pool


def walk(pool: Pool, requests: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows and requests of the blocks that decoding at full depth verifies, one request after the other."""
    rows, owner = [], []
    for request in requests:
        position = 0
        while position < pool.output_len[request] - 1:
            row = int(pool.start[request] + position)
            rows.append(row)
            owner.append(int(request))
            position += int(pool.num_accepted[row]) + 1
    return rows, owner


def test_borrowed_numbers_equal_scikit_learn_on_the_same_walk(greedy: Trace) -> None:
    """Another path: a plain walk, and the bare feature, which ranks as a logistic regression of it does."""
    found = borrow(greedy)
    pool = Pool.from_trace(greedy, ["log_odds"])
    rows, owner = (np.array(numbers) for numbers in walk(pool, np.arange(len(pool.start))))
    same = owner[1:] == owner[:-1]
    correlation = []
    for slot in range(pool.num_slots):
        reached = (pool.num_accepted[rows] >= slot) & (pool.num_recorded[rows] > slot) & ~pool.unfit[rows]
        feature, label = pool.features["log_odds"][slot, rows], pool.num_accepted[rows] > slot
        assert found.acceptance.conditional[slot] == pytest.approx(label[reached].mean(), abs=1e-9)
        # Slope and intercepts move while the estimator learns, which costs it little against the feature itself.
        assert found.auc[slot] == pytest.approx(roc_auc_score(label[reached], feature[reached]), abs=0.01)
        correlation.append(np.corrcoef(feature[:-1][same], feature[1:][same])[0, 1])
    assert found.request_share == pytest.approx(np.mean(correlation), abs=0.02)
    assert found.num_requests == len(pool.start)


def test_quality_is_scored_on_requests_that_were_not_learned_from(greedy: Trace) -> None:
    """A trace whose feature is noise has an AUC of a coin."""
    noise = borrow(_Shuffled(greedy), "online-logistic")
    assert noise.auc.mean() == pytest.approx(0.5, abs=0.04)
    assert borrow(greedy).auc.mean() > 0.7
    assert borrow(greedy).auc.tolist() == borrow(greedy).auc.tolist()


def test_learned_and_scored_requests_share_no_content(greedy: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []

    def listen(pool: Pool, arm: Arm, sequences: np.ndarray, *args: Any, **options: Any) -> SimulationResult:
        walks.append((pool, np.unique(pool.unit[sequences[sequences >= 0]]), options.get("states") is not None))
        return simulate(pool, arm, sequences, *args, **options)

    monkeypatch.setattr("avsim.planning.borrow.simulate", listen)
    borrow(greedy)
    assert [scored for _, _, scored in walks] == [False, True, False, True]
    scored = np.concatenate([units for _, units, judged in walks if judged])
    assert sorted(scored) == sorted(np.unique(walks[0][0].unit))
    for (_, learned, _), (_, judged, _) in zip(walks[::2], walks[1::2], strict=True):
        assert not np.isin(judged, learned).any()


class _Shuffled:
    """A trace whose log-odds stand at other blocks."""

    def __init__(self, trace: Trace) -> None:
        self.card, self.path, self.requests, self._trace = trace.card, trace.path, trace.requests, trace

    def blocks(self, *args: object, **options: object) -> object:
        blocks = self._trace.blocks(*args, **options)  # type: ignore[arg-type]
        whole = np.flatnonzero(blocks.num_drafted == blocks.num_drafted.max())  # others lack features
        order = np.arange(len(blocks))
        order[whole] = np.random.default_rng(5).permutation(whole)
        return replace(blocks, features={name: array[:, order] for name, array in blocks.features.items()})


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (1.6, -0.4), (0.7, 0.5)])
def test_calibration_is_found_again(slope: float, offset: float) -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(0.4, 1.5, 200_000)
    label = rng.random(len(truth)) < expit(truth)
    found = _calibration(slope * truth + offset, label)
    assert found == pytest.approx((slope, offset), abs=0.02)


def test_correlation_from_block_to_block_is_found_again() -> None:
    rng = np.random.default_rng(4)
    request = np.repeat(np.arange(400), 25)
    share = 0.3
    common = rng.standard_normal(400)[request]
    logits = np.sqrt(share) * common + np.sqrt(1 - share) * rng.standard_normal((2, len(request)))
    order = rng.permutation(400)[request].argsort(kind="stable")  # requests in another order, blocks in theirs
    assert _lag_correlation(logits[:, order], request[order]) == pytest.approx(share, abs=0.03)
    assert _lag_correlation(np.ones((2, 50)), np.zeros(50, dtype=int)) == 0.0


def test_confidences_that_say_nothing_are_at_chance(greedy: Trace) -> None:
    assert borrow(greedy, "position-rate").auc.mean() == pytest.approx(0.5, abs=0.05)


def test_a_trace_that_cannot_be_borrowed_from_is_refused(greedy: Trace) -> None:
    live = open_trace(greedy.path.parent / "smollm2-eagle-live")
    with pytest.raises(InputError, match="on-policy"):
        borrow(live)
    with pytest.raises(InputError, match="did not record"):
        borrow(open_trace(greedy.path.parent / "smollm2-ngram-greedy"))
    offline = [name for name in estimators.available() if estimators.make(name).offline]
    assert offline
    with pytest.raises(InputError, match=re.escape(offline[0])):
        borrow(greedy, offline[0])
