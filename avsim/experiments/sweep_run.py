"""Running a sweep: one process per replay, one file per finished replay, and one table at the end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import polars as pl

from avsim.config import ReplayConfig
from avsim.errors import AvsimError, InputError
from avsim.experiments.runner import Progress
from avsim.experiments.spec import Experiment
from avsim.experiments.sweep import Configuration, expand
from avsim.experiments.sweep_table import table, write_table
from avsim.manifest import check_writable, json_text, write_file

__all__ = ["run_sweep"]


def run_sweep(experiment: Experiment, out: Path, *, workers: int | None = None, progress: Progress) -> pl.DataFrame:
    """Run what a sweep has not run yet, and write table.csv, table.json and table.parquet into `out`.

    Each finished replay is a file of its own in `out`, written as a whole and named by the hash of its config and
    inputs. So a sweep that was killed goes on where it stopped, and a changed config or input reruns what it changes.
    Files of configurations that are no longer asked for stay, unread.

    Args:
        workers: processes; None for one per core. The table does not depend on it.
        progress: called with (done, all, what was done), first with what had been done before.

    Raises:
        InputError: the sweep is malformed, or some replays were refused (the others are kept).
        AvsimError: a process died.
    """
    wanted = expand(experiment)
    check_writable(out / "table.csv")
    found = {item.key: held for item in wanted if (held := _finished(out, item)) is not None}
    pending = [item for item in wanted if item.key not in found]
    kept = len(wanted) - len(pending)
    progress(kept, len(wanted), f"{kept} kept from before, {len(pending)} to run")
    refused = []
    for done, (item, error) in enumerate(_results(pending, out, workers or os.cpu_count() or 1), kept + 1):
        progress(done, len(wanted), item.label if error is None else f"{item.label}: {error}")
        if error is not None:
            refused.append(f"{item.label}: {error}")
        else:
            found[item.key] = _load(_path(out, item))
    if refused:
        raise InputError(f"{experiment.id}: {len(refused)} of {len(wanted)} were refused; first {refused[0]}")
    frame = table([(item, found[item.key]["summary"]) for item in wanted])
    write_table(frame, out)
    return frame


def _path(out: Path, item: Configuration) -> Path:
    return out / f"{item.key}.json"


def _finished(out: Path, item: Configuration) -> dict[str, Any] | None:
    """Return what is kept of a configuration, or None where nothing is, or where the file is damaged."""
    try:
        data = _load(_path(out, item))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("key") == item.key and "summary" in data else None


def _load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _results(pending: Sequence[Configuration], out: Path, workers: int) -> Iterator[tuple[Configuration, str | None]]:
    """Run configurations and yield each as it ends, with the reason where it was refused."""
    jobs = {item.key: (item.config, _path(out, item), item.key, item.inputs) for item in pending}
    if workers == 1 or len(pending) < 2:
        for item in pending:
            yield item, _run_one(*jobs[item.key])
        return
    pool = ProcessPoolExecutor(min(workers, len(pending)), get_context("spawn"), initializer=_die_with_parent)
    try:
        futures = {pool.submit(_run_one, *jobs[item.key]): item for item in pending}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise AvsimError(
            f"a process of the sweep died (out of memory?); what is finished lies in {out}: run again to go on, "
            "with fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _run_one(config: ReplayConfig, path: Path, key: str, inputs: dict[str, str]) -> str | None:
    """Run one replay and write its file; return why it was refused, or None."""
    from avsim.runs import run_replay

    try:
        summary = run_replay(config, workers=1).summary
    except InputError as error:
        return str(error)
    write_file(path, json_text({"key": key, "config": config.to_json(), "inputs": inputs, "summary": summary}))
    return None


def _die_with_parent() -> None:
    """End this process with its parent: a pool's processes would otherwise outlive one that is killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
