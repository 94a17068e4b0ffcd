"""Prepare the cached environment in which avsim is compared with vLLM's own code, and print its interpreter.

    python3 tests/live/setup.py        # the last line of stdout is the path of the Python to use

The environment lies outside the clone, in `${AVSIM_CACHE:-~/.cache/avsim}/live-<hash>`; the hash covers everything
it is made from, so a changed requirement makes a new one. It counts as complete only once its marker is written,
and an interrupted one is made again from nothing. Packages come from wherever pip is configured to look.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Torch comes first and alone, so that nothing later can pull in another build of it.
REQUIREMENTS = (
    ("torch==2.13.0",),
    ("numpy", "triton==3.7.1", "pytest>=8.2", "hypothesis>=6.100"),
    ("scipy>=1.11", "scikit-learn>=1.4", "polars>=1.20", "typer>=0.15"),
)
VLLM_VERSION = "0.33.0"
VLLM_SOURCES = {
    "vllm/v1/worker/gpu/spec_decode/acceptance_estimator.py": (
        "12676553ce7f3a6c4dc5c836c2f05cf292e6138b5efd39fdd4638f0ad965a812"
    ),
    "vllm/v1/worker/gpu/spec_decode/adaptive_verification.py": (
        "ebb6541ac5d85e83bb66b13af386caa49ba566294e24384b2dd3ad57b433dde1"
    ),
    "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py": (
        "0cbfc55f4d98ffa740ca9e1b4092c16eb635192c8ee86a15b88e3c21215d5920"
    ),
    "vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py": (
        "a4167068d1d10a36c130e2924b12cbf01f99c968f2fcf47e75a1129d3d8022c8"
    ),
}
SOURCE_FOLDER = f"vllm-{VLLM_VERSION}-source"
MARKER = "complete"


class SetupError(Exception):
    """The environment cannot be made; the message says why."""


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 (whatever `python3` is may run this)
        print(f"setup: Python 3.11 or newer is needed, this is {platform.python_version()}", file=sys.stderr)
        return 2
    try:
        print(prepare(cache_folder()))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


def cache_folder() -> Path:
    """Return where environments are kept: `AVSIM_CACHE`, or `~/.cache/avsim`."""
    return Path(os.environ.get("AVSIM_CACHE") or Path.home() / ".cache" / "avsim").expanduser().absolute()


def environment_key() -> str:
    """Hash all that the environment depends on."""
    parts = [platform.python_version(), platform.machine(), VLLM_VERSION, repr(REQUIREMENTS), repr(VLLM_SOURCES)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def prepare(cache: Path) -> Path:
    """Make the environment unless it is there, and return its interpreter."""
    target = cache / f"live-{environment_key()}"
    python = target / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second set-up waits for the first, then finds its work done
        if not is_complete(target):
            shutil.rmtree(target, ignore_errors=True)
            run(sys.executable, "-m", "venv", target)
            for group in REQUIREMENTS:
                run(python, "-m", "pip", "install", "--quiet", *group)
            fetch_sources(python, target / SOURCE_FOLDER)
            (target / MARKER).touch()
    return python


def is_complete(target: Path) -> bool:
    """Whether the marker was written and every source file still has its hash."""
    return (target / MARKER).is_file() and not wrong_sources(target / SOURCE_FOLDER)


def wrong_sources(folder: Path) -> list[str]:
    """Return the source files that are missing or altered."""
    return [
        name
        for name, expected in VLLM_SOURCES.items()
        if not (folder / name).is_file() or hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected
    ]


def fetch_sources(python: Path, folder: Path) -> None:
    """Take the few files that are needed out of vLLM's wheel, which is not installed and not kept."""
    with tempfile.TemporaryDirectory(prefix="avsim-vllm-") as scratch:
        run(python, "-m", "pip", "download", "--quiet", "--no-deps", f"vllm=={VLLM_VERSION}", "--dest", scratch)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise SetupError(f"expected one vLLM {VLLM_VERSION} wheel, pip downloaded {[w.name for w in wheels]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in VLLM_SOURCES:
                wheel.extract(name, folder)
    if wrong := wrong_sources(folder):
        raise SetupError(f"vLLM {VLLM_VERSION}: these files are not the ones avsim was checked against: {wrong}")


def run(*command: str | Path) -> None:
    """Run a command with its output on stderr, as stdout carries only the interpreter's path."""
    words = [str(word) for word in command]
    print("setup: " + " ".join(words), file=sys.stderr, flush=True)
    status = subprocess.run(words, stdout=sys.stderr).returncode
    if status:
        raise SetupError(f"`{' '.join(words)}` failed with status {status}")


if __name__ == "__main__":
    sys.exit(main())
