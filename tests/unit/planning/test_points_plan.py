"""A plan from a throughput table that a known law made."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.planning.infer import Priors
from avsim.planning.points_plan import TablePlan, plan_from_points
from avsim.planning.predict import Overhead
from avsim.planning.throughput_table import Point

LOADS = (1, 16, 128)


def rate(reqs: int, depth: int) -> float:
    """A law of its own: 8 ms, 20 µs a token, drafting 0.5 ms and 2 µs a slot; 70 % accepted."""
    length = (1 - 0.7 ** (depth + 1)) / 0.3
    ms = 8 + 0.02 * reqs * (1 + depth) + (depth > 0) * (0.5 + 0.002 * reqs * depth)
    return reqs * length / ms * 1e3


def points(workload: str = "") -> list[Point]:
    return [
        Point(workload, "fixed" if depth else "none", depth, load, float(load), rate(load, depth))
        for load in LOADS
        for depth in (0, 1, 3)
    ]


def adaptive(workload: str = "") -> list[Point]:
    return [Point(workload, "adaptive", 3, load, float(load), 1.02 * rate(load, 3)) for load in LOADS]


def plan(table: list[Point], **options: object) -> TablePlan:
    return plan_from_points(table, Priors.load(), **({"limit": None, "sweeps": 200, "draws": 40} | options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> TablePlan:
    return plan([*points(), *adaptive()])


def test_adaptive_cells_are_compared_with_and_not_fitted(found: TablePlan) -> None:
    assert len(found.posterior.fit.points) == 9
    assert found.measured == {("", load): pytest.approx(1.02 * rate(load, 3) / best(load)) for load in LOADS}
    alone = plan(points())
    assert alone.measured == {}
    assert alone.predictions == found.predictions


def best(load: int) -> float:
    return max(rate(load, depth) for depth in (0, 1, 3))


def test_the_fit_reproduces_the_table_and_ranges_hold_the_ratio(found: TablePlan) -> None:
    assert found.fit_rms_pct < 1.5
    assert found.fit_worst_pct >= found.fit_rms_pct
    for line in found.predictions:
        assert line.low < line.low80 < line.ratio < line.high80 < line.high
        assert line.against == f"fixed:{[0, 1, 3][int(np.argmax([rate(line.concurrency, d) for d in (0, 1, 3)]))]}"


def test_json_says_what_it_rests_on(found: TablePlan) -> None:
    data = found.to_json()
    assert (data["cells"], data["num_speculative_tokens"], data["capture_limit"], data["draws"]) == (9, 3, None, 40)
    assert data["av_overhead_ms"] is None
    assert data["confidence_priors"]["log_sd"] == list(Priors.load().confidence["log_sd"])
    assert [line["measured_ratio"] is not None for line in data["predictions"]] == [True] * 3
    notes = " ".join(data["notes"])
    for part in ("K = 3", "none assumed", "fitted costs", "priors.toml", "unknown", "experiments/published"):
        assert part in notes


def test_overhead_limit_and_depth_are_told_and_used() -> None:
    dear = plan(points(), overhead=Overhead(30.0), limit=256, depth=1)
    assert {line.word for line in dear.predictions} == {"loss"}
    data = dear.to_json()
    assert (data["capture_limit"], data["num_speculative_tokens"]) == (256, 1)
    assert data["av_overhead_ms"] == {"mean_ms": 30.0, "sd_ms": 0.0}
    assert "past 256 tokens" in " ".join(data["notes"])


@pytest.mark.parametrize(("workload", "name"), [("chat", "chat"), ("", "all")])
def test_an_explained_workload_is_fitted_and_named(workload: str, name: str) -> None:
    table = [point for point in points(workload) if (point.concurrency, point.depth) in ((1, 0), (1, 1))]
    table.append(Point(workload, "adaptive", 1, 1, 1.0, rate(1, 1)))
    explained = plan(table, explain=[name], sweeps=20)
    assert len(explained.posterior.fit.points) == 3
    assert explained.explains == (workload,)
    assert "nothing is predicted there" in " ".join(explained.notes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"explain": ["code"]}, "no workload 'code'"),
        ({"depth": 4}, "largest, 3"),
        ({"depth": 0}, "between 1"),
        ({"draws": 5}, "at least 40"),
    ],
)
def test_options_that_the_table_cannot_answer_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan(points(), **options)


def test_a_table_that_never_drafts_is_refused() -> None:
    with pytest.raises(InputError, match="one that drafts"):
        plan([point for point in points() if point.policy == "none"])


def test_the_same_seed_gives_the_same_plan() -> None:
    first, again, other = (plan(points(), sweeps=30, seed=seed) for seed in (1, 1, 2))
    assert first.to_json() == again.to_json()
    assert first.to_json() != other.to_json()


def test_logit_rows_limit_the_budget(found: TablePlan) -> None:
    """With as many rows as requests nothing can be verified: drafting is paid for and every request emits one token."""
    tight = plan(points(), max_total_logits=128)
    fit = tight.posterior.fit
    theta = tight.posterior.best
    law = fit.law(theta[None]).draw(0)
    rate_tok_s, length = fit.adaptive(theta, law, Point("", "adaptive", 3, 128, 128.0, 1.0))
    assert length == 1
    plain = law.throughput_tok_s(128, 1.0, 0)
    drafting = law.draft_ms(128, 3)
    assert rate_tok_s == pytest.approx(128 / (128 / plain * 1e3 + drafting) * 1e3)
    ratios = {line.concurrency: line.ratio for line in tight.predictions}
    free = {line.concurrency: line.ratio for line in found.predictions}
    assert ratios[1] == free[1]
    assert ratios[128] < free[128]
    assert tight.to_json()["max_total_logits"] == 128
    assert any("at most 128" in note for note in tight.notes)
    assert any("no limit assumed" in note for note in found.notes)
