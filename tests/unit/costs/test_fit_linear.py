"""Linear costs from samples, against the closed forms of weighted least squares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avsim.costs import CostCard, LinearCost, StepShape
from avsim.costs.fit_holdout import make_blocks, resample
from avsim.costs.fit_linear import Design, LinearPart, design_of, fit_linear, variance_inflation
from avsim.costs.fit_samples import Samples, draft_samples, verify_samples
from tests.unit.costs.fit_cases import DRAFT_LAW, LAW, made_up

EFFICIENCY = 0.95
"""Of Huber's estimate at 1.345 σ with Gaussian noise, against least squares (Huber 1964)."""


def fitted(samples: Samples, *, replicates: bool = False) -> tuple[Design, LinearPart]:
    design = design_of(samples)
    draws = resample(make_blocks(samples, np.ones(len(samples)), 0.2, 0), 0) if replicates else ()
    return design, fit_linear(design, samples.ms, samples.size, np.ones(len(samples), dtype=bool), draws)


def closed_form_errors(design: Design, law: dict[str, float], sigma: float) -> np.ndarray:
    """Standard errors of least squares on relative errors: σ² (Xᵀ W X)⁻¹, W = 1 / (x·c)²."""
    expected = design.columns @ np.array([law[name] for name in design.names])
    scaled = design.columns / expected[:, None]
    return np.sqrt(np.diag(np.linalg.inv(scaled.T @ scaled)) * sigma**2 / EFFICIENCY)


@pytest.mark.parametrize("label", ["verify", "draft"])
def test_a_known_law_is_recovered_within_five_standard_errors(label: str) -> None:
    steps = made_up(sigma=0.05)
    samples, law = (
        (verify_samples(steps, with_prefill=False), LAW) if label == "verify" else (draft_samples(steps), DRAFT_LAW)
    )
    design, part = fitted(samples, replicates=True)
    errors = closed_form_errors(design, law, 0.05)
    assert set(design.names) == set(law)
    # Weight 1.345 σ / |r| is below a half beyond 2.69 σ, which Gaussian noise passes in 0.71 % of 2,000 samples.
    assert part.num_downweighted == pytest.approx(14.3, abs=5 * np.sqrt(14.3))
    for term, error in zip(part.terms, errors, strict=True):
        assert abs(term.value - law[term.name]) < 5 * error
        assert term.se == pytest.approx(error, rel=0.3), "200 replicates know an SE to about 5 %, blocks a little less"
        assert term.low is not None
        assert term.high is not None
        assert term.low < term.value < term.high


def test_without_noise_the_law_is_exact_and_is_what_the_cost_model_charges() -> None:
    steps = made_up(num_steps=200, sigma=0.0)
    samples = verify_samples(steps, with_prefill=False)
    design, part = fitted(samples)
    found = {term.name: term.value for term in part.terms}
    assert found == pytest.approx(LAW, rel=1e-6)
    model = LinearCost(**found, card=CostCard("x", "m", "h", "fitted", "this test"))
    whole = (steps.reqs.astype(np.int64), steps.tokens.astype(np.int64))
    shape = StepShape(*whole, steps.kv, np.zeros(200, dtype=np.int64))
    assert model.verify_ms(shape) == pytest.approx(design.columns @ list(found.values()), rel=1e-12)


def test_what_is_marked_as_an_outlier_does_not_count() -> None:
    samples = verify_samples(made_up(), with_prefill=False)
    design = design_of(samples)
    marked = np.arange(len(samples)) % 50 == 0
    clean, spoilt = (
        fit_linear(design, ms, samples.size, ~marked)
        for ms in (samples.ms, np.where(marked, samples.ms * 1e4, samples.ms))
    )
    assert [t.value for t in spoilt.terms] == pytest.approx([t.value for t in clean.terms], rel=1e-9)
    assert [t.inflation for t in spoilt.terms] == pytest.approx([t.inflation for t in clean.terms], rel=1e-6)
    assert spoilt.num_downweighted == clean.num_downweighted


