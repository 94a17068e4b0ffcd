"""Accumulating, remembering and refitting on the device, beside NumPy and beside vLLM's own kernels.

Features and predictions are written straight into the tables, so that nothing here depends on logits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learn_beside import DEVICE, INTERPRETED, NOBODY, Batch, Beside, Rng, assert_same_arrays, draw_batch
from learn_bounds import U32, U64

from avsim import estimators
from avsim.errors import InputError
from avsim.estimators.base import MEMORY, EstimatorState, advance
from avsim.kernels import device_estimator
from avsim.testing.kernel_stream import graded

FREE_STEPS = int(os.environ.get("AVSIM_FREE_STEPS", "120"))  # 1,000 take a minute or two in the interpreter

ONLINE = ("online-logistic:sums=float32", "online-logistic:sums=float64,l2=0.01,damping=5")
GAUSSIAN = (
    "bayes-logistic",
    "bayes-logistic:feature=log_odds_f32,half_life=40,level_half_life=20,slope_sd=1,slot_sd=0.1",
    "request-adaptive:request_sd=0.8,request_half_life=6",
    "multi-logistic",
    "multi-logistic:history=false,weight_sd=1",
    "multi-logistic:logits=false,half_life=30",
    "multi-logistic:logits=false,history=false",
)


@pytest.mark.parametrize("spec", [*ONLINE, *GAUSSIAN])
def test_every_step_and_every_refit_is_numpys(spec: str) -> None:
    beside, rng = Beside(spec), np.random.default_rng(0)
    everyone = np.arange(beside.max_num_reqs)
    for _ in range(3):
        for _ in range(beside.interval):
            beside.draft(rng, everyone)
            beside.learn(draw_batch(beside, rng))
        beside.refit()
    assert beside.state.refits == 3
    start = beside.estimator.init(beside.num_slots)
    assert any((beside.state.params[name] != value).any() for name, value in start.items())
    print(spec, {name: f"{share:.2g}" for name, share in beside.worst.items()})


# --- at the edges -----------------------------------------------------------------------------------------------------

ALL = ("online-logistic:sums=float32", "request-adaptive", "multi-logistic")


def _nothing_sampled(beside: Beside, rng: Rng) -> Batch:
    return Batch(np.arange(4), np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64))


def _nothing_admitted(beside: Beside, rng: Rng) -> Batch:
    return Batch(np.arange(4), np.ones(4, dtype=np.int64), np.zeros(4, dtype=np.int64))


def _constant(beside: Beside, rng: Rng) -> Batch:
    beside.features[0] = 12.0
    return draw_batch(beside, rng, beside.max_num_reqs, 0.5)


def _huge(beside: Beside, rng: Rng) -> Batch:
    beside.features[0] = rng.choice([-40.0, 40.0], beside.features[0].shape)
    return draw_batch(beside, rng, beside.max_num_reqs, 0.5)


def _nan_without_label(beside: Beside, rng: Rng) -> Batch:
    """Everybody's first slot is rejected, and whatever lies behind it is poisoned."""
    beside.features[:, :, 1:] = np.nan
    beside.p[:, 1:] = np.nan
    return draw_batch(beside, rng, beside.max_num_reqs, 0.0)


def _nan_with_label(beside: Beside, rng: Rng) -> Batch:
    beside.features[-1, 0, 0] = np.nan
    return draw_batch(beside, rng, beside.max_num_reqs, 1.0)


def _infinite(beside: Beside, rng: Rng) -> Batch:
    beside.features[-1, 1, 0] = np.inf
    return draw_batch(beside, rng, beside.max_num_reqs, 1.0)


