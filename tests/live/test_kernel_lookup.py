"""The kernels of `isotonic` and `beta-bernoulli` against their NumPy forms, and against exact arithmetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from avsim import estimators
from avsim.errors import InputError
from avsim.estimators.base import EstimatorState, advance
from avsim.estimators.beta_bernoulli import EDGES
from avsim.estimators.isotonic import CENTRES, Isotonic
from avsim.features import sigmoid
from avsim.kernels import device_estimator
from avsim.kernels.laws import GridLaw
from avsim.types import Observations

DEVICE = torch.device("cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1" else "cpu")
SPECS = (
    "isotonic",
    "isotonic:shared=true,prior_weight=0.01,discount=1",
    "isotonic:shared_weight=0.5,prior_weight=1e-3,discount=0.6",
    "beta-bernoulli",
    "beta-bernoulli:prior_weight=0.3,discount=0.7",
    "beta-bernoulli:discount=1",
)


def make(spec: str, refit_interval: int) -> estimators.Estimator:
    return estimators.make(f"{spec}{',' if ':' in spec else ':'}refit_interval={refit_interval}")


def adversarial() -> NDArray[np.float32]:
    """Log-odds at, just below and just above every edge of both estimators, and all that is not a number."""
    between_centres = (np.arange(-2, 2 * len(CENTRES) + 2) / 2 / 3 - 5).astype(np.float32)
    edges = np.concatenate([between_centres, EDGES, np.arange(-8, 20) / 2]).astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    near = [edges, np.nextafter(edges, up), np.nextafter(edges, down), np.nextafter(np.nextafter(edges, down), down)]
    tiny = np.float32([1e-45, -1e-45, 1e-30, -1e-30, -1e-9, -1.2e-7, 0.0, -0.0])
    odd = np.float32([np.nan, np.inf, -np.inf, 40, -40, 1e30, -1e30])
    return np.unique(np.concatenate([*near, tiny, odd]))


HARD = adversarial()


def int32(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(DEVICE)


@dataclass
class Pair:
    """Both forms of an estimator, fed with the same features and verdicts; the kernels never see a logit."""

    numpy: estimators.Estimator
    max_num_reqs: int
    num_slots: int

    def __post_init__(self) -> None:
        self.kernels = device_estimator(self.numpy, self.max_num_reqs, self.num_slots, DEVICE)
        self.state = self.numpy.start(self.num_slots)
        self.features = np.zeros((self.max_num_reqs, self.num_slots), dtype=np.float32)

    def draft(self, features: NDArray[np.float32]) -> None:
        self.features = features
        self.kernels.features[0].copy_(torch.from_numpy(features))

    def step(self, slots: Any, accepted: Any, admitted: Any, sampled: Any) -> None:
        """One step of requests in these slots; a slot of −1 pads the batch."""
        rows = np.asarray(slots)
        num_sampled = np.where(sampled, accepted + 1, 0)
        self.kernels.step(int32(rows), int32(num_sampled), int32(admitted - accepted))
        real = rows >= 0
        columns = {"log_odds": np.ascontiguousarray(self.features[rows[real]].T)}
        confidence = np.full_like(columns["log_odds"], 0.5)
        starts = np.array([0, int(real.sum())])
        seen = Observations.grade(columns, confidence, np.asarray(admitted)[real], np.asarray(accepted)[real], starts)
        self.summed = self.numpy.accumulate(self.state.stats, seen)
        self.state = advance(self.numpy, self.state, seen, 1)

    def random_step(self, rng: np.random.Generator) -> None:
        """Verdicts that depend on the log-odds, so that curves rise, with violations."""
        shape = (self.max_num_reqs, self.num_slots)
        hard = rng.random(shape) < 0.5
        self.draft(np.where(hard, rng.choice(HARD, shape), rng.normal(1, 4, shape)).astype(np.float32))
        slots = rng.permutation(self.max_num_reqs)[: rng.integers(1, self.max_num_reqs + 1)]
        sampled = rng.random(len(slots)) < 0.9
        admitted = np.where(sampled, rng.integers(0, self.num_slots + 1, len(slots)), 0)
        p = sigmoid(0.4 * np.nan_to_num(self.features[slots], nan=-5, posinf=40, neginf=-40))
        would = np.cumprod(rng.random(p.shape) < p, axis=1).sum(axis=1)
        self.step(slots, np.minimum(would, admitted), admitted, sampled)

    def table(self) -> NDArray[np.float32]:
        law = self.kernels.law
        assert isinstance(law, GridLaw)
        return law.table.cpu().numpy()


def assert_same_arrays(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        np.testing.assert_array_equal(ours[name], value, err_msg=f"{where}: {name}")


# --- isotonic curves ------------------------------------------------------------------------------------------------


def exact_fit(hits: list[Fraction], seen: list[Fraction]) -> list[Fraction]:
    """Pool adjacent violators in rational numbers."""
    pools: list[tuple[Fraction, Fraction, int]] = []
    for hit, mass in zip(hits, seen, strict=True):
        size = 1
        while pools and pools[-1][0] * mass >= hit * pools[-1][1]:
            other, weight, count = pools.pop()
            hit, mass, size = hit + other, mass + weight, size + count
        pools.append((hit, mass, size))
    return [hit / mass for hit, mass, size in pools for _ in range(size)]


def exact_curves(estimator: Isotonic, stats: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return each slot's curve, rounded once from rational numbers, `[K, 64]`."""
    accepted, observed = ([[Fraction(float(v)) for v in row] for row in stats[key]] for key in ("accepted", "observed"))

    def shrunk(s: list[Fraction], n: list[Fraction], towards: list[Fraction], weight: float) -> list[Fraction]:
        m = Fraction(weight)
        hits = [hit + m * to for hit, to in zip(s, towards, strict=True)]
        return exact_fit(hits, [count + m for count in n])

    prior = [Fraction(float(value)) for value in sigmoid(0.5 * CENTRES - 0.2)]
    pooled = ([sum(column, Fraction(0)) for column in zip(*rows, strict=True)] for rows in (accepted, observed))
    common = shrunk(*pooled, prior, estimator.prior_weight)
    if estimator.shared:
        curves = [common] * len(accepted)
    else:
        curves = [shrunk(s, n, common, estimator.shared_weight) for s, n in zip(accepted, observed, strict=True)]
    return np.array([[float(value) for value in curve] for curve in curves])


