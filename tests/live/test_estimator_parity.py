"""avsim's online-logistic estimator against vLLM's own kernels, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import vllm_reference as vllm
from estimator_streams import (
    F32,
    AvsimRun,
    Rng,
    Stream,
    Verdict,
    draw_temperature,
    draw_verdict,
    gaussian,
    logistic,
    two_tokens,
)
from numpy.typing import NDArray

from avsim import estimators, features
from avsim.estimators import OnlineLogistic
from avsim.features import log_odds_f32, sigmoid


def nan_prone(rng: Rng, shape: tuple[int, int]) -> F32:
    """Ordinary rows among one-hot ones, rows of −∞, rows with a whole vocabulary block of −∞, +∞ and NaN."""
    rows = rng.normal(0, 2, (*shape, 4100)).astype(np.float32)
    kind = rng.integers(0, 14, shape)
    rows[kind == 0] = -np.inf
    rows[kind == 1] = -np.inf
    rows[kind == 1, 17] = 0
    rows[kind == 2, :4096] = -np.inf
    rows[kind == 3, 4096:] = -np.inf
    rows[kind == 4, 5] = np.inf
    rows[kind == 5, 4098] = np.nan
    return rows


def without_nan(rng: Rng, shape: tuple[int, int]) -> F32:
    """The rows of `nan_prone` that still have a finite feature: one-hot, and whole blocks of −∞."""
    rows = nan_prone(rng, shape)
    rows[np.isnan(log_odds_f32(rows.reshape(-1, rows.shape[-1]))).reshape(shape)] = 0
    return rows


def tied(rng: Rng, shape: tuple[int, int]) -> F32:
    """Few tokens and logits of 0 or 1, so that many rows share a feature and many tokens share the maximum."""
    return rng.integers(0, 2, (*shape, 8)).astype(np.float32)


def always_at(rate: float) -> Callable[[F32], NDArray[np.floating]]:
    return lambda feature: np.full(feature.shape, rate)


always, never = always_at(1.0), always_at(0.0)
STREAMS = {
    "varied": Stream(num_steps=20, num_reqs=(6, 7, 5)),
    "one-request": Stream(num_reqs=(1,), max_num_reqs=2, num_steps=20),
    "k1": Stream(num_slots=1),
    "k7": Stream(num_slots=7, num_steps=8),
    "k16": Stream(num_slots=16, num_reqs=(2, 3), num_steps=6, refit_interval=3, accept=logistic(0.3, 1.5)),
    "refit-every-step": Stream(refit_interval=1, num_steps=6),
    "default-interval": Stream(num_slots=2, num_reqs=(2,), max_num_reqs=3, num_steps=102, refit_interval=100),
    "one-pass-per-slot": Stream(one_pass=False, num_steps=5),
    "all-accepted": Stream(accept=always),
    "all-rejected": Stream(accept=never),
    "starved-positions": Stream(num_slots=5, max_admitted=2),
    "nothing-admitted": Stream(max_admitted=0, num_steps=5),
    "prefill-only-steps": Stream(prefill=0.8, num_reqs=(1, 2)),
    "ties": Stream(logits=tied),
    "slope-moves": Stream(accept=logistic(2.0, -1.0), logits=two_tokens(-3, 3), num_steps=24),
    "slope-guard-flat": Stream(accept=always_at(0.55), logits=two_tokens(-3, 8), num_slots=2, num_reqs=(8,), seed=5),
    "slope-guard-inverse": Stream(accept=logistic(-2.0, 0.0), logits=two_tokens(-3, 8), num_slots=2, num_reqs=(8,)),
    "sharp": Stream(logits=two_tokens(8, 40), accept=logistic(0.1, 0.5)),
    "sharp-rejected": Stream(logits=two_tokens(8, 40), accept=never),
    "sharp-constant": Stream(logits=two_tokens(12, 12), accept=logistic(0.0, 0.3)),
    "clamped": Stream(logits=two_tokens(16, 40), accept=logistic(0.0, 1.0)),
    "greedy": Stream(temperature=(0.0,), num_steps=5),
    "temperature-0.7": Stream(temperature=(0.7,), num_steps=5),
    "temperature-mixed": Stream(temperature=(0.0, 0.7, 1.0, 1.6)),
    "no-nan": Stream(logits=without_nan, num_steps=8),
    # Every slot observed: what NaN does in a slot without a label is a test of its own.
    "nan": Stream(logits=nan_prone, accept=always, min_admitted=4, prefill=0.0, num_steps=8, seed=3),
}


def run_vllm(stream: Stream) -> vllm.VllmEstimator:
    return vllm.VllmEstimator(stream.max_num_reqs, stream.num_slots, stream.refit_interval)


def run_avsim(stream: Stream, sums: str = "float32") -> AvsimRun:
    spec = f"online-logistic:sums={sums},feature=log_odds_f32,refit_interval={stream.refit_interval}"
    return AvsimRun(estimators.make(spec), stream.max_num_reqs, stream.num_slots)


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32], what: str) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan, err_msg=what)
    bits = [np.where(nan, np.float32(0), side).view(np.int32) for side in (ours, theirs)]
    np.testing.assert_array_equal(*bits, err_msg=f"{what}: {ours} {theirs}")


def assert_same_state(ours: AvsimRun, theirs: vllm.VllmEstimator, where: str) -> None:
    assert_same_bits(ours.state.params["slope"], theirs.slope, f"{where}: slope")
    assert_same_bits(ours.state.params["intercepts"], theirs.intercepts, f"{where}: intercepts")
    for name, value in theirs.sums.items():
        assert_same_bits(ours.state.stats[name], value, f"{where}: sum {name}")


@cache
def replay(name: str) -> tuple[AvsimRun, list[float]]:
    """Run both estimators over a stream, requiring equal bits at every step; return ours and its slopes."""
    stream = STREAMS[name]
    rng = np.random.default_rng(stream.seed)
    ours, theirs = run_avsim(stream), run_vllm(stream)
    drafted = np.zeros(stream.max_num_reqs, dtype=bool)
    slopes = []
    for step in range(stream.num_steps):
        verdict = draw_verdict(stream, rng, step, ours.features, drafted)
        theirs.step(verdict.slots, verdict.admitted, verdict.accepted, verdict.sampled)
        ours.step(verdict)
        assert_same_state(ours, theirs, f"step {step}")
        slopes.append(float(ours.state.params["slope"][0]))

        temperature = draw_temperature(stream, rng)
        logits = stream.logits(rng, (len(verdict.slots), stream.num_slots))
        predict = theirs.predict_block if stream.one_pass else theirs.predict
        confidence = predict(verdict.slots, torch.from_numpy(logits), temperature)
        assert_same_bits(ours.predict(verdict.slots, logits, temperature), confidence, f"step {step}: confidence")
        assert_same_bits(ours.features, theirs.features, f"step {step}: feature")
        assert_same_bits(ours.confidence, theirs.predictions, f"step {step}: prediction")
        drafted[verdict.slots] = True
    assert ours.state.refits == theirs.inner._refits == stream.num_steps // stream.refit_interval
    return ours, slopes


@pytest.mark.parametrize("name", STREAMS)
def test_every_step_is_bit_equal(name: str) -> None:
    replay(name)


def test_the_streams_reach_what_they_are_named_after() -> None:
    """The streams above are worth nothing if they miss the branch they are meant for."""
    moves, slopes = replay("slope-moves")
    assert slopes[-1] > 0.6
    for name in ("slope-guard-flat", "slope-guard-inverse"):
        _, slopes = replay(name)
        assert all(slope >= 0 for slope in slopes)
        # The guard stopped a refit: no movement although there was data.
        at_refit = [0.5, *slopes[STREAMS[name].refit_interval - 1 :: STREAMS[name].refit_interval]]
        assert any(before == after for before, after in pairwise(at_refit)), (name, at_refit)
    starved, _ = replay("starved-positions")
    assert (starved.state.params["intercepts"][2:] == np.float32(-0.2)).all()
    assert (starved.state.params["intercepts"][:2] != np.float32(-0.2)).all()
    assert (replay("clamped")[0].features.max()) == 40
    nan, _ = replay("nan")
    assert np.isnan(nan.features).any()
    assert np.isfinite(nan.state.params["intercepts"]).all()
    assert moves.state.refits > 2


@pytest.mark.parametrize("vocab", [1, 2, 7, 4095, 4096, 4097, 9000, 20481])
def test_features_are_bit_equal_at_every_vocabulary_size(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    slots = np.arange(3)
    temperature = np.array([0.0, 0.7, 1.0], dtype=np.float32)
    for scale in (0.1, 3.0, 12.0):
        logits = gaussian(scale, vocab)(rng, (3, 2))
        ours, theirs = run_avsim(Stream(num_slots=2)), vllm.VllmEstimator(3, 2, 4)
        confidence = theirs.predict_block(slots, torch.from_numpy(logits), temperature)
        assert_same_bits(ours.predict(slots, logits, temperature), confidence, "confidence")
        assert_same_bits(ours.features[:3], theirs.features, "feature")


def test_features_of_half_precision_logits_are_bit_equal() -> None:
    logits = gaussian(3.0, 5000)(np.random.default_rng(0), (3, 2)).astype(np.float16)
    temperature = np.full(3, 0.7, dtype=np.float32)
    ours, theirs = run_avsim(Stream(num_slots=2)), vllm.VllmEstimator(3, 2, 4)
    theirs.predict_block(np.arange(3), torch.from_numpy(logits), temperature)
    ours.predict(np.arange(3), logits, temperature)
    assert_same_bits(ours.features[:3], theirs.features, "feature")


def test_more_requests_than_one_kernel_block() -> None:
    """Past 256 requests the kernel pads to 512 rows, which fixes how they are paired in its sums."""
    stream = Stream(
        num_slots=3, max_num_reqs=300, num_reqs=(300, 256, 257, 1), num_steps=12, prefill=0.05, accept=logistic(1, 0)
    )
    rng = np.random.default_rng(0)
    ours, theirs = run_avsim(stream), run_vllm(stream)
    for step in range(stream.num_steps):
        # The rows are put into both tables directly: it is the sums that depend on the number of requests.
        theirs.features[:] = ours.features = rng.normal(1, 4, ours.features.shape).astype(np.float32)
        columns = {"log_odds_f32": ours.features.T}
        ours.confidence = ours.estimator.predict(ours.state.params, columns, ours.features.T.shape).T
        theirs.predictions[:] = ours.confidence
        verdict = draw_verdict(stream, rng, step, ours.features, np.ones(300, dtype=bool))
        theirs.step(verdict.slots, verdict.admitted, verdict.accepted, verdict.sampled)
        ours.step(verdict)
        assert_same_state(ours, theirs, f"step {step}")
    assert ours.state.refits == 3


def test_prefill_only_steps_bring_the_refit_nearer() -> None:
    stream = Stream(num_slots=2, max_num_reqs=4, refit_interval=5)
    ours, theirs = run_avsim(stream), run_vllm(stream)
    slots = np.arange(4)
    logits = gaussian()(np.random.default_rng(1), (4, 2))
    ours.predict(slots, logits, np.ones(4, dtype=np.float32))
    theirs.predict_block(slots, torch.from_numpy(logits), np.ones(4, dtype=np.float32))
    graded = Verdict(slots, np.full(4, 2), np.array([0, 1, 2, 2]), np.ones(4, dtype=bool))
    prompt = Verdict(slots, np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64), np.zeros(4, dtype=bool))
    for step, verdict in enumerate((graded, prompt, prompt, prompt, prompt)):
        assert ours.state.refits == theirs.inner._refits == 0
        theirs.step(verdict.slots, verdict.admitted, verdict.accepted, verdict.sampled)
        ours.step(verdict)
        assert_same_state(ours, theirs, f"step {step}")
    assert ours.state.refits == theirs.inner._refits == 1
    assert (ours.state.params["intercepts"] != np.float32(-0.2)).all()


def test_nan_without_a_label_spoils_vllms_round_but_not_avsims() -> None:
    """A deliberate difference: vLLM multiplies the NaN feature by a weight of 0, avsim leaves the slot out.

    A compiled kernel gives such a row no NaN feature in the first place; only the interpreter does.
    """
    stream = Stream(num_slots=2, max_num_reqs=2, refit_interval=2)
    ours, theirs = run_avsim(stream), run_vllm(stream)
    theirs.features[:] = ours.features = np.array([[1.0, np.nan], [2.0, 3.0]], dtype=np.float32)
    theirs.predictions[:] = ours.confidence = np.array([[0.6, np.nan], [0.7, 0.8]], dtype=np.float32)
    verdict = Verdict(np.arange(2), np.array([2, 2]), np.array([0, 2]), np.ones(2, dtype=bool))
    theirs.step(verdict.slots, verdict.admitted, verdict.accepted, verdict.sampled)
    ours.step(verdict)
    assert np.isnan(theirs.sums["a"]).tolist() == [False, True]
    assert np.isfinite(ours.state.stats["a"]).all()
    for name in ("c", "g1", "n"):
        assert_same_bits(ours.state.stats[name], theirs.sums[name], name)


def test_defaults_are_those_of_vllm() -> None:
    ours, theirs = OnlineLogistic(), vllm.OnlineAcceptanceEstimator
    module = vllm._modules["acceptance_estimator"]
    assert ours.refit_interval == theirs.REFIT_INTERVAL
    assert (ours.damping, ours.l2) == (theirs.DAMPING_OBSERVATIONS, theirs.L2)
    assert (ours.slope, ours.intercept) == (module._INIT_SLOPE, module._INIT_BIAS)
    assert features.MAX_LOG_ODDS == module._MAX_LOG_ODDS


# --- float64 sums ---------------------------------------------------------------------------------------------------


def refit_tolerance(rounds: list[dict[str, Any]], num_slots: int, l2: float, damping: float) -> tuple[float, Any]:
    """Bound how far two float32 refits of the same observations may lie apart, for the slope and the intercepts.

    Let u = 2⁻²⁴. A sum of m float32 numbers added in sequences of at most d additions, each term itself made with
    t roundings, differs from the exact sum by at most γ = (t + d)·u/(1 − (t + d)·u) times the sum of the terms'
    magnitudes, whatever the order (Higham, Accuracy and Stability of Numerical Algorithms, §4.2). Here t = 4
    (1 − p, p·(1 − p), and twice ·f), and d is: 16 additions in each of NumPy's eight accumulators over a block of
    128, 3 to combine them, 1 per doubling of the padding from there, and 1 per step of the round. A float64 sum has
    the same t, no d, and one rounding when it is cast; so γ bounds both sides.

    The solve adds its own roundings, at most 6 per summand of the numerator and the denominator (·, /, tree sum over
    K ≤ 8, −) and 1 for + λ; they are charged to the same magnitudes, so the relative error of each summand is
    e = 2γ + γ + 7u for the products of two sums over a third. Then, to first order in the errors and with the
    denominator's own cancellation kept,

        num = g0 − Σ b·g1/c     |δnum| ≤ e·(|G0| + Σ (B·|g1| + |b|·G1 + |b·g1|)/c)
        den = a − Σ b²/c        |δden| ≤ e·(a + Σ (2·B·|b| + b²)/c)
        Δw = damp·num/den       |δΔw| ≤ damp·(|δnum| + |num/den|·|δden|)/(den − |δden|) + 4u·|Δw|
        Δb = damp·(g1 − b·Δw)/c |δΔb| ≤ damp·(e·(G1 + B·|Δw| + |g1 − b·Δw|) + |b|·|δΔw|)/c + 4u·|Δb|

    where capitals are sums of magnitudes. The new coefficient is rounded once more (u). Both sides may err by this
    much, hence the factor 2.
    """
    u = 2.0**-24
    feature, p, observed, label = (np.concatenate([part[key] for part in rounds]) for key in ("f", "p", "seen", "y"))
    feature, p = feature.astype(np.float64), p.astype(np.float64)
    weight = np.where(observed, p * (1 - p), 0)
    residual = np.where(observed, label - p, 0)
    b, magnitude_b = (weight * feature).sum(axis=0), (weight * abs(feature)).sum(axis=0)
    c, n = weight.sum(axis=0) + l2, observed.sum(axis=0)
    a = (weight * feature**2).sum() + l2
    g0, magnitude_g0 = (residual * feature).sum(), abs(residual * feature).sum()
    g1, magnitude_g1 = residual.sum(axis=0), abs(residual).sum(axis=0)

    width = max(256, 1 << (max(len(part["f"]) for part in rounds) - 1).bit_length())
    roundings = 4 + 16 + 3 + (width // 128).bit_length() - 1 + len(rounds)
    error = 3 * roundings * u / (1 - roundings * u) + 7 * u
    num, den = g0 - (b * g1 / c).sum(), a - (b * b / c).sum()
    num_error = error * (magnitude_g0 + ((magnitude_b * abs(g1) + abs(b) * magnitude_g1 + abs(b * g1)) / c).sum())
    den_error = error * (a + ((2 * magnitude_b * abs(b) + b * b) / c).sum())
    assert den_error < 0.1 * den, "the stream is too ill-conditioned for a first-order bound"
    damp = n.sum() / (n.sum() + damping)
    step = damp * num / den
    step_error = damp * (num_error + abs(num / den) * den_error) / (den - den_error) + 4 * u * abs(step)
    remainder = g1 - b * step
    damp = n / (n + damping)
    delta_error = damp * (
        error * (magnitude_g1 + magnitude_b * abs(step) + abs(remainder)) + abs(b) * step_error
    ) / c + 4 * u * abs(damp * remainder / c)
    return 2 * (step_error + u * 8), 2 * (delta_error + u * 8)  # no coefficient here exceeds 8


@pytest.mark.parametrize("num_reqs", [1, 32, 300])
@pytest.mark.parametrize("law", [(0.7, 0.1), (2.0, -1.0), (0.05, 0.4)])
def test_float64_sums_agree_within_float32_rounding(num_reqs: int, law: tuple[float, float]) -> None:
    stream = Stream(
        num_slots=5, max_num_reqs=num_reqs, num_reqs=(num_reqs,), refit_interval=10, num_steps=20, accept=logistic(*law)
    )
    rng = np.random.default_rng(num_reqs)
    ours, theirs = run_avsim(stream, "float64"), run_vllm(stream)
    rounds: list[dict[str, Any]] = []
    for step in range(stream.num_steps):
        theirs.features[:] = ours.features = rng.normal(1, 2.5, ours.features.shape).astype(np.float32)
        theirs.predictions[:] = ours.confidence = sigmoid(theirs.slope * ours.features + theirs.intercepts)
        verdict = draw_verdict(stream, rng, step, ours.features, np.ones(num_reqs, dtype=bool))
        slot = np.arange(stream.num_slots)
        admitted, accepted = verdict.admitted[:, None], verdict.accepted[:, None]
        seen = (slot <= accepted) & (slot < admitted)
        rounds.append(
            {"f": ours.features[verdict.slots], "p": ours.confidence[verdict.slots], "seen": seen, "y": slot < accepted}
        )
        theirs.step(verdict.slots, verdict.admitted, verdict.accepted, verdict.sampled)
        ours.step(verdict)
        if (step + 1) % stream.refit_interval:
            continue
        slope_tolerance, intercept_tolerance = refit_tolerance(
            rounds, stream.num_slots, ours.estimator.l2, ours.estimator.damping
        )
        slope, intercepts = ours.state.params["slope"], ours.state.params["intercepts"]
        assert abs(float(slope[0]) - float(theirs.slope[0])) <= slope_tolerance
        assert (abs(intercepts.astype(float) - theirs.intercepts.astype(float)) <= intercept_tolerance).all()
        # Each round starts from common coefficients, so that the bound is one of a single refit.
        ours.state = replace(ours.state, params={"slope": theirs.slope.copy(), "intercepts": theirs.intercepts.copy()})
        rounds.clear()
