"""The fast rows of experiments/published, run as `avsim experiment run` does; most need AVSIM_REFERENCE."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from avsim.experiments import Experiment, find
from avsim.experiments.runner import run_experiment, stored_outcome
from avsim.planning.throughput_table import Point

PUBLISHED = find(Path(__file__).parent.parent.parent / "experiments/published")


@pytest.mark.parametrize("experiment", [item for item in PUBLISHED if item.fast], ids=lambda item: item.id)
def test_row(experiment: Experiment, tmp_path: Path) -> None:
    if missing := experiment.missing():
        pytest.skip(f"{missing}: the published measurements are not part of the repository")
    outcome, stored = run_experiment(experiment, tmp_path / experiment.id), stored_outcome(experiment)
    # A prediction that misses its target is a result, told as such where it is stored; an identity must hold.
    expected = "passed" if experiment.kind == "exact" else stored.status
    assert outcome.status == expected, (outcome.message, outcome.failed)
    names = [check.name for check in outcome.result.checks]
    assert names == [check.name for check in stored.result.checks], "results are out of date: run with --update"
    if experiment.kind == "exact":
        for check, kept in zip(outcome.result.checks, stored.result.checks, strict=True):
            assert check.got == pytest.approx(kept.got, rel=1e-9, abs=1e-9), check.name


@pytest.mark.parametrize("experiment", PUBLISHED, ids=lambda item: item.id)
def test_what_is_stored_is_whole(experiment: Experiment) -> None:
    """Result, plot and README belong together, so what failed is told where it is shown."""
    stored = stored_outcome(experiment)
    readme = (experiment.folder / "README.md").read_text(encoding="utf-8")
    assert f"- Result: **{stored.status}**" in readme
    assert stored.result.finding in readme
    assert "](plot.svg)" in readme
    assert (experiment.folder / "plot.svg").is_file()
    assert [path.name for path in experiment.folder.glob("*.svg")] == ["plot.svg"]
    assert list(stored.result.inputs) == [*experiment.needs, *(path.name for path in experiment.traces)]


def test_the_slow_rows_of_pr_52228_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """V5 and V6 in small, on made-up cells: both arms of one dataset, one arm of another."""
    monkeypatch.syspath_prepend(next(item.folder for item in PUBLISHED if item.id == "V5"))
    method = importlib.import_module("pr52228")
    monkeypatch.setattr(method, "SWEEPS", 60)
    monkeypatch.setattr(method, "WEIGHED", 60)
    rates = {"code": (4000.0, 4400.0, 4.0), "chat": (2600.0, 3300.0, 2.4)}
    rows = {
        name: method.Row(
            Point(name, "fixed", 7, 64, 60.0, off, length, 1.0), Point(name, "adaptive", 7, 64, 60.0, on, length, 1.0)
        )
        for name, (off, on, length) in rates.items()
    }
    found = method.fit_and_predict(rows, ["code"], 20, 0)
    assert 1 <= found.effective_draws <= 60
    middle, low, high = found.gain_pct("chat")
    assert low <= middle <= high
    # What is known of one dataset is used for it: its gain was 10 %.
    assert abs(found.gain_pct("code")[0] - 10) < 10
