"""`avsim experiment run`: everything below a folder, and the one table of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from avsim.errors import InputError
from avsim.experiments.checks import Result
from avsim.experiments.runner import Outcome, Progress, run_experiments
from avsim.experiments.spec import REFERENCE, Experiment, find
from avsim.experiments.sweep_run import run_sweep
from avsim.experiments.sweep_table import tally
from avsim.experiments.table import refreshed_readme, relative_link, results_markdown
from avsim.manifest import check_writable, json_text, make_manifest, read_manifest, read_text, write_file

__all__ = ["document", "run_folder"]

_COMMAND = "experiment run"
_RUNS = "runs"


def run_folder(
    folder: Path,
    *,
    out: Path | None = None,
    update: bool = False,
    fast: bool = False,
    workers: int | None = None,
    progress: Progress = lambda done, total, what: None,
) -> list[Outcome]:
    """Run the experiment of a folder, or all below it, and write one table.

    Args:
        out: write results.md, results.json and a folder per experiment here; a folder of an earlier run is replaced.
        update: write result, table and plot into each experiment's own folder, its README's result block, and
            results.md and results.json into `folder`; whatever crashed or was refused there stays as it was.
        fast: only those marked fast; sweeps are not.
        workers: processes; None for one per core.

    Sweeps run after the others, one at a time. They keep finished replays in `runs/` of their folder (or of `out`).

    Raises:
        InputError: a malformed experiment, a folder that cannot be written, or `update` where something would be left
            out.
    """
    found = [item for item in find(folder) if item.fast or not fast]
    if not found:
        raise InputError(f"{folder}: no experiment there is marked fast")
    if update:
        _check_update(folder, found, fast, out)
    if out is not None:
        _start(out, folder)
    with tempfile.TemporaryDirectory(prefix="avsim-") as scratch:
        target = out or Path(scratch)
        plain = [item for item in found if item.kind != "sweep"]
        outcomes = {
            item.experiment.id: item
            for item in (run_experiments(plain, target, workers=workers, progress=progress) if plain else [])
        }
        for item in found:
            if item.kind == "sweep":
                outcomes[item.id] = _sweep(item, out, update, workers, progress)
        ordered = [outcomes[item.id] for item in found]
        if update:
            for outcome in ordered:
                _store(outcome, target / outcome.experiment.id)
            if len(ordered) > 1:
                _write_results(ordered, folder, folder)
        if out is not None:
            _write_results(ordered, out, None)
    return ordered


def document(outcomes: list[Outcome], folder: Path) -> dict[str, Any]:
    """Return results.json: the manifest, and every experiment with its checks."""
    inputs = {name: found for outcome in outcomes for name, found in outcome.result.inputs.items()}
    return {"manifest": _manifest(folder, inputs), "experiments": [outcome.to_json() for outcome in outcomes]}


def _write_results(outcomes: list[Outcome], where: Path, linked_from: Path | None) -> None:
    link = relative_link(linked_from) if linked_from is not None else lambda outcome: ""
    write_file(where / "results.md", results_markdown(outcomes, link))
    write_file(where / "results.json", json_text(document(outcomes, where)))


def _sweep(item: Experiment, out: Path | None, update: bool, workers: int | None, progress: Progress) -> Outcome:
    where = (item.folder if out is None else out / item.id) / _RUNS
    try:
        frame = run_sweep(item, where, workers=workers, progress=progress)
    except InputError as error:
        return Outcome(item, "bad input", message=str(error))
    if update:
        write_file(item.folder / "table.csv", frame.write_csv())
    finding = "; ".join(
        filter(None, (f"{len(frame)} rows in {where / 'table.csv'}" if not update else "", tally(frame)))
    )
    return Outcome(item, "done", Result((), finding))


def _store(outcome: Outcome, found: Path) -> None:
    """Move what an experiment wrote into its own folder, and refresh its README."""
    if outcome.status in ("crashed", "bad input", "skipped"):
        return
    if outcome.experiment.kind != "sweep":
        for path in sorted(found.iterdir()):
            write_file(outcome.experiment.folder / path.name, read_text(path))
    write_file(outcome.experiment.folder / "README.md", refreshed_readme(outcome))


def _check_update(folder: Path, found: list[Experiment], fast: bool, out: Path | None) -> None:
    if fast or out is not None:
        raise InputError(
            "--update rewrites the whole table in the experiments' own folders: leave --fast and --out out"
        )
    for item in found:
        if missing := item.missing():
            raise InputError(f"{item.id} would be skipped ({missing}), so --update would lose it; set {REFERENCE}")
        refreshed_readme(Outcome(item, "passed"))
        check_writable(item.folder / "result.json")
    check_writable(folder / "results.md")


def _start(out: Path, folder: Path) -> None:
    """Make the folder of a run and mark it as one; refuse a folder with other things in it."""
    mark = out / "manifest.json"
    if out.is_dir() and any(out.iterdir()) and not (mark.is_file() and read_manifest(mark)["command"] == _COMMAND):
        raise InputError(f"{out} holds files, and is not of an earlier `avsim {_COMMAND}`; choose another folder")
    check_writable(mark)
    write_file(mark, json_text(_manifest(folder, {})))


def _manifest(folder: Path, inputs: dict[str, str]) -> dict[str, Any]:
    return make_manifest(_COMMAND, {"folder": folder.absolute().name}, inputs)