def curve_tolerance(num_slots: int) -> float:
    """Bound how far a curve of the kernels may lie from the exact one before it is rounded to float32.

    Let u = 2⁻⁵³. All sums are of numbers ≥ 0, so m additions in any order err by at most m·u relatively (Higham §4.2).
    The curve of all slots: K − 1 additions over slots, 1 product and 1 addition for the prior, 63 additions along the
    bins, in numerator and (without the product) denominator, and 1 division: (2K + 128) u. Each slot's own: 130 u, and
    the error of what it is shrunk towards, in a mean with weights ≤ 1. The minimum and maximum of perturbed means are
    off by no more than the means. Every mean is at most 1; second-order terms and the rounding of the exact value to
    float64 are covered by 2 u more.
    """
    return (2 * num_slots + 128 + 130 + 2) * 2.0**-53


def assert_curves(estimator: Isotonic, stats: Mapping[str, Any], table: NDArray[np.float32]) -> None:
    exact, room = exact_curves(estimator, stats), curve_tolerance(len(table))
    assert (table >= (exact - room).astype(np.float32)).all()
    assert (table <= (exact + room).astype(np.float32)).all()
    # NumPy's pools err by 64 merges of four roundings, far below float32: the two are equal or neighbours.
    theirs = estimator.refit({}, stats)[0]["curve"]
    assert (np.abs(table.view(np.int32) - theirs.view(np.int32)) <= 1).all()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("num_slots", "max_num_reqs"), [(1, 1), (4, 9), (3, 300)])
def test_every_step_is_that_of_numpy(spec: str, num_slots: int, max_num_reqs: int) -> None:
    rng = np.random.default_rng([num_slots, max_num_reqs, len(spec)])
    pair = Pair(make(spec, 4), max_num_reqs, num_slots)
    for step in range(10):
        before = pair.kernels.state()
        pair.random_step(rng)
        state = pair.kernels.state()
        assert (state.steps_since_refit, state.refits) == (pair.state.steps_since_refit, pair.state.refits)
        assert_same_arrays(state.stats, pair.state.stats, f"step {step}")
        if isinstance(pair.numpy, Isotonic):
            if state.refits > before.refits:
                assert_curves(pair.numpy, pair.summed, pair.table())
        else:
            assert_same_arrays(state.params, pair.state.params, f"step {step}")
            cells = np.tile(np.arange(-7, 19, dtype=np.float32) / 2, (num_slots, 1))
            expected = pair.numpy.predict(pair.state.params, {"log_odds": cells}, cells.shape)
            np.testing.assert_array_equal(pair.table(), expected)
    assert pair.state.refits == 2


