"""Whole fits: known laws, the published profile, what is left out and told, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from avsim.costs import CostCard, CurveCost, LinearCost, load
from avsim.costs.fit import FitOptions, fit_costs
from avsim.costs.fit_curve import CurveRule
from avsim.costs.fit_notes import fit_notes
from avsim.costs.fit_run import CardOptions, run_fit, write_fit
from avsim.costs.fit_samples import draft_samples, join_steps, read_trace, verify_samples
from avsim.errors import InputError
from avsim.manifest import json_text
from tests.unit.costs.fit_cases import both, made_up, stair_steps, stairs

CARD = CostCard("made-up", "none", "none", "fitted", "this test")
TRACES = Path(__file__).parents[3] / "traces"
LINEAR = FitOptions(kind="linear")


def test_the_published_profile_gives_the_shipped_preset(reference: Path, tmp_path: Path) -> None:
    run = run_fit(
        [],
        verify=reference / "reference/cost_verify_v4flash_tp4_b300.csv",
        draft=reference / "reference/cost_draft_v4flash_tp4_b300.csv",
        card=CardOptions("b300", "DeepSeek-V4-Flash", "B300", 8192),
        options=FitOptions(rule=CurveRule(capture_limit=1024)),
    )
    preset = load("deepseek-v4-flash-tp4-b300")
    assert isinstance(preset, CurveCost)
    assert isinstance(run.fit.model, CurveCost)
    assert run.fit.model.verify == preset.verify
    assert run.fit.model.draft == preset.draft
    assert run.fit.model.capture_limit == 1024
    assert run.fit.model.card.kind == "measured"
    curve = run.fit.verify.curve
    assert curve is not None
    assert curve.jump is not None
    assert (curve.jump.below, curve.jump.above) == (1024, 1536)
    assert run.fit.verify.closer is not None
    assert run.fit.verify.closer.word == "curve"


@pytest.mark.parametrize("kind", ["curve", "linear"])
def test_a_fit_reads_back_as_it_was_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    run = run_fit([TRACES / "smollm2-eagle-live"], card=CardOptions("live"), options=FitOptions(kind=kind))
    write_fit(run, path)
    assert load(path) == run.fit.model
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["kind"] == kind
    assert data["card"]["model"] == "SmolLM2-135M-Instruct"
    assert data["card"]["num_speculative_tokens"] == 5
    assert "held-out error" in data["card"]["notes"]
    assert "864 rows (sha256:" in data["card"]["source"]
    assert data["fit"]["verify"]["left_out"] == {"with prompt tokens": 61}
    again = run_fit([TRACES / "smollm2-eagle-live"], card=CardOptions("live"), options=FitOptions(kind=kind))
    assert json_text(again.document) == path.read_text(encoding="utf-8"), "no date, no chance"
    with pytest.raises(InputError, match="exists; choose another file or pass --overwrite"):
        write_fit(run, path)
    write_fit(run, path, overwrite=True)


def test_held_out_errors_are_those_of_the_noise_and_the_right_form_is_closer() -> None:
    verify, draft = both(made_up(3000, sigma=0.05))
    fit = fit_costs(verify, draft, LINEAR, CARD)
    overall = fit.verify.errors["linear"][0]
    # |z| has median 0.6745 and 95th percentile 1.96; n = 3000 knows them to about 2 and 3 %.
    assert overall.median_abs.value == pytest.approx(100 * 0.05 * 0.6745, rel=0.1)
    assert overall.p95_abs.value == pytest.approx(100 * 0.05 * 1.96, rel=0.1)
    assert overall.bias.value == pytest.approx(0.0, abs=0.5)
    assert fit.verify.closer is not None
    assert fit.verify.closer.word == "linear", "a curve has no KV term"
    stair = fit_costs(*both(stair_steps()), FitOptions(rule=CurveRule(capture_limit=64)), CARD)
    assert stair.verify.closer is not None
    assert stair.verify.closer.word == "curve", "a line has no cliff"
    assert stair.verify.errors["curve"][0].median_abs.value == pytest.approx(100 * 0.03 * 0.6745, rel=0.1)


def test_a_fitted_curve_charges_the_law_on_both_sides_of_the_cliff() -> None:
    fit = fit_costs(*both(stair_steps(4000)), FitOptions(rule=CurveRule(capture_sizes=tuple(range(8, 65, 8)))), CARD)
    table = fit.model.tables(16, 128).verify
    sizes = np.arange(1, 129)
    # A size has 4000/128 samples at least; the running maximum picks the highest of neighbours, so six errors.
    assert (np.abs(table[1:] / stairs(sizes.astype(np.float64)) - 1) < 6 * 1.2533 * 0.03 / np.sqrt(31)).all()


def test_outliers_are_told_and_do_not_move_either_form() -> None:
    steps = made_up(2000, sigma=0.02)
    steps = replace(steps, tokens=8 * steps.reqs, kv=np.full(2000, np.nan))
    steps = replace(
        steps, forward_ms=(5 + 0.02 * steps.tokens) * (steps.forward_ms / made_up(2000, sigma=0.0).forward_ms)
    )
    hit = np.arange(2000) % 12 == 7
    models = []
    for factor in (4.0, 400.0):
        spoilt = replace(steps, forward_ms=np.where(hit, factor * steps.forward_ms, steps.forward_ms))
        fit = fit_costs(*both(spoilt), LINEAR, CARD)
        assert fit.verify.outliers.count == hit.sum()
        assert len(fit.verify.outliers.largest) == 100
        assert {row for _, row, *_ in fit.verify.outliers.largest} <= set(np.flatnonzero(hit).tolist())
        share = spoilt.forward_ms[hit].sum() / spoilt.forward_ms.sum()
        assert fit.verify.outliers.share_of_time == pytest.approx(share)
        overall = fit.verify.errors["linear"][0]
        # The median of e: noise of σ = 2 %, moved to its 0.5 + 0.083/2 quantile by outliers that count as errors.
        expected = -100 * 0.02 * NormalDist().inv_cdf(0.5 / (1 - hit.mean()))
        assert overall.bias.value == pytest.approx(expected, abs=5 * 100 * 0.02 * 1.2533 / np.sqrt(2000))
        total = overall.total.value
        assert total == pytest.approx(-100 * share * (1 - 1 / factor), abs=1.0), "a clock of typical steps is early"
        assert any("167 outliers (8.3% of samples" in note for note in fit_notes(fit, LINEAR))
        models.append((fit.model.to_json(), fit.verify.curve.points if fit.verify.curve else None))
    assert models[0] == models[1]


def test_steps_with_prompt_tokens_are_left_out_or_get_their_own_term() -> None:
    steps = made_up(1500, prefill=True)
    plain = fit_costs(verify_samples(steps, with_prefill=False), draft_samples(steps), LINEAR, CARD)
    mixed = int((steps.prefill > 0).sum())
    assert plain.verify.samples.left_out == {"with prompt tokens": mixed}
    own = fit_costs(verify_samples(steps, with_prefill=True), draft_samples(steps), LINEAR, CARD)
    assert len(own.verify.samples) == 1500
    assert own.verify.linear.value("per_prefill_token_us") == pytest.approx(8.0, rel=0.1)
    assert own.verify.errors["linear"][0].num_samples == 1500 - mixed, "both are judged on decode steps"
    assert any("a prompt token took" in note for note in fit_notes(own, LINEAR))


def test_the_context_and_the_engine_come_from_the_traces(tmp_path: Path) -> None:
    steps, origin = read_trace(TRACES / "smollm2-eagle-live")
    run = run_fit([TRACES / "smollm2-eagle-live"], card=CardOptions("x"), options=FitOptions())
    decode = steps.prefill == 0
    assert run.fit.model.card.context_tokens == round(float(np.median(steps.kv[decode] / steps.reqs[decode])))
    assert run.fit.model.card.hardware == origin.hardware
    assert isinstance(run.fit.model, CurveCost)
    assert run.fit.model.capture_limit == 1, "no step ran in a graph"
    adaptive = run_fit([TRACES / "smollm2-adaptive-live"], card=CardOptions("x"), options=FitOptions())
    assert "mean nothing" in adaptive.fit.model.card.notes, "what the trace says of its times goes along"


def test_sources_of_different_engines_are_not_mixed_by_chance() -> None:
    two = [TRACES / "smollm2-eagle-live", TRACES / "smollm2-adaptive-live"]
    with pytest.raises(InputError, match=r"different values of num_speculative_tokens \(3, 5\).*--k"):
        run_fit(two, card=CardOptions("x"), options=FitOptions())
    with pytest.raises(InputError, match="name each source once"):
        run_fit([two[0], two[0]], card=CardOptions("x"), options=FitOptions())
    with pytest.raises(InputError, match=r"different values of drafter_kind \(draft-model, eagle\).*--drafter-kind"):
        run_fit(two, card=CardOptions("x", num_speculative_tokens=5), options=FitOptions())
    said = CardOptions("x", num_speculative_tokens=5, drafter_kind="eagle")
    run = run_fit(two, card=said, options=FitOptions())
    assert (run.fit.model.card.drafter_kind, run.fit.model.card.num_speculative_tokens) == ("eagle", 5)
    assert set(run.fit.verify.samples.steps.series.tolist()) == {0, 1}


def test_joined_sources_keep_their_own_time() -> None:
    joined = join_steps([made_up(30), made_up(20, seed=1)])
    assert joined.series.tolist() == [0] * 30 + [1] * 20
    assert joined.row.tolist() == [*range(30), *range(20)]


def test_the_draft_can_come_from_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "draft.csv"
    path.write_text("num_reqs,ms\n1,1.0\n8,2.0\n", encoding="utf-8")
    run = run_fit([TRACES / "smollm2-eagle-live"], draft=path, card=CardOptions("x"), options=FitOptions())
    assert isinstance(run.fit.model, CurveCost)
    assert run.fit.model.draft == ((1, 1.0), (8, 2.0))
    assert run.fit.model.card.kind == "fitted"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-eagle1-greedy", "a dense trace has no engine steps"),
        ("smollm2-eagle1-greedy-fixed5-c8", "its steps do not say forward_ms"),
    ],
)
def test_a_trace_without_timings_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_fit([TRACES / name], card=CardOptions("x"), options=FitOptions())


def test_too_little_to_fit_is_refused() -> None:
    few = made_up(19)
    with pytest.raises(InputError, match="only 19 decode steps with forward times; at least 20"):
        fit_costs(*both(few), FitOptions(), CARD)
    steps = made_up(200)
    with pytest.raises(InputError, match="every step has 8 tokens"):
        fit_costs(*both(replace(steps, tokens=np.full(200, 8.0))), FitOptions(), CARD)
    with pytest.raises(InputError, match=r"no drafter times to fit \(left out: 200 without a drafter time\)"):
        fit_costs(*both(replace(steps, drafter_ms=np.zeros(200))), FitOptions(), CARD)
    with pytest.raises(InputError, match="no size has 500 verify samples"):
        fit_costs(*both(steps), FitOptions(rule=CurveRule(min_samples=500)), CARD)
    with pytest.raises(InputError, match="nothing to fit"):
        run_fit([], card=CardOptions("x"), options=FitOptions())


def test_prompt_tokens_have_no_place_in_a_curve() -> None:
    with pytest.raises(InputError, match="a curve has no term for prompt tokens"):
        run_fit([], card=CardOptions("x"), options=FitOptions(), prefill="own")
    with pytest.raises(InputError, match="--prefill is 'all'"):
        run_fit([], card=CardOptions("x"), options=FitOptions(), prefill="all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cubic"}, "curve or linear"),
        ({"holdout": 0.0}, "--holdout must be a share"),
        ({"holdout": float("nan")}, "--holdout must be a share"),
        ({"by": "day"}, "--by is 'day'"),
        ({"seed": -1}, "--seed must be at least 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FitOptions(**options)


@pytest.mark.parametrize("options", [{"context_tokens": 0}, {"num_speculative_tokens": 0}, {"vocab_size": -1}])
def test_bad_cards_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        CardOptions("x", **options)
    with pytest.raises(InputError, match="--drafter-kind is 'eagel'; did you mean 'eagle'"):
        CardOptions("x", drafter_kind="eagel")
    with pytest.raises(InputError, match="--name is empty"):
        CardOptions(" ")


def test_a_linear_fit_is_the_model_that_was_written() -> None:
    fit = fit_costs(*both(made_up()), LINEAR, CARD)
    assert isinstance(fit.model, LinearCost)
    assert fit.model.per_token_us == fit.verify.linear.value("per_token_us")
    assert fit.model.draft_fixed_ms == fit.draft.linear.value("draft_fixed_ms")
