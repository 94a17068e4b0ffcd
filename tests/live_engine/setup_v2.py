"""Prepare the environment for Model Runner V2 on a CPU: the engine's, with Triton beside it, and print its interpreter.

    python3 -m tests.live_engine.setup_v2        # the last line of stdout is the path of the Python to use

Triton changes what vLLM does when it is imported, so it does not go into the engine's own environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cached_env import CachedEnv, main
from tests.live_engine.setup import ENVIRONMENT as ENGINE

PATH_FILE = "engine.pth"
REQUIREMENTS = (("--no-deps", "triton==3.9.0"),)


def borrow_engine(python: Path, folder: Path) -> None:
    """Make the packages and models of the engine's environment visible in this one."""
    (folder / "models").symlink_to(engine_folder() / "models")
    for packages in folder.glob("lib/python*/site-packages"):
        borrowed = engine_folder() / packages.relative_to(folder)
        (packages / PATH_FILE).write_text(f"{borrowed}\n")


def is_whole(folder: Path) -> bool:
    return (folder / "models").resolve() == (engine_folder() / "models").resolve()


def engine_folder() -> Path:
    return ENGINE.prepare().parents[1]


ENVIRONMENT = CachedEnv("engine-v2", REQUIREMENTS, (ENGINE.key,), borrow_engine, is_whole)

if __name__ == "__main__":
    sys.exit(main(ENVIRONMENT))
