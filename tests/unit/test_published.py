"""The fast rows of experiments/published, run as `avsim experiment run` does; most need AVSIM_REFERENCE."""

from __future__ import annotations

from pathlib import Path

import pytest

from avsim.experiments import Experiment, find
from avsim.experiments.runner import run_experiment, stored_outcome

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
