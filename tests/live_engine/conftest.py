"""Runs of a real engine with avsim installed as a package beside it; two at a time, each on one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from prompts import PROMPTS

from avsim.sources import open_trace

REPOSITORY = Path(__file__).parents[2]
MODELS = Path(sys.prefix) / "models"
K = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
CUT = {"method": "draft_model", "model": str(MODELS / "first-26-layers"), "num_speculative_tokens": K}
ITSELF = CUT | {"model": str(MODELS / "target"), "draft_sample_method": "probabilistic"}
# Name: drafter, temperature, capture folder (None: its own; "": capture not asked for).
RUNS = {
    "cut-greedy": (CUT, 0.0, None),
    "cut-greedy-without": (CUT, 0.0, ""),
    "itself-sampled": (ITSELF, 0.8, None),
    "ngram-greedy": (NGRAM, 0.0, None),
    "cut-sampled": (CUT, 0.8, None),
    "ngram-sampled": (NGRAM, 0.8, None),
    "ngram-unwritable": (NGRAM, 0.0, "/proc/avsim"),
}


@dataclass(frozen=True)
class Run:
    """What one engine run printed, and the trace that its capture became."""

    folder: Path
    environment: dict[str, str]
    said: dict
    log: str

    @cached_property
    def trace(self):
        out = self.folder / "trace"
        words = [sys.executable, "-m", "avsim", "trace", "import", "capture", str(self.folder / "capture"), str(out)]
        done = subprocess.run(words, env=self.environment, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return open_trace(out)

    @cached_property
    def blocks(self):
        return self.trace.blocks(self.trace.card.recorded)


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> Path:
    """Install avsim as a user would, so that vLLM finds it by its entry point, but outside the cached environment."""
    target = tmp_path_factory.mktemp("package")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(REPOSITORY)], check=True)
    return target


@pytest.fixture(scope="session")
def runs(package, tmp_path_factory):
    """Start every run; `runs(name)` waits for one."""
    folder = tmp_path_factory.mktemp("runs")
    started: dict[str, Future[Run]] = {}
    with ThreadPoolExecutor(2) as pool:
        for name in RUNS:
            started[name] = pool.submit(run_engine, name, folder / name, package)
        yield lambda name: started[name].result()
        pool.shutdown(cancel_futures=True)


def run_engine(name: str, folder: Path, package: Path) -> Run:
    drafter, temperature, capture = RUNS[name]
    folder.mkdir()
    job = {
        "model": str(MODELS / "target"),
        "speculative": drafter,
        "prompts": PROMPTS,
        "temperatures": [temperature] * len(PROMPTS),
        "max_tokens": 24,
    }
    environment = engine_environment(package, AVSIM_TRACE_TOP_M="8")
    if capture != "":
        environment["AVSIM_TRACE_DIR"] = capture or str(folder / "capture")
    script = Path(__file__).with_name("run_engine.py")
    done = subprocess.run(
        [sys.executable, script, json.dumps(job)], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Run(folder, environment, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr)


def engine_environment(package: Path, **more: str) -> dict[str, str]:
    """Variables for a small engine in one process, with avsim installed beside it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AVSIM_", "VLLM_"))}
    return kept | {
        "PYTHONPATH": str(package),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        **more,
    }
