"""Example packages as pip would install them, without installing them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def install(example: Path, site: Path) -> dict[str, str]:
    """Return an environment in which a package is what pip would make of it: on the path, with its metadata."""
    project = tomllib.loads((example / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, example, ROOT)))}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
