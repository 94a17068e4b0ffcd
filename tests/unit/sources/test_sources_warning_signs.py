"""What `trace info` warns of: each sign is seen where it is, and not where it is not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from avsim.sources import Trace, TraceCard, write_trace
from avsim.sources.batch_dependence import batch_dependence
from avsim.sources.summary import summarise
from avsim.sources.warning_signs import FEW_SOURCES, Sign, warning_signs

NUM_REQUESTS, NUM_STEPS, NUM_SLOTS, VOCAB = 40, 60, 2, 1000

CARD = TraceCard(
    name="made",
    kind="on-policy",
    target="none",
    drafter="none",
    drafter_kind="unknown",
    num_speculative_tokens=NUM_SLOTS,
    draft_sampling="greedy",
    acceptance_rule="greedy-match",
    temperature=0.0,
    vocab_size=VOCAB,
)


def made(
    folder: Path,
    *,
    effect: float = 0.0,
    trend: float = 0.0,
    level: float = 0.6,
    entropy: float = 1.0,
    seed: int = 0,
    requests: dict[str, Any] | None = None,
    blocks: dict[str, Any] | None = None,
    num_reqs: bool = True,
    card: TraceCard = CARD,
) -> Trace:
    """Requests that share every second or every step, with their own levels; `effect` is per doubling of the batch."""
    rng = np.random.default_rng(seed)
    step = np.repeat(np.arange(NUM_STEPS), NUM_REQUESTS)
    request = np.tile(np.arange(NUM_REQUESTS), NUM_STEPS)
    kept = (step % 2 == 0) | (request % 2 == 0)
    doublings = np.where(step % 2 == 0, 1.0, 0.0)
    own = rng.normal(0, 0.1, NUM_REQUESTS)[request]
    rate = np.clip(level + own + effect * (doublings - 0.5) + trend * (step / NUM_STEPS - 0.5), 0, 1)
    accepted = np.minimum.accumulate(rng.random((NUM_SLOTS, len(step))) < rate, axis=0).sum(axis=0)
    table = pl.DataFrame(
        {
            "step": step,
            "request": request,
            "position": step * (NUM_SLOTS + 1),
            "num_drafted": np.full(len(step), NUM_SLOTS),
            "num_admitted": np.full(len(step), NUM_SLOTS),
            "num_accepted": accepted,
        }
        | {f"entropy_{slot}": np.full(len(step), entropy, dtype=np.float32) for slot in range(NUM_SLOTS)}
    )
    table = table.with_columns(**(blocks or {})).filter(pl.Series(kept))
    usual = {"output_len": pl.lit(NUM_STEPS * (NUM_SLOTS + 1)), "temperature": pl.lit(0.0)}
    people = pl.DataFrame(
        {"request": range(NUM_REQUESTS), "source": range(NUM_REQUESTS), "prompt_len": range(5, 5 + NUM_REQUESTS)}
    ).with_columns(**(usual | (requests or {})))
    steps = table.group_by("step").agg(num_reqs=pl.len().cast(pl.Int64)).sort("step")
    return write_trace(folder, card, people, [table], steps if num_reqs else steps.select("step"))


def signs(trace: Trace) -> dict[str, Sign]:
    return {sign.name: sign for sign in warning_signs(trace, summarise(trace))}


def test_nothing_to_say(tmp_path: Path) -> None:
    assert signs(made(tmp_path / "trace")) == {}


def test_the_shipped_traces_raise_nothing(greedy: Trace, sampled: Trace) -> None:
    assert signs(greedy) == signs(sampled) == {}


def test_entropy_near_that_of_the_vocabulary(tmp_path: Path) -> None:
    found = signs(made(tmp_path / "high", entropy=0.81 * math.log(VOCAB)))
    assert set(found) == {"entropy"}
    assert found["entropy"].values["share"] == pytest.approx(0.81, abs=1e-6)
    assert "81 % of ln(vocabulary)" in found["entropy"].text
    assert signs(made(tmp_path / "low", entropy=0.79 * math.log(VOCAB))) == {}
    unknown = replace(CARD, vocab_size=None)
    assert signs(made(tmp_path / "unknown", entropy=9.0, card=unknown)) == {}


def test_acceptance_as_by_chance_with_high_entropy(tmp_path: Path) -> None:
    entropy = 0.6 * math.log(VOCAB)  # a guess is right in 1.6 % of cases
    none = {"num_accepted": pl.lit(0)}
    assert set(signs(made(tmp_path / "chance", entropy=entropy, blocks=none))) == {"random-outputs"}
    assert signs(made(tmp_path / "better", entropy=entropy, level=0.3)) == {}
    assert signs(made(tmp_path / "sharp", entropy=1.0, blocks=none)) == {}


def test_masked_blocks_do_not_count_for_entropy(tmp_path: Path) -> None:
    odd = pl.col("step") % 3 == 0
    blocks = {"mask": pl.when(odd).then(pl.lit("penalty")), "entropy_0": pl.when(odd).then(pl.lit(99.0)).otherwise(1.0)}
    found = signs(made(tmp_path / "masked", blocks=blocks))
    assert set(found) == {"masked"}
    assert found["masked"].values["reasons"] == {"penalty": found["masked"].values["blocks"]}
    assert "penalty" in found["masked"].text


def test_mixed_temperatures(tmp_path: Path) -> None:
    hot = {"temperature": pl.when(pl.col("request") < 10).then(0.7).otherwise(0.0)}
    found = signs(made(tmp_path / "hot", requests=hot))
    assert set(found) == {"temperatures"}
    assert "30 at 0, 10 at 0.7" in found["temperatures"].text


def test_prompts_of_one_length(tmp_path: Path) -> None:
    found = signs(made(tmp_path / "equal", requests={"prompt_len": pl.lit(1024)}))
    assert set(found) == {"prompt-lengths"}
    assert "all 40 prompts have 1024 tokens" in found["prompt-lengths"].text
    assert signs(made(tmp_path / "unknown", requests={"prompt_len": pl.lit(0)})) == {}


def test_few_requests(tmp_path: Path) -> None:
    found = signs(made(tmp_path / "few", requests={"source": pl.col("request") % (FEW_SOURCES - 1)}))
    assert set(found) == {"few-requests"}
    assert "only 29 requests" in found["few-requests"].text
    assert signs(made(tmp_path / "enough", requests={"source": pl.col("request") % FEW_SOURCES})) == {}


def test_censored_labels(tmp_path: Path) -> None:
    cut = {"num_admitted": pl.lit(1), "num_accepted": pl.min_horizontal("num_accepted", pl.lit(1))}
    found = signs(made(tmp_path / "cut", blocks=cut))
    assert set(found) == {"censored"}
    assert "50.0 % of the drafted slots were trimmed by something other" in found["censored"].text
    on = signs(made(tmp_path / "on", card=replace(CARD, adaptive_verification=True)))
    assert "0.0 % of the drafted slots were trimmed by adaptive verification" in on["censored"].text


def test_acceptance_that_depends_on_the_batch(tmp_path: Path) -> None:
    trace = made(tmp_path / "trace", effect=-0.2)
    sign = signs(trace)["batch"]
    json.dumps(sign.to_json(), allow_nan=False)
    # E[A] = r + r² at level r ± 0.1 on either side of 0.6: 0.75 and 1.19 accepted tokens per block.
    assert sign.values["effect"] == pytest.approx(-0.44, abs=0.06)
    assert sign.values["p_value"] < 1e-6
    assert (sign.values["low_reqs"], sign.values["high_reqs"]) == (20, 40)
    assert sign.values["num_requests"] == 20
    result = batch_dependence(trace)
    assert result is not None
    assert result.to_json() == sign.values


def test_the_batch_test_holds_its_size(tmp_path: Path) -> None:
    results = [batch_dependence(made(tmp_path / str(seed), seed=seed)) for seed in range(40)]
    p_values = np.array([result.p_value for result in results if result is not None])
    assert len(p_values) == 40
    assert p_values.min() > 1e-3
    assert 0.3 < p_values.mean() < 0.7


def test_the_score_is_that_of_a_plain_regression(tmp_path: Path) -> None:
    trace = made(tmp_path / "trace", effect=0.1)
    result = batch_dependence(trace)
    assert result is not None
    blocks, steps = trace.blocks(), trace.steps()
    assert steps is not None
    assert blocks.step is not None
    size = np.log2(steps["num_reqs"].to_numpy())[blocks.step]
    top = bottom = 0.0
    for request in range(NUM_REQUESTS):
        own = blocks.request == request
        design = np.column_stack([np.ones(own.sum()), blocks.step[own]])
        left = size[own] - design @ np.linalg.lstsq(design, size[own], rcond=None)[0]
        top += left @ blocks.num_accepted[own]
        bottom += left @ left
    assert result.effect == pytest.approx(top / bottom, rel=1e-9)


def test_what_the_batch_test_leaves_alone(tmp_path: Path, greedy: Trace) -> None:
    between = {"num_accepted": pl.when(pl.col("request") % 2 == 0).then(2).otherwise(0)}
    short = {"num_drafted": 1 + pl.col("step") % 2, "num_admitted": 1 + pl.col("step") % 2}
    short |= {"num_accepted": pl.min_horizontal("num_accepted", 1 + pl.col("step") % 2)}
    for name, blocks in (("between", between), ("short", short)):
        found = batch_dependence(made(tmp_path / name, blocks=blocks))
        assert found is None or found.p_value > 1e-3, name
    trend = batch_dependence(made(tmp_path / "trend", trend=0.8))
    assert trend is not None
    assert trend.p_value > 1e-3
    assert batch_dependence(made(tmp_path / "none", num_reqs=False)) is None
    assert batch_dependence(made(tmp_path / "on", card=replace(CARD, adaptive_verification=True))) is None
    assert batch_dependence(greedy) is None