def test_gross_errors_that_are_not_marked_count_little() -> None:
    samples = verify_samples(made_up(), with_prefill=False)
    design = design_of(samples)
    hit = np.arange(len(samples)) % 50 == 0
    part = fit_linear(design, np.where(hit, samples.ms * 5, samples.ms), samples.size, np.ones_like(hit))
    # Huber's bias from a share ε of gross errors on one side is about ε·1.345·σ/0.82 of the fitted time: 0.2 % here.
    expected = design.columns @ [LAW[name] for name in design.names]
    fitted_ms = design.columns @ [term.value for term in part.terms]
    bias = 1 + 0.02 * 1.345 * 0.05 / 0.82
    assert np.median(fitted_ms / expected) == pytest.approx(bias, abs=5 * 0.05 / np.sqrt(2000))
    assert part.num_downweighted >= hit.sum()
    assert part.downweighted_sizes is not None


def test_coefficients_are_never_negative() -> None:
    steps = made_up(sigma=0.01)
    falling = replace(steps, forward_ms=10 - 1e-3 * steps.tokens)
    _, part = fitted(verify_samples(falling, with_prefill=False))
    assert all(term.value >= 0 for term in part.terms)
    assert part.value("per_token_us") == 0


def test_terms_that_move_together_are_not_both_fitted() -> None:
    steps = made_up()
    _, part = fitted(verify_samples(replace(steps, kv=1000 * steps.tokens), with_prefill=False))
    assert [term.name for term in part.terms] == ["fixed_ms", "per_token_us"]
    assert dict(part.dropped)["per_kv_token_ns"] == (
        "its quantity moves together with that of per_token_us, so its cost is booked there"
    )


def test_terms_that_nearly_move_together_are_kept_up_to_a_hundredfold_inflation() -> None:
    steps, rng = made_up(), np.random.default_rng(9)
    found = {}
    for jitter in (0.02, 0.15):
        kv = 1000 * steps.tokens * (1 + jitter * rng.normal(size=len(steps)))
        _, part = fitted(verify_samples(replace(steps, kv=np.maximum(kv, 1.0)), with_prefill=False))
        found[jitter] = {term.name: term.inflation for term in part.terms}
    assert "per_kv_token_ns" not in found[0.02]
    assert 10 < found[0.15]["per_kv_token_ns"] < 100


def test_constant_and_unknown_quantities_are_not_fitted() -> None:
    steps = made_up()
    _, part = fitted(draft_samples(replace(steps, tokens=4 * steps.reqs, kv=np.full(len(steps), np.nan))))
    assert [term.name for term in part.terms] == ["draft_fixed_ms", "draft_per_request_us"]
    reasons = dict(part.dropped)
    assert "is constant, as is that of draft_fixed_ms" in reasons["draft_per_request_token_us"]
    assert reasons["draft_per_kv_token_ns"] == "its quantity is not recorded"


def test_prompt_tokens_get_their_own_term_when_asked_for() -> None:
    samples = verify_samples(made_up(prefill=True), with_prefill=True)
    design, part = fitted(samples)
    law = LAW | {"per_prefill_token_us": 8.0}
    for term, error in zip(part.terms, closed_form_errors(design, law, 0.05), strict=True):
        assert abs(term.value - law[term.name]) < 5 * error


def test_inflation_equals_the_inverse_correlation_matrix() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    x[:, 2] += 2 * x[:, 0]
    expected = np.diag(np.linalg.inv(np.corrcoef(x.T)))
    found = variance_inflation(np.column_stack([np.ones(500), x]), np.ones(500))
    assert found == pytest.approx([1.0, *expected], rel=1e-9)
    assert np.isinf(variance_inflation(np.column_stack([np.ones(5), np.full(5, 3.0)]), np.ones(5))[1])