EDGES: dict[str, Callable[[Beside, Rng], Batch]] = {
    "empty": lambda beside, rng: NOBODY,
    "nothing-sampled": _nothing_sampled,
    "nothing-admitted": _nothing_admitted,
    "all-accepted": lambda beside, rng: draw_batch(beside, rng, beside.max_num_reqs, 1.0),
    "all-rejected": lambda beside, rng: draw_batch(beside, rng, beside.max_num_reqs, 0.0),
    "constant": _constant,
    "huge": _huge,
    "nan-without-label": _nan_without_label,
    "nan-with-label": _nan_with_label,
    "infinite": _infinite,
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("spec", ALL)
def test_edges(spec: str, edge: str) -> None:
    beside, rng = Beside(spec, num_slots=2, max_num_reqs=4), np.random.default_rng(3)
    everyone = np.arange(beside.max_num_reqs)
    for _ in range(2):
        beside.draft(rng, everyone)
        beside.learn(EDGES[edge](beside, rng))
        before = beside.state
        beside.refit()
        after = beside.state.params
        for name, value in after.items():
            assert np.isfinite(value).all(), name
        # What was learned before may be bad; only finite memory goes on.
        beside.memory = np.nan_to_num(beside.memory)
        if edge == "infinite" and spec == "multi-logistic":  # a margin, which is cut
            assert (after["mean"] != before.params["mean"]).any()
        if edge == "nan-with-label" and spec == "multi-logistic":
            mean = before.params["mean"]
            np.testing.assert_array_equal(after["mean"], mean)
            np.testing.assert_array_equal(beside.kernels.law.weights.cpu().numpy(), mean[:3].astype(np.float32))


@pytest.mark.parametrize(("num_slots", "max_num_reqs"), [(1, 1), (16, 2), (1, 300)])
@pytest.mark.parametrize("spec", [*ALL, "online-logistic"])
def test_sizes(spec: str, num_slots: int, max_num_reqs: int) -> None:
    """One slot, sixteen, and more requests than one block of rows holds; with B = R, and then with few."""
    beside, rng = Beside(spec, num_slots=num_slots, max_num_reqs=max_num_reqs), np.random.default_rng(5)
    everyone = np.arange(max_num_reqs)
    for size in (max_num_reqs, 1):
        beside.draft(rng, everyone)
        beside.learn(draw_batch(beside, rng, size))
    beside.refit()


@pytest.mark.parametrize("spec", ALL)
def test_a_step_that_reaches_too_far_is_shortened(spec: str) -> None:
    """All is accepted where the prior says that nothing is: the whole Newton step is longer than 1."""
    beside, rng = Beside(spec, max_num_reqs=40, num_slots=2), np.random.default_rng(2)
    beside.draft(rng, np.arange(40))
    beside.features[0] = -6.0
    beside.p[:] = 0.01
    beside.learn(draw_batch(beside, rng, 40, 1.0))
    before = beside.state.params
    beside.refit()
    if "mean" in before:
        moved = np.abs(beside.state.params["mean"] - before["mean"]).max()
        assert moved == pytest.approx(1, abs=0.01)  # the level may have drifted before


@pytest.mark.parametrize("spec", ONLINE)
def test_a_slope_that_would_turn_negative_stays(spec: str) -> None:
    beside, rng = Beside(spec, max_num_reqs=60, num_slots=1), np.random.default_rng(4)
    beside.draft(rng, np.arange(60))
    unlikely = beside.features[0, :, 0] < 0
    beside.learn(Batch(np.arange(60), 1 + unlikely, 1 - unlikely.astype(int)))
    beside.refit()
    assert beside.state.params["slope"] == np.float32(0.5)


def test_one_sum_that_is_not_finite_is_enough() -> None:
    beside, rng = Beside("multi-logistic"), np.random.default_rng(6)
    beside.draft(rng, np.arange(6))
    beside.learn(draw_batch(beside, rng, 6))
    information = beside.state.stats["information"].copy()
    information[1, 1] = np.inf
    beside.state = replace(beside.state, stats=beside.state.stats | {"information": information})
    before = beside.state.params["mean"]
    beside.refit()
    assert (beside.state.params["mean"] == before).all()


# --- padding and poison -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [*ALL, "online-logistic"])
def test_rows_that_pad_and_requests_that_rest_are_left_alone(spec: str) -> None:
    beside, rng = Beside(spec, num_slots=2), np.random.default_rng(7)
    beside.draft(rng, np.arange(6))
    batch = draw_batch(beside, rng, 3, 0.5)
    beside.put()
    plain = beside.run(batch).stats
    memory = None if beside.kernels.memory is None else beside.kernels.memory.clone()

    rest = np.setdiff1d(np.arange(6), batch.slots)
    beside.features[:, rest], beside.p[rest], beside.memory[:, rest] = np.nan, np.nan, np.nan
    beside.put()
    beside.kernels.load(beside.state)
    order = [0, 2, 4]  # where the three stand among rows of −1, with nonsense counts
    padded = Batch(*(np.full(6, fill, dtype=np.int64) for fill in (-1, 3, 2)))
    padded.slots[order], padded.sampled[order], padded.rejected[order] = batch.slots, batch.sampled, batch.rejected
    assert_same_sums(plain, beside.run(padded).stats)
    if memory is not None:
        found = beside.kernels.memory
        assert torch.equal(found[batch.slots], memory[batch.slots])
        assert torch.isnan(found[rest]).all()
        beside.kernels.reset(int(rest[0]))
        assert (found[rest[0]] == 0).all()


def assert_same_sums(ours: Any, theirs: Any) -> None:
    """Rows stand elsewhere in the tree of the sum: a few additions differ."""
    for name, value in ours.items():
        roundoff = U32 if value.dtype == np.float32 else U64
        np.testing.assert_allclose(theirs[name], value, rtol=0, atol=32 * roundoff * max(np.abs(value).max(), 1.0))


@pytest.mark.parametrize("spec", GAUSSIAN)
def test_a_refit_overwrites_a_poisoned_law_and_clears_poisoned_sums(spec: str) -> None:
    beside = Beside(spec)
    law, clean = beside.kernels.law, beside.estimator.start(3)
    kept = [law.weights, law.intercepts, *([] if law.memory_weights is None else [law.memory_weights])]
    addresses = [tensor.data_ptr() for tensor in kept]
    beside.kernels.sums.fill_(torch.nan)
    beside.kernels._steps_since_refit = beside.interval - 1
    law.weights.fill_(torch.nan)
    law.intercepts.fill_(torch.nan)
    if law.memory_weights is not None and law.memory_weights.shape[0] == 3:
        law.memory_weights[::2] = torch.nan
    found = beside.run(NOBODY)
    assert all(torch.isfinite(tensor).all() for tensor in kept)
    assert [tensor.data_ptr() for tensor in kept] == addresses
    assert (beside.kernels.sums == 0).all()
    assert_same_arrays(dict(clean.stats), dict(found.stats))
    beside.state = EstimatorState(clean.params, {n: v * np.nan for n, v in clean.stats.items()})
    expected, _ = beside.estimator.refit(clean.params, beside.state.stats)
    np.testing.assert_allclose(found.params["mean"], expected["mean"], rtol=8 * U64)


# --- states and refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [*ONLINE, *GAUSSIAN])
def test_a_state_survives_the_device(spec: str) -> None:
    beside, rng = Beside(spec), np.random.default_rng(11)
    everyone = np.arange(beside.max_num_reqs)
    state = beside.state
    for _ in range(6):
        beside.draft(rng, everyone)
        batch = draw_batch(beside, rng)
        seen = graded(beside.estimator, beside.inputs(batch), batch.sampled, batch.rejected)
        state = advance(beside.estimator, state, seen, 1)
    for one in (state, beside.estimator.start(beside.num_slots)):
        beside.kernels.load(one)
        for found in (beside.kernels.state(), EstimatorState.from_json(beside.kernels.state().to_json())):
            assert_same_arrays(dict(one.params), dict(found.params))
            assert_same_arrays(dict(one.stats), dict(found.stats))
            assert (found.steps_since_refit, found.refits) == (one.steps_since_refit, one.refits)
        shape = (beside.num_slots, len(everyone))
        columns = {name: np.zeros(shape, dtype=np.float32) for name in beside.estimator.features}
        if beside.estimator.memory_size:
            columns[MEMORY] = beside.memory
        # The law is loaded too: at features of 0, p is σ of the intercepts (and of what a root of 0 brings).
        roots = beside.kernels.law.weights.cpu().numpy()[1:].sum(dtype=np.float64)
        logit = beside.kernels.law.intercepts.cpu().numpy().astype(np.float64) - roots
        expected = beside.estimator.predict(one.params, columns, shape)[:, 0]
        np.testing.assert_allclose(1 / (1 + np.exp(-logit)), expected, atol=16 * U32)


def test_what_no_kernel_can_do_is_refused() -> None:
    for spec, option in (
        ("bayes-logistic:predictive=posterior", "predictive=posterior"),
        ("request-adaptive:explore=true", "explore=True"),
    ):
        with pytest.raises(InputError, match=option):
            device_estimator(estimators.make(spec), 4, 3, DEVICE)
    with pytest.raises(InputError, match="64 coefficients, and 60 slots need 66"):
        device_estimator(estimators.make("multi-logistic"), 4, 60, DEVICE)


@pytest.mark.parametrize("spec", ALL)
def test_a_state_of_another_k_is_refused(spec: str) -> None:
    beside = Beside(spec)
    for slots in (1, 4):  # one slot would be copied into all
        with pytest.raises(InputError, match="another K"):
            beside.kernels.load(beside.estimator.start(slots))
    with pytest.raises(InputError, match="the state has no"):
        beside.kernels.load(EstimatorState(beside.state.params, {}))


# --- beside vLLM ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not INTERPRETED, reason="compiled kernels add in another order than the interpreter")
def test_online_logistic_has_the_bits_of_vllms_kernels() -> None:
    import vllm_reference as vllm

    slots, reqs, steps, interval = 2, 4, 303, 100
    beside = Beside("online-logistic:feature=log_odds_f32,sums=float32", slots, reqs, interval)
    kernels, theirs, rng = beside.kernels, vllm.VllmEstimator(reqs, slots, interval), np.random.default_rng(13)
    learned = set()
    for step in range(steps):
        beside.state = replace(beside.state, params={"slope": theirs.slope, "intercepts": theirs.intercepts})
        beside.draft(rng, np.arange(reqs))
        beside.put()
        theirs.features[:], theirs.predictions[:] = beside.features[0], beside.p
        batch = draw_batch(beside, rng, (step % reqs) + 1)
        accepted = np.maximum(batch.sampled - 1, 0)
        theirs.step(batch.slots, accepted + batch.rejected, accepted, batch.sampled > 0)
        with np.errstate(all="ignore"):
            kernels.step(*batch.tensors())
        ours = {"slope": kernels.slope, "intercepts": kernels.intercepts}
        ours |= dict(zip(("a", "b", "c", "g0", "g1", "n"), kernels.sums, strict=True))
        for name, value in ({"slope": theirs.slope, "intercepts": theirs.intercepts} | theirs.sums).items():
            assert (ours[name].numpy().view(np.int32) == value.view(np.int32)).all(), (step, name)
        learned.add(float(theirs.slope[0]))
    assert kernels.state().refits == 3
    assert len(learned) == 4


@pytest.mark.skipif(not INTERPRETED, reason="compiled kernels add in another order than the interpreter")
@pytest.mark.parametrize("reqs", [200, 300])
def test_the_tree_of_a_large_batch_is_vllms(reqs: int) -> None:
    """The block is padded for the largest batch, vLLM's for the present one: zeros make no difference."""
    import vllm_reference as vllm

    beside = Beside("online-logistic:feature=log_odds_f32,sums=float32", 1, 600)
    theirs, rng = vllm.VllmEstimator(600, 1, beside.interval), np.random.default_rng(17)
    beside.draft(rng, np.arange(600))
    beside.put()
    theirs.features[:], theirs.predictions[:] = beside.features[0], beside.p
    batch = draw_batch(beside, rng, reqs)
    accepted = np.maximum(batch.sampled - 1, 0)
    theirs.step(batch.slots, accepted + batch.rejected, accepted, batch.sampled > 0)
    stats = beside.run(batch).stats
    for name, value in theirs.sums.items():
        np.testing.assert_array_equal(stats[name], value, err_msg=name)


# --- left to themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["online-logistic", "multi-logistic"])
def test_runs_of_their_own_stay_together(spec: str) -> None:
    """From one cold start each side learns from its own predictions, on the same features and verdicts.

    A refit contracts what came before, but by how much depends on the stream, so no bound in closed form is tight.
    The yardstick is NumPy itself: the same run again, with every p moved by 4 units of rounding, to either side at
    random, more than the device's law moves it. The device must stay within the largest distance of three such runs.
    """
    beside, rng = Beside(spec, 2, 4, 10), np.random.default_rng(19)
    runs = [Beside(spec, 2, 4, 10) for _ in range(4)]
    gap = spread = 0.0
    everyone = np.arange(4)
    for _ in range(FREE_STEPS):
        if rng.random() < 0.1:
            slot = int(rng.integers(4))
            beside.kernels.reset(slot)
            for run in runs:
                run.memory[:, slot] = 0
        beside.state = beside.kernels.state()
        if beside.kernels.memory is not None:
            beside.memory = beside.kernels.memory.cpu().numpy().T.copy()
        beside.draft(rng, everyone)
        beside.put()
        batch = draw_batch(beside, rng)
        for number, run in enumerate(runs):
            run.features = beside.features
            inputs = run.inputs(Batch(everyone, everyone, everyone))
            inputs.pop("confidence")
            p = run.estimator.predict(run.state.params, {n: v.copy() for n, v in inputs.items()}, (2, 4)).T
            nudge = 4 * U32 * rng.choice([-1, 1], p.shape) if number else 0.0
            run.p = (p * (1 + nudge)).astype(np.float32)
            seen = graded(run.estimator, run.inputs(batch), batch.sampled, batch.rejected)
            params = run.state.params
            run.state = advance(run.estimator, run.state, seen, 1)
            if run.estimator.memory_size:
                run.memory[:, batch.slots] = run.estimator.remember(params, seen)
        gap = max(gap, float(np.abs(beside.p - runs[0].p).max()))
        spread = max(spread, *(float(np.abs(run.p - runs[0].p).max()) for run in runs[1:]))
        with np.errstate(all="ignore"):
            beside.kernels.step(*batch.tensors())
    print(f"{spec}: {FREE_STEPS} steps, {runs[0].state.refits} refits, |Δp| ≤ {gap:.3g}, yardstick {spread:.3g}")
    assert runs[0].state.refits == beside.kernels.state().refits == FREE_STEPS // 10
    assert gap <= spread
