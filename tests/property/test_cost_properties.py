"""The staircase against a loop written from its docstring; laws that estimates keep whatever their options."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from avsim.costs import RooflineCost, StepShape, load, staircase


@st.composite
def curves(draw):
    sizes = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=8)))
    ms = draw(st.lists(st.floats(0.01, 100), min_size=len(sizes), max_size=len(sizes)))
    limit = draw(st.one_of(st.just(0), st.sampled_from(sizes), st.integers(1, 50)))
    return list(zip(sizes, ms, strict=True)), limit


def slow_value(size: int, points: list[tuple[int, float]], capture_limit: int) -> float:
    tops = [(at, max(ms for other, ms in points if other <= at)) for at, _ in points]
    if size > tops[-1][0]:
        if len(tops) == 1:
            return tops[0][1]
        (x0, y0), (x1, y1) = tops[-2:]
        return y1 + (y1 - y0) / (x1 - x0) * (size - x1)
    padded = next((at, ms) for at, ms in tops if at >= size)
    above = [(at, ms) for at, ms in tops if at > capture_limit]
    if not capture_limit or size <= capture_limit or not above or size <= above[0][0]:
        return padded[1]
    x0, y0 = next((at, ms) for at, ms in reversed(above) if at <= size)
    x1, y1 = padded
    return y0 if x0 == x1 else y0 + (y1 - y0) / (x1 - x0) * (size - x0)


@given(curves(), st.integers(0, 90))
def test_staircase_equals_the_slow_reference(curve, limit):
    points, capture_limit = curve
    table = staircase(limit, points, capture_limit)
    expected = [slow_value(size, points, capture_limit) for size in range(limit + 1)]
    np.testing.assert_allclose(table, expected, rtol=1e-12)


@given(curves())
def test_staircase_never_falls(curve):
    points, capture_limit = curve
    assert (np.diff(staircase(120, points, capture_limit)) >= -1e-9).all()


@given(curves(), st.integers(0, 60))
def test_a_longer_table_starts_with_the_shorter_one(curve, limit):
    points, capture_limit = curve
    longer = staircase(limit + 30, points, capture_limit)
    assert staircase(limit, points, capture_limit).tolist() == longer[: limit + 1].tolist()


SIZES = ("num_reqs", "num_tokens", "kv_tokens", "draft_depth", "logits")


@st.composite
def estimates(draw):
    name, gpu, tp = draw(
        st.sampled_from([("llama-3.1-8b", "h100", 1), ("gpt-oss-120b", "b200", 2), ("deepseek-v4-flash", "b300", 4)])
    )
    options = {
        "model": name,
        "gpu": gpu,
        "tp": tp,
        "drafter": draw(st.sampled_from(["eagle", "eagle3", "mtp", "dflash", "dspark", "ngram"])),
        "capture_limit": draw(st.sampled_from([0, 64, 512])),
        "overlap": draw(st.booleans()),
        "expert_correlation": draw(st.floats(0, 1)),
        "kernel_us": draw(st.floats(0, 20)),
        "cpu_ms": draw(st.floats(0, 20)),
        "eager_us_per_layer": draw(st.floats(0, 1000)),
    }
    model = load("roofline:" + ",".join(f"{key}={value}" for key, value in options.items()))
    assert isinstance(model, RooflineCost)
    return model


@st.composite
def shapes(draw):
    """A step, and the same step with one size larger."""
    reqs = draw(st.integers(1, 600))
    step = {
        "num_reqs": reqs,
        "num_tokens": reqs + draw(st.integers(0, 4000)),
        "kv_tokens": float(draw(st.integers(0, 10**6))),
        "draft_depth": draw(st.integers(0, 9)),
    }
    step["logits"] = draw(st.integers(0, step["num_tokens"]))
    which = draw(st.sampled_from(SIZES))
    larger = step | {which: step[which] + draw(st.integers(1, 700))}
    if which == "num_reqs":  # another request brings tokens and a cache: fewer of each would save attention
        more = larger["num_reqs"] / reqs
        larger |= {"num_tokens": int(np.ceil(step["num_tokens"] * more)), "kv_tokens": step["kv_tokens"] * more}
    columns = {key: np.array([step[key], larger[key]]) for key in SIZES}
    return StepShape(num_prefill_tokens=np.zeros(2, dtype=np.int64), **columns)


@given(estimates(), shapes())
def test_an_estimate_never_falls_when_a_size_rises(model, steps):
    for ms in (model.verify_ms(steps), model.draft_ms(steps), model.step_ms(steps, drafting=True)):
        assert np.isfinite(ms).all()
        assert ms[1] >= ms[0] - 1e-9
    whole = model.verify_ms(steps) + model.draft_ms(steps) + model.overhead_ms
    np.testing.assert_allclose(model.step_ms(steps, drafting=True), whole, rtol=1e-9)


@given(estimates(), st.integers(1, 200), st.integers(0, 7), st.floats(0, 5000))
def test_tables_of_an_estimate_are_whole_steps(model, num_reqs, depth, kv):
    tables = model.tables(num_reqs, 4 * num_reqs, kv_tokens_per_req=kv, depth=depth)
    tokens = np.arange(num_reqs, 4 * num_reqs + 1)
    reqs = np.full_like(tokens, num_reqs)
    steps = StepShape(reqs, tokens, reqs * kv, 0 * reqs, np.full_like(reqs, depth))
    np.testing.assert_allclose(
        tables.draft[num_reqs] + tables.verify[tokens], model.step_ms(steps, drafting=True), rtol=1e-9
    )
    assert (np.diff(tables.verify) >= -1e-9).all()
