"""From a runner to cost tables with their raw samples and provenance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from avsim.costs.profile.measure import Measured, Progress, measure
from avsim.costs.profile.plan import ProfilePlan
from avsim.costs.profile.runner import Runner
from avsim.costs.profile.summary import CellStats, Drift, mark_outliers, summarise, watch_drift
from avsim.costs.profile.table import ProfileCard, Table, make_tables, possible_suffixes
from avsim.costs.profile.timers import Timer
from avsim.errors import InputError
from avsim.manifest import check_writable, json_text, make_manifest, write_file

__all__ = ["ProfileCard", "ProfileRun", "check_targets", "run_profile", "write_profile"]


@dataclass(frozen=True, eq=False)
class ProfileRun:
    """A finished profile.

    Attributes:
        tables: the first goes to the file that was asked for, the others beside it.
        notes: what to know about it, in sentences.
    """

    plan: ProfilePlan
    measured: Measured
    stats: tuple[CellStats, ...]
    drift: Drift
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def run_profile(
    runner: Runner,
    plan: ProfilePlan,
    card: ProfileCard,
    timer: Timer,
    *,
    date: str,
    clock: Callable[[], float],
    progress: Progress = lambda done, total, what: None,
) -> ProfileRun:
    """Measure a plan on a runner and make cost tables of it.

    Args:
        date: of the measurement, for the provenance card.
        clock: seconds that only go forward, for the time limit.

    Raises:
        InputError: see `measure`; or the card lacks a model's name, or no table can be made of the timings.
    """
    described = runner.describe()
    card = card.filled(described)
    if card.draft_form == "parts" and plan.requests and len(plan.all_depths) < 2:
        raise InputError(
            "--draft-form parts needs two depths to tell the first pass from those that follow: --depths 1"
        )
    if not plan.requests and not card.no_drafter:
        raise InputError("--requests is empty: name request counts for the drafter's steps, or pass --drafter none")
    measured = measure(runner, plan, timer, clock, progress)
    outliers = mark_outliers(measured)
    stats = summarise(measured, outliers)
    drift = watch_drift(measured, plan.seed)
    about = {"runner": runner.name, "date": date} | described | timer.describe()
    tables, notes = make_tables(measured, outliers, drift, plan, card, about, timer.capture_limit)
    manifest = make_manifest("cost profile", {"plan": asdict(plan), "card": asdict(card)}, {})
    profile = {
        "measured": about,
        "seconds": round(measured.seconds, 1),
        "rounds": measured.num_rounds,
        "drift": asdict(drift),
        "notes": list(notes),
        "manifest": manifest,
    }
    full = tuple(
        replace(table, document=table.document | {"profile": table.document["profile"] | profile}) for table in tables
    )
    return ProfileRun(plan, measured, stats, drift, full, notes)


def check_targets(out: Path, plan: ProfilePlan, *, overwrite: bool) -> None:
    """Refuse files that could not be written, before the work is done.

    Raises:
        InputError: a table or its samples exist and may not be replaced, or the folder cannot be written to.
    """
    if out.suffix.lower() != ".json":
        raise InputError(f"--out {out}: a cost table is JSON; name a file that ends in .json")
    for suffix in possible_suffixes(plan):
        for ending in ("json", "csv"):
            path = out.with_name(f"{out.stem}{suffix}.{ending}")
            check_writable(path)
            if path.exists() and not overwrite:
                raise InputError(f"{path} exists; choose another file or pass --overwrite")


def write_profile(run: ProfileRun, out: Path, *, overwrite: bool = False) -> list[Path]:
    """Write every table, with its samples beside it as CSV; return the paths of the tables, the main one first.

    Raises:
        InputError: a file exists and `overwrite` is off, or cannot be written.
    """
    paths = [out.with_name(f"{out.stem}{table.suffix}.json") for table in run.tables]
    check_targets(out, run.plan, overwrite=overwrite)
    for path, table in zip(paths, run.tables, strict=True):
        document: dict[str, Any] = table.document
        samples = path.with_suffix(".csv")
        write_file(samples, table.csv)
        write_file(path, json_text(document | {"profile": document["profile"] | {"samples": samples.name}}))
    return paths
