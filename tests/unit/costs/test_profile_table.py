"""The tables of a profile: points, KV term, draft forms, provenance, samples, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from profile_cases import PLAN, MadeUp, draft_law, profile, verify_law
from typer.testing import CliRunner

from avsim import costs
from avsim.cli.cost import app
from avsim.costs.base import StepShape
from avsim.costs.curve import CurveCost
from avsim.costs.fit import FitOptions
from avsim.costs.fit_curve import CurveRule
from avsim.costs.fit_run import CardOptions, run_fit
from avsim.costs.profile.run import check_targets, write_profile
from avsim.errors import InputError

CASES = Path(__file__).with_name("profile_cases.py")


def step(tokens: int, reqs: int, context: int) -> StepShape:
    return StepShape(np.array([reqs]), np.array([tokens]), np.array([float(reqs * context)]), np.array([0]))


def test_the_table_gives_the_law_back(tmp_path: Path) -> None:
    run = profile(MadeUp(sigma=0.01))
    paths = write_profile(run, tmp_path / "law.json")
    assert [path.name for path in paths] == ["law.json", "law-single.json"]
    model = costs.load(paths[0])
    assert isinstance(model, CurveCost)
    assert model == run.tables[0].model
    assert model.uses_kv
    assert model.capture_limit == 1
    for tokens, reqs, context in ((1, 1, 100), (12, 3, 250), (16, 4, 400), (6, 2, 1000)):
        assert model.verify_ms(step(tokens, reqs, context))[0] == pytest.approx(
            verify_law(tokens, reqs, context), rel=0.015
        )
    assert model.draft_ms(step(4, 4, 100))[0] == pytest.approx(draft_law(4, 3, 100), rel=0.015)
    assert (model.card.kind, model.card.model, model.card.hardware) == ("measured", "made-up", "a law")
    assert (model.card.num_speculative_tokens, model.card.vocab_size, model.card.drafter_kind) == (3, 1000, "eagle")
    assert model.card.context_tokens is None
    assert "2026-01-02" in model.card.source
    assert "Included: everything. Not included: nothing." in model.card.notes
    data = json.loads(paths[0].read_text(encoding="utf-8"))["profile"]
    assert data["measured"]["dtype"] == "float64"
    assert data["kv_term"]["low"] <= 400 <= data["kv_term"]["high"]
    assert data["manifest"]["config"]["plan"]["repeats"] == 30


def test_the_samples_beside_it_are_what_cost_fit_reads(tmp_path: Path) -> None:
    plan = replace(PLAN, contexts=(100,), spreads=("block",))
    machine = MadeUp(sigma=0.01, spoil={60: 3.0})
    run = profile(machine, plan)
    path = write_profile(run, tmp_path / "law.json")[0]
    samples = pl.read_csv(path.with_suffix(".csv"))
    assert len(samples) == run.measured.ms.size
    assert samples["outlier"].sum() == 1
    assert samples["step"].is_sorted()
    assert samples["other_depth_ms"].count() == samples["drafter_ms"].count() == 3 * 30
    rule = CurveRule(capture_limit=1)
    fit = run_fit([path.with_suffix(".csv")], card=CardOptions("x", "m", "h"), options=FitOptions(rule=rule))
    fitted = fit.fit.model
    assert isinstance(fitted, CurveCost)
    assert fitted.verify == run.tables[0].model.verify
    assert fitted.draft == run.tables[0].model.draft
    assert fit.fit.verify.outliers.count == int(samples.filter(pl.col("forward_ms").is_not_null())["outlier"].sum())


def test_one_context_has_no_term_and_is_named() -> None:
    run = profile(MadeUp(sigma=0.01), replace(PLAN, contexts=(100,), spreads=("single",)))
    assert len(run.tables) == 1
    model = run.tables[0].model
    assert not model.uses_kv
    assert model.card.context_tokens == 100
    assert dict(model.verify)[16] == pytest.approx(verify_law(16, 16, 100), rel=0.015)
    assert "Measured at 100 cached tokens a request, and no other" in model.card.notes


def test_a_context_that_no_term_describes_gives_a_table_each(tmp_path: Path) -> None:
    """Here the cache only costs in small steps, as where a fixed floor hides it in large ones."""

    def law(tokens: int, reqs: int, context: int) -> float:
        return max(5.0 + 0.01 * reqs * context, 12.0) if tokens > 1 else 5.0 + 0.01 * context

    run = profile(MadeUp(sigma=0.01, verify=law))
    assert any("one KV term does not describe block steps" in note for note in run.notes)
    paths = write_profile(run, tmp_path / "law.json")
    names = ["law.json", "law-context-400.json", "law-single-context-100.json", "law-single-context-400.json"]
    assert [path.name for path in paths] == names
    for path, context in zip(paths[:2], PLAN.contexts, strict=True):
        model = costs.load(path)
        assert model.card.context_tokens == context
        assert model.verify_ms(step(16, 4, context))[0] == pytest.approx(law(16, 4, context), rel=0.015)


def test_a_draft_that_knows_context_gives_tables_or_parts() -> None:
    def law(reqs: int, depth: int, context: int) -> float:
        return draft_law(reqs, depth, context) + depth * 0.0005 * reqs * context

    run = profile(MadeUp(sigma=0.01, draft=law))
    assert any("draft points know none" in note for note in run.notes)
    assert len(run.tables) == 4
    parts = profile(MadeUp(sigma=0.01, draft=law), draft_form="parts")
    assert len(parts.tables) == 2
    model = parts.tables[0].model
    assert model.draft_depends_on_depth
    assert model.draft_parts is not None
    assert model.draft_parts.next_per_kv_token_ns == pytest.approx(500, rel=0.1)
    shape = step(4, 4, 300)
    assert model.draft_ms(shape)[0] == pytest.approx(law(4, 3, 300), rel=0.02)
    two = replace(shape, draft_depth=np.array([2]))
    assert model.draft_ms(two)[0] == pytest.approx(law(4, 2, 300), rel=0.03)
    with pytest.raises(InputError, match="parts needs two depths"):
        profile(MadeUp(), replace(PLAN, depths=()), draft_form="parts")


def test_parts_that_describe_poorly_say_so() -> None:
    run = profile(MadeUp(sigma=0.01, draft=lambda reqs, depth, context: 1 + (reqs > 4) * 3 * depth), draft_form="parts")
    assert any("describe drafting POORLY" in note for note in run.notes)


def test_without_a_drafter_drafting_is_free_and_says_so() -> None:
    plan = replace(PLAN, requests=(), depths=())
    run = profile(MadeUp(draft=None), plan, no_drafter=True)
    model = run.tables[0].model
    assert model.draft_ms(step(4, 4, 0))[0] == 0
    assert "NO DRAFTER was measured: drafting is charged as 0 ms" in model.card.notes
    assert model.card.drafter_kind is None
    with pytest.raises(InputError, match="--requests is empty"):
        profile(MadeUp(), plan)


def test_what_a_curve_cannot_hold_is_said() -> None:
    """A cost of each request: steps of one-token requests take longer than blocks of as many tokens."""
    run = profile(MadeUp(sigma=0.01, verify=lambda tokens, reqs, context: 5 + 0.1 * tokens + 0.5 * reqs))
    note = next(note for note in run.notes if note.startswith("At equal tokens"))
    assert "neither table holds for both" in note
    plain = profile(MadeUp(sigma=0.01))
    note = next(note for note in plain.notes if note.startswith("At equal tokens"))
    assert "take 1.00 times" in note or "take 0.99 times" in note or "take 1.01 times" in note
    assert "neither" not in note
    one = profile(MadeUp(sigma=0.01), replace(PLAN, contexts=(10_000,)))
    note = next(note for note in one.notes if note.startswith("At equal tokens steps"))
    assert "one context cannot tell" in note


def test_noise_is_said() -> None:
    loud = profile(MadeUp(sigma=0.4), replace(PLAN, repeats=6))
    assert any(note.startswith("NOISE: the median of ") for note in loud.notes)
    assert not any(note.startswith("NOISE") for note in profile(MadeUp(sigma=0.01)).notes)


def test_captured_sizes_make_a_staircase() -> None:
    machine = MadeUp(sigma=0.01)
    machine.capture_limit = 8
    model = profile(machine).tables[0].model
    assert model.capture_limit == 8
    assert model.verify_ms(step(5, 2, 0))[0] == model.verify_ms(step(8, 2, 0))[0]
    assert model.verify_ms(step(9, 2, 0))[0] != model.verify_ms(step(8, 2, 0))[0]


def test_files_are_not_replaced_and_nothing_is_half_written(tmp_path: Path) -> None:
    run = profile(MadeUp())
    (tmp_path / "law-single.csv").write_text("mine", encoding="utf-8")
    for call in (lambda: write_profile(run, tmp_path / "law.json"), lambda: check_targets(
        tmp_path / "law.json", PLAN, overwrite=False
    )):  # fmt: skip
        with pytest.raises(InputError, match=r"law-single\.csv exists"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["law-single.csv"]
    write_profile(run, tmp_path / "law.json", overwrite=True)
    assert len(list(tmp_path.iterdir())) == 4
    with pytest.raises(InputError, match=r"ends in \.json"):
        check_targets(tmp_path / "law.csv", PLAN, overwrite=True)
    (tmp_path / "possible-context-100.json").write_text("mine", encoding="utf-8")
    check_targets(tmp_path / "possible.json", PLAN, overwrite=False)  # the first context has no file of that name
    (tmp_path / "possible-context-400.json").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="possible-context-400"):
        check_targets(tmp_path / "possible.json", PLAN, overwrite=False)


FACTORY = """
import sys
sys.path.insert(0, {folder!r})
from profile_cases import MadeUp

