"""Small experiments and sweeps in a temporary folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from avsim.sources.synthetic import SyntheticLaw, write_synthetic

SCRIPT = """
from pathlib import Path
from avsim.experiments import Check, Experiment, Result, main

def run(experiment: Experiment, out: Path) -> Result:
    (out / "plot.svg").write_text("<svg/>")
    return Result((Check({check}),), "found it")

if __name__ == "__main__":
    main(run)
"""


def toml(values: dict[str, Any]) -> str:
    """Return TOML of texts, lists, flags, numbers and one level of tables."""
    flat = {key: value for key, value in values.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in flat.items()]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def facts(**changes: Any) -> dict[str, Any]:
    """Return a complete experiment.toml; a change to None leaves a key out."""
    values = {
        "id": "X1", "title": "one is one", "question": "Is it?", "kind": "exact", "source": "a book",
        "fitted": "nothing", "predicted": "one", "pass": "it is", "fast": True,
    } | changes  # fmt: skip
    return {key: value for key, value in values.items() if value is not None}


def make_experiment(
    folder: Path, check: str = "name='one', got=1.0, expected=1.0", *, script: str | None = None, **changes: Any
) -> Path:
    """Write an experiment whose run.py makes one check."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(toml(facts(**changes)))
    (folder / "run.py").write_text(SCRIPT.replace("{check}", check) if script is None else script)
    (folder / "README.md").write_text("# X\n\n<!-- result -->\n<!-- /result -->\n\nThat is all.\n")
    return folder


def make_trace(path: Path, **law: Any) -> Path:
    """Write a small synthetic trace."""
    sizes = {"num_requests": 12, "output_len": 12, "num_speculative_tokens": 3}
    return write_synthetic(path, SyntheticLaw(**sizes | law)).path


def make_sweep(folder: Path, base: dict[str, Any] | None = None, grid: dict[str, Any] | None = None) -> Path:
    """Write a sweep of six fast replays of the trace beside the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = {
        "trace": "../trace", "cost": "deepseek-v4-flash-tp4-b300", "what_if": True, "bootstrap": 20, "warm_refits": 0,
        "baselines": ["none"], "policies": ["fixed:1"],
    }  # fmt: skip
    values = facts(
        id="S", kind="sweep", source=None, fitted=None, predicted=None, fast=None,
        base=shared if base is None else base,
        grid={"num_slots": [1, 2, 3], "concurrency": [2, 4]} if grid is None else grid, **{"pass": None},
    )  # fmt: skip
    (folder / "experiment.toml").write_text(toml(values))
    (folder / "README.md").write_text("# S\n\n<!-- result -->\n<!-- /result -->\n")
    return folder


def quiet(done: int, total: int, what: str) -> None:
    """Show no progress."""
