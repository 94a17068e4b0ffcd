"""Noise, drift and bad profiles: what they do, and that the same seed does the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

from avsim import costs
from avsim.costs import CostModel, StepShape, load
from avsim.costs.inject import DistortedCost, NoisyCost
from avsim.errors import InputError

B300 = "deepseek-v4-flash-tp4-b300"


def steps(count: int, tokens: int = 64, **more: np.ndarray) -> StepShape:
    same = np.ones(count, dtype=np.int64)
    return StepShape(same * 16, same * tokens, np.zeros(count), 0 * same, **more)  # type: ignore[arg-type]


def profile(model: CostModel, sizes: np.ndarray) -> np.ndarray:
    return model.verify_ms(StepShape(np.minimum(sizes, 1), sizes, 0.0 * sizes, 0 * sizes))


def test_noise_is_log_normal_with_the_mean_kept_and_keyed_by_step_and_seed() -> None:
    clean, noisy = load(B300), load(f"noisy:base={B300},sd=0.1,seed=3")
    many = steps(20_000, step=np.arange(20_000))
    ratio = noisy.step_ms(many, drafting=True) / clean.step_ms(many, drafting=True)
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.003)
    assert np.std(np.log(ratio)) == pytest.approx(0.1, rel=0.03)
    assert abs(np.corrcoef(ratio[1:], ratio[:-1])[0, 1]) < 0.03
    later = noisy.step_ms(steps(100, step=np.arange(100, 200)), drafting=True)
    assert (later == noisy.step_ms(many, drafting=True)[100:200]).all()
    other = load(f"noisy:base={B300},sd=0.1,seed=4").step_ms(many, drafting=True)
    assert (other != noisy.step_ms(many, drafting=True)).mean() > 0.99


def test_drift_grows_with_the_clock_up_to_its_end_and_with_tokens() -> None:
    clean = load(B300)
    drifting = load(f"noisy:base={B300},drift_pct=20,drift_minutes=10,drift_tokens=128")
    at = steps(4, clock_ms=np.array([0.0, 150e3, 600e3, 6000e3]))
    assert drifting.verify_ms(at) / clean.verify_ms(at) == pytest.approx([1.0, 1.025, 1.1, 1.1])
    full = steps(1, tokens=512, clock_ms=np.array([600e3]))
    assert drifting.verify_ms(full) / clean.verify_ms(full) == pytest.approx([1.2])


def test_tables_of_a_noisy_clock_are_those_of_its_base() -> None:
    clean, noisy = load("llama-3.1-8b-h100-eagle"), load("noisy:base=llama-3.1-8b-h100-eagle,sd=0.3,drift_pct=50")
    for kv in (0.0, 500.0):
        one, other = (model.tables(16, 64, kv_tokens_per_req=kv) for model in (clean, noisy))
        assert other.verify == pytest.approx(one.verify)
        assert other.draft == pytest.approx(one.draft)


def test_a_bad_profile() -> None:
    clean, sizes = load(B300), np.arange(1, 3000)
    true = profile(clean, sizes)
    scaled = profile(load(f"distorted:base={B300},scale=0.5"), sizes)
    assert scaled == pytest.approx(true / 2)
    tilted = profile(load(f"distorted:base={B300},tilt_pct=50"), sizes)
    assert tilted[[0, 1023]] == pytest.approx(true[[0, 1023]] * [1.0, 1.5])
    drafts = load(f"distorted:base={B300},draft_scale=3").draft_ms(steps(1))
    assert drafts == pytest.approx(3 * clean.draft_ms(steps(1)))


def test_jitter_keeps_what_is_flat_and_what_rises() -> None:
    sizes = np.arange(1, 1025)
    true, wrong = profile(load(B300), sizes), profile(load(f"distorted:base={B300},jitter=0.2,seed=5"), sizes)
    assert np.abs(np.log(wrong / true)).max() > 0.1
    assert (np.diff(wrong) >= 0).all()
    assert (np.diff(wrong)[np.diff(true) == 0] == 0).all()


def test_a_spike_lifts_all_larger_sizes_as_vllms_running_maximum_does() -> None:
    sizes = np.arange(1, 1025)
    true, wrong = (
        profile(load(B300), sizes),
        profile(load(f"distorted:base={B300},spike_tokens=64,spike_factor=2"), sizes),
    )
    spike = 2 * true[63]
    assert wrong[:56] == pytest.approx(true[:56])
    assert wrong[56:] == pytest.approx(np.maximum(true[56:], spike))


def test_a_cliff_that_was_not_seen() -> None:
    sizes = np.arange(1, 2049)
    true, wrong = profile(load(B300), sizes), profile(load(f"distorted:base={B300},no_cliff=true"), sizes)
    assert wrong[:1024] == pytest.approx(true[:1024])
    assert true[1024] > 4 * true[1023]
    assert wrong[1024] < 1.01 * true[1023]
    assert wrong[2047] == pytest.approx(true[1023] + 1024 * (true[1023] - true[511]) / 512)


def test_the_error_table_grows_with_the_question_and_stays_the_same() -> None:
    model = load(f"distorted:base={B300},jitter=0.1,tilt_pct=10")
    small = profile(model, np.arange(1, 100))
    profile(model, np.arange(1, 9000))
    assert (profile(model, np.arange(1, 100)) == small).all()


def test_both_are_labelled_synthetic_and_keep_the_model() -> None:
    for text, kind in ((f"noisy:{B300},sd=0.1", NoisyCost), (f"distorted:{B300},tilt_pct=-10", DistortedCost)):
        model = load(text)
        assert isinstance(model, kind)
        assert (model.card.kind, model.card.model) == ("synthetic", "DeepSeek-V4-Flash-0731")
        assert model.card.notes.startswith(f"SYNTHETIC: {B300} (published)")
        assert costs.parse(json.dumps(costs.dump(model)), "x") == model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noisy:base=nothing", "no cost preset or file 'nothing'"),
        (f"noisy:{B300},sd=-1", r"sd must lie in \[0, 2\]"),
        (f"noisy:{B300},sd=nan", r"sd must lie in \[0, 2\]"),
        (f"noisy:{B300},drift_pct=-5", "drift_pct must lie in"),
        (f"noisy:{B300},drift_minutes=0", "drift_minutes must be > 0"),
        (f"distorted:{B300},scale=0", "scale and draft_scale must lie in"),
        (f"distorted:{B300},tilt_pct=-100", "tilt_pct must lie in"),
        (f"distorted:{B300},spike_tokens=64,spike_factor=0.5", "spike_factor in"),
        ("distorted:llama-3.1-8b-h100-eagle,no_cliff=true", "no_cliff needs a base with a capture limit"),
    ],
)
def test_bad_specs_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(text)
