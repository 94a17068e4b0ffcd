"""A virtualenv outside the clone, made once and found again by a hash of everything that it is made from.

It lies in `${AVSIM_CACHE:-~/.cache/avsim}/<name>-<hash>` and counts as complete only once its marker is written; an
interrupted one is made again from nothing. Packages come from wherever pip is configured to look.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CachedEnv", "SetupError", "main", "run"]

MARKER = "complete"


class SetupError(Exception):
    """The environment cannot be made; the message says why."""


@dataclass(frozen=True)
class CachedEnv:
    """What an environment is made from.

    Attributes:
        requirements: arguments of one `pip install` each, in order.
        ingredients: whatever else it depends on.
        fill: puts into it what pip does not, given its interpreter and its folder.
        still_whole: whether what `fill` made is still there and unchanged.
    """

    name: str
    requirements: Sequence[Sequence[str]]
    ingredients: Sequence[str]
    fill: Callable[[Path, Path], None]
    still_whole: Callable[[Path], bool] = lambda folder: True

    @property
    def key(self) -> str:
        """A hash of all that it depends on."""
        parts = [platform.python_version(), platform.machine(), repr(self.requirements), *self.ingredients]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    def prepare(self) -> Path:
        """Make the environment unless it is there, and return its interpreter."""
        cache = Path(os.environ.get("AVSIM_CACHE") or Path.home() / ".cache" / "avsim").expanduser().absolute()
        folder = cache / f"{self.name}-{self.key}"
        python = folder / "bin" / "python"
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / f"{folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second set-up waits for the first, then finds its work done
            if not ((folder / MARKER).is_file() and self.still_whole(folder)):
                shutil.rmtree(folder, ignore_errors=True)
                run(sys.executable, "-m", "venv", folder)
                for group in self.requirements:
                    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *group)
                self.fill(python, folder)
                (folder / MARKER).touch()
        return python


def run(*command: str | Path) -> None:
    """Run a command with its output on stderr, as stdout carries only the interpreter's path."""
    words = [str(word) for word in command]
    print("setup: " + " ".join(words), file=sys.stderr, flush=True)
    status = subprocess.run(words, stdout=sys.stderr).returncode
    if status:
        raise SetupError(f"`{' '.join(words)}` failed with status {status}")


def main(environment: CachedEnv) -> int:
    """Prepare an environment and print its interpreter on the last line of stdout; return the exit status."""
    if sys.version_info < (3, 11):  # noqa: UP036 (whatever `python3` is may run this)
        print(f"setup: Python 3.11 or newer is needed, this is {platform.python_version()}", file=sys.stderr)
        return 2
    try:
        print(environment.prepare())
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0
