"""Running experiments, each as a process of its own, and what came of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import avsim
from avsim.errors import InputError
from avsim.experiments.checks import Check, Result, read_result
from avsim.experiments.spec import Experiment

__all__ = ["Outcome", "Progress", "run_experiment", "run_experiments", "stored_outcome"]

Status = Literal["passed", "failed", "reported", "done", "skipped", "bad input", "crashed"]
Progress = Callable[[int, int, str], None]
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What came of one experiment; `message` says why there is no result."""

    experiment: Experiment
    status: Status
    result: Result = field(default_factory=lambda: Result(()))
    message: str = ""

    @property
    def graded(self) -> list[Check]:
        """The checks that pass or fail."""
        return [check for check in self.result.checks if check.passed is not None]

    @property
    def failed(self) -> list[Check]:
        """The checks that do not hold."""
        return [check for check in self.graded if not check.passed]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        item = self.experiment
        names = ("id", "title", "question", "kind", "source", "fitted", "predicted", "pass_if")
        facts = {name: getattr(item, name) for name in names}
        return facts | {"status": self.status, "message": self.message} | self.result.to_json()


def run_experiments(
    experiments: Sequence[Experiment], out: Path, *, workers: int | None = None, progress: Progress
) -> list[Outcome]:
    """Run experiments side by side, each into `out/<id>`; what one does leaves the others alone.

    Args:
        out: an existing folder.
        workers: how many at once; None for one per core.
        progress: called with (done, all, what was done).
    """
    found: dict[str, Outcome] = {}
    with ThreadPoolExecutor(workers or min(len(experiments), os.cpu_count() or 1) or 1) as pool:
        futures = [pool.submit(run_experiment, item, out / item.id) for item in experiments]
        for done, future in enumerate(as_completed(futures), 1):
            outcome = future.result()
            found[outcome.experiment.id] = outcome
            progress(done, len(experiments), f"{outcome.experiment.id} {outcome.status}")
    return [found[item.id] for item in experiments]


def run_experiment(experiment: Experiment, out: Path) -> Outcome:
    """Run one experiment's run.py into a folder; never raises for what the experiment does.

    A script that ends with exit code 2 has bad input; with any other than 0, or without result.json and plot.svg, it
    crashed. The folder appears as a whole once the script has ended well.
    """
    try:
        if missing := experiment.missing():
            return Outcome(experiment, "skipped", message=missing)
    except InputError as error:
        return Outcome(experiment, "bad input", message=str(error))
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        script = [sys.executable, str(experiment.folder / "run.py"), str(scratch)]
        ended = subprocess.run(
            script, cwd=experiment.folder, env=_environment(), capture_output=True, text=True, check=False
        )
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode} and no message"])[-1]
            if ended.returncode == InputError.exit_code:
                return Outcome(experiment, "bad input", message=last.removeprefix("avsim: "))
            where = _save_log(out, ended.stderr)
            return Outcome(experiment, "crashed", message=f"{last} (all of it: {where})")
        return _judged(experiment, scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def stored_outcome(experiment: Experiment) -> Outcome:
    """Return the outcome that an experiment's own folder holds, as `--update` left it.

    Raises:
        InputError: it holds none.
    """
    return _grade(experiment, read_result(experiment.folder / "result.json"))


def _judged(experiment: Experiment, scratch: Path, out: Path) -> Outcome:
    plots = sorted(path.name for path in scratch.glob("*.svg"))
    if plots != ["plot.svg"]:
        return Outcome(experiment, "crashed", message=f"run.py must leave plot.svg, one plot; it left {plots}")
    try:
        outcome = _grade(experiment, read_result(scratch / "result.json"))
    except InputError as error:
        return Outcome(experiment, "crashed", message=str(error))
    scratch.chmod(0o755)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(scratch, out)
    return outcome


def _grade(experiment: Experiment, result: Result) -> Outcome:
    outcome = Outcome(experiment, "passed", result)
    if outcome.failed:
        return Outcome(experiment, "failed", result)
    if experiment.kind == "reported":
        return Outcome(experiment, "reported", result)
    if not outcome.graded:
        raise InputError(f"{experiment.id} is {experiment.kind}, but none of its checks can pass or fail")
    return outcome


def _environment() -> dict[str, str]:
    """Return the environment of a script: this avsim, and one thread, since scripts run side by side."""
    package = str(Path(avsim.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONPATH": path, "MPLBACKEND": "Agg"}


def _save_log(out: Path, text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix=f"avsim-{out.name}-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)