def make(*, model, drafter, device, dtype):
    return MadeUp()
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here real time is taken of steps that do nothing, so only the way through is looked at."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORY.format(folder=str(CASES.parent)), encoding="utf-8")
    words = [
        "profile",
        "--runner",
        "mine.py:make",
        "--tokens",
        "1,2,4",
        "--context",
        "16",
        "--k",
        "3",
        "--repeats",
        "6",
    ]
    done = CliRunner().invoke(app, [*words, "--out", "a.json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "a.json: curve 'a', measured" in done.stdout
    assert "rounds" not in done.stdout.splitlines()[0]
    assert "steps made ready" in done.stderr
    printed = CliRunner().invoke(
        app, [*words, "--out", "b.json", "--json", "--spread", "block"], catch_exceptions=False
    )
    assert json.loads(printed.stdout) == json.loads(Path("b.json").read_text(encoding="utf-8"))
    assert json.loads(printed.stdout)["profile"]["samples"] == "b.csv"
    shown = CliRunner().invoke(app, ["show", "b.json"], catch_exceptions=False)
    assert "made-up" in shown.stdout
    with pytest.raises(InputError, match=r"a\.csv exists|a\.json exists"):
        CliRunner().invoke(app, [*words, "--out", "a.json"], catch_exceptions=False)
    with pytest.raises(InputError, match="whole numbers"):
        CliRunner().invoke(app, [*words, "--out", "c.json", "--context", "x"], catch_exceptions=False)