@pytest.mark.parametrize("spec", ["isotonic", "isotonic:prior_weight=1e-3,shared_weight=1e-3", "isotonic:shared=true"])
def test_curves_of_counts_that_are_hard_to_pool(spec: str) -> None:
    rng = np.random.default_rng(5)
    estimator = make(spec, 1)
    assert isinstance(estimator, Isotonic)
    bins = len(CENTRES)
    falling = np.linspace(1, 0, bins)
    many = np.floor(rng.exponential(1e6, bins)) * (rng.random(bins) < 0.3)
    counts = {
        "nobody": (np.zeros(bins), np.zeros(bins)),
        "one bin": (np.eye(bins)[40], np.eye(bins)[40]),
        "all accepted": (np.full(bins, 7.0), np.full(bins, 7.0)),
        "all rejected": (np.zeros(bins), np.full(bins, 1e9)),
        "falling": (np.floor(1e5 * falling), np.full(bins, 1e5)),
        "saw": (np.where(np.arange(bins) % 2, 0.0, 50.0), np.full(bins, 50.0)),
        "ties": (np.full(bins, 2.0), np.full(bins, 4.0)),
        "uneven": (np.floor(many * rng.random(bins)), many),
        "last bin heavy": (np.zeros(bins), np.where(np.arange(bins) == bins - 1, 1e12, 1.0)),
    }
    for name, (accepted, observed) in counts.items():
        pair = Pair(estimator, 2, 3)
        stats = {
            "accepted": np.stack([accepted, 0.1 * accepted[::-1], np.zeros(bins)]),
            "observed": np.stack([observed, 0.1 * observed[::-1], np.zeros(bins)]),
        }
        start = EstimatorState(estimator.init(3), stats, 0, 0)
        pair.kernels.load(start)
        pair.kernels.law.table.fill_(torch.nan)  # whatever was there is overwritten
        pair.kernels.step(int32([0]), int32([0]), int32([0]))
        assert np.isfinite(pair.table()).all(), name
        assert (np.diff(pair.table(), axis=1) >= 0).all(), name
        assert_curves(estimator, stats, pair.table())
        kept = {key: value * estimator.discount for key, value in stats.items()}
        assert_same_arrays(pair.kernels.state().stats, kept, name)


# --- where a value falls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["isotonic", "beta-bernoulli"])
def test_every_edge_case_is_counted_where_numpy_counts_it(spec: str) -> None:
    """A value per request, and a random half of them in each step, so that misplaced ones cannot cancel for long."""
    rng = np.random.default_rng(3)
    pair = Pair(make(spec, 1000), len(HARD), 1)
    pair.draft(HARD[:, None])
    for _ in range(8):
        slots = np.flatnonzero(rng.random(len(HARD)) < 0.5)
        pair.step(slots, slots % 2, np.ones_like(slots), np.ones_like(slots, dtype=bool))
        assert_same_arrays(pair.kernels.state().stats, pair.state.stats, spec)


@pytest.mark.parametrize("spec", ["isotonic", "beta-bernoulli"])
def test_the_law_reads_what_numpy_predicts(spec: str) -> None:
    """`GridLaw` as it is written down, in float32, at every edge case: the very bits that NumPy gives."""
    pair = Pair(make(spec, 3), 40, 2)
    rng = np.random.default_rng(2)
    for _ in range(3):
        pair.random_step(rng)
    pair.kernels.load(pair.state)
    law, table, f = pair.kernels.law, pair.table(), HARD
    one = np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        if law.interpolate:
            place = (f - one(law.lowest)) * one(law.per_unit)
        else:
            place = np.floor(f * one(law.per_unit)) - one(law.lowest * law.per_unit)
        place = np.clip(np.where(np.isnan(place), one(0), place), one(0), one(table.shape[1] - 1))
        cell = np.minimum(np.floor(place), table.shape[1] - 1 - law.interpolate).astype(int)
        read = table[:, cell]
        if law.interpolate:
            read = (place - cell.astype(np.float32)) * (table[:, cell + 1] - read) + read
        expected = pair.numpy.predict(pair.state.params, {"log_odds": np.stack([f, f])}, (2, len(f)))
    np.testing.assert_array_equal(read, expected)
    assert law.features == pair.numpy.features


