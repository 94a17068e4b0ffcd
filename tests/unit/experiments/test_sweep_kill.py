"""A sweep killed with SIGKILL goes on where it stopped, and its table is that of one that was never interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from avsim.experiments import read_experiment
from avsim.experiments.sweep import expand
from avsim.experiments.sweep_run import run_sweep
from tests.unit.experiments.making import make_sweep, make_trace, quiet

GRID = {"num_slots": [1, 2, 3], "seed": [0, 1, 2]}
TOTAL = 9
DEADLINE_S = 60


def finished(folder: Path, keys: set[str]) -> set[str]:
    """Return the files of finished replays."""
    runs = folder / "runs"
    return keys & {path.name for path in runs.iterdir()} if runs.is_dir() else set()


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "avsim", "experiment", "run", str(folder), "--workers", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_trace(tmp_path / "trace", num_requests=30, output_len=40)
    base = {"trace": "../trace", "cost": "deepseek-v4-flash-tp4-b300", "what_if": True, "bootstrap": 20,
            "baselines": ["none"], "policies": ["fixed:1"], "concurrency": [4]}  # fmt: skip
    make_sweep(tmp_path / "killed", base=base, grid=GRID)
    return tmp_path


def test_killed_and_run_again(place: Path) -> None:
    folder = place / "killed"
    experiment = read_experiment(folder)
    keys = {f"{item.key}.json" for item in expand(experiment)}
    sweep = start(folder)
    until = time.monotonic() + DEADLINE_S
    while not finished(folder, keys) and sweep.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate(timeout=DEADLINE_S)  # returns once the pool's processes have let go of the pipes: they ended too
    assert sweep.returncode == -signal.SIGKILL
    kept = finished(folder, keys)
    assert 0 < len(kept) < TOTAL
    time.sleep(0.5)
    assert finished(folder, keys) == kept
    stamps = {name: (folder / "runs" / name).stat().st_mtime_ns for name in kept}

    said: list[str] = []
    run_sweep(experiment, folder / "runs", workers=1, progress=lambda done, total, what: said.append(f"{done}/{total}"))
    assert said == [f"{done}/{TOTAL}" for done in range(len(kept), TOTAL + 1)]
    assert {name: (folder / "runs" / name).stat().st_mtime_ns for name in kept} == stamps

    run_sweep(experiment, place / "whole", workers=1, progress=quiet)
    for name in ("table.csv", "table.json", "table.parquet"):
        assert (folder / "runs" / name).read_bytes() == (place / "whole" / name).read_bytes(), name