def test_a_value_just_below_an_edge_is_predicted_from_below() -> None:
    """Three tokens whose log-odds is −1.2e-7: half a unit lower in the table than 0."""
    pair = Pair(make("beta-bernoulli", 3), 1, 1)
    alpha = np.arange(1.0, 16.0)[None]  # another mean in every bin
    params = {"alpha": alpha, "beta": 20 - alpha}
    pair.kernels.load(EstimatorState(params, pair.state.stats, 0, 0))
    logits = torch.tensor([[0.0, 0.0, -15.9]], device=DEVICE)
    confidence = torch.zeros(1, 1, device=DEVICE)
    pair.kernels.predict(logits, int32([0]), torch.tensor(0, device=DEVICE), confidence, torch.ones(1, device=DEVICE))
    feature = pair.kernels.features[0].cpu().numpy()
    assert -1e-6 < feature[0, 0] < 0
    np.testing.assert_array_equal(confidence.cpu().numpy(), pair.numpy.predict(params, {"log_odds": feature}, (1, 1)))


# --- labels, rows that pad, states ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["isotonic", "beta-bernoulli"])
def test_nothing_is_learned_from_rows_that_pad_prompts_and_nobody(spec: str) -> None:
    pair = Pair(make(spec, 1000), 6, 3)
    pair.draft(np.full((6, 3), 1.0, dtype=np.float32))
    none = np.zeros(0, dtype=np.int64)
    pair.step(none, none, none, none.astype(bool))
    pair.step(np.array([2, 3]), np.zeros(2, int), np.zeros(2, int), np.zeros(2, bool))
    assert all((value == 0).all() for value in pair.kernels.state().stats.values())
    assert pair.kernels.state().steps_since_refit == 2
    pair.step(np.array([-1, 4, -1]), np.array([3, 1, 0]), np.array([3, 3, 2]), np.ones(3, bool))
    stats = pair.kernels.state().stats
    assert_same_arrays(stats, pair.state.stats, "padded")
    # Slot 0 accepted, slot 1 rejected, slot 2 beyond the rejection: one label each for the first two.
    observed = stats["observed"] if "observed" in stats else stats["alpha"] + stats["beta"]
    assert observed.sum(axis=1).tolist() == [1, 1, 0]


@pytest.mark.parametrize("spec", ["isotonic", "beta-bernoulli"])
def test_a_feature_that_is_not_a_number_counts_as_the_lowest_only_where_it_has_a_label(spec: str) -> None:
    pair = Pair(make(spec, 1000), 2, 2)
    pair.draft(np.array([[np.nan, np.nan], [np.nan, 3.0]], dtype=np.float32))
    pair.step(np.arange(2), np.array([0, 2]), np.array([2, 2]), np.ones(2, bool))
    stats = pair.kernels.state().stats
    assert_same_arrays(stats, pair.state.stats, "NaN")
    total = sum(value.sum() for value in stats.values())
    assert total == (5 if "observed" in stats else 3)


@pytest.mark.parametrize("spec", SPECS)
def test_a_state_comes_back_as_it_was_loaded(spec: str) -> None:
    pair = Pair(make(spec, 3), 30, 4)
    rng = np.random.default_rng(8)
    for _ in range(5):
        pair.random_step(rng)
    written = EstimatorState.from_json(json.loads(json.dumps(pair.state.to_json())))
    fresh = device_estimator(pair.numpy, 30, 4, DEVICE)
    tensors = [fresh.law.table.data_ptr()]
    fresh.load(written)
    back = fresh.state()
    assert_same_arrays(back.params, pair.state.params, "params")
    assert_same_arrays(back.stats, pair.state.stats, "stats")
    assert (back.steps_since_refit, back.refits) == (2, 1)
    assert tensors == [fresh.law.table.data_ptr()]  # a captured graph keeps the address
    with pytest.raises(InputError, match="was it made for another K"):
        device_estimator(pair.numpy, 30, 5, DEVICE).load(written)


def test_another_number_of_requests_compiles_nothing() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("launches.py")), "isotonic", "beta-bernoulli"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # Counting for either estimator; the curve of all slots and each slot's; loading and learning.
    assert json.loads(done.stdout) == {"_count_kernel": 2, "_fit_kernel": 2, "_beta_kernel": 2}
