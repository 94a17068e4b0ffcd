"""What an experiment runs, read from a TOML file, and where it keeps its results."""

from __future__ import annotations

import datetime
import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from avsim import estimators, policies
from avsim.manifest import write_file
from avsim.simulate import Arm

HERE = Path(__file__).parent
DEFAULT_ESTIMATOR = "online-logistic"
KINDS = 3


@dataclass(frozen=True)
class Cell:
    """One drafter at one temperature and load, and the arms that are compared there."""

    drafter: str
    temperature: float
    concurrency: int
    num_requests: int
    arms: tuple[str, ...]

    @property
    def name(self) -> str:
        how = "greedy" if self.temperature == 0 else f"T{self.temperature:g}"
        return f"{self.drafter}-{how}-c{self.concurrency}"


@dataclass(frozen=True)
class Settings:
    """See `full.toml`."""

    file: Path
    num_slots: int
    max_tokens: int
    seed: int
    repeats: int
    calibration_prompts: int
    profile_repeats: int
    profile_minutes: float
    measure_minutes: float
    warm_refits: int
    replicates: int
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def drafters(self) -> list[str]:
        return sorted({cell.drafter for cell in self.cells})

    @property
    def conditions(self) -> list[tuple[str, float]]:
        """Return every (drafter, temperature)."""
        return sorted({(cell.drafter, cell.temperature) for cell in self.cells})

    @property
    def most_reqs(self) -> int:
        return max(cell.concurrency for cell in self.cells)


def read(file: Path) -> Settings:
    """Read a settings file."""
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    arms: dict[str, list[str]] = data.pop("arms")
    cells = tuple(
        Cell(one["drafter"], float(one["temperature"]), one["concurrency"], one["requests"], tuple(arms[one["arms"]]))
        for one in data.pop("cell")
    )
    return Settings(file=file, cells=cells, **data)


def slots_of(spec: str, num_slots: int) -> int:
    """Return the K of an arm: what follows `@` in its name, else the experiment's."""
    _, _, own = plain_name(spec).partition(" @ ")
    return int(own) if own else num_slots


def plain_name(spec: str) -> str:
    """Return what an arm is a repeat of, or itself."""
    return spec.removesuffix(" again")


def make_arm(spec: str) -> Arm:
    """Return the arm of `policy`, `policy / estimator` or either with `@ K`; ` again` at the end marks a repeat."""
    policy, _, estimator = plain_name(spec).partition(" @ ")[0].partition(" / ")
    made = policies.make(policy)
    return Arm(made, estimators.make_online(estimator or DEFAULT_ESTIMATOR) if made.uses_confidence else None)


def balanced(count: int, wanted: int, rng: np.random.Generator, first: int = 0) -> list[int]:
    """Return `wanted` of `count` requests, the kinds of prompts in equal parts, in random order.

    Prompt files hold math, code and chat by turns. Each kind is shuffled, and requests are taken from place `first` on,
    from the beginning again where they run out: `first` = 0, n, 2n, … gives different ones with equal generators.
    """
    kinds = [rng.permutation(np.arange(kind, count, KINDS)) for kind in range(KINDS)]
    taken = [int(kinds[n % KINDS][n // KINDS % len(kinds[n % KINDS])]) for n in range(first, first + wanted)]
    order = rng.permutation(wanted)
    return [taken[n] for n in order]


def condition_name(drafter: str, temperature: float) -> str:
    return f"{drafter}-{'greedy' if temperature == 0 else f'T{temperature:g}'}"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def sha256(files: Sequence[Path]) -> str:
    """Return one hash of some files' names and contents."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def source_hash() -> str:
    """Return the hash of everything that decides how the driver runs: its code, drafters and prompts."""
    scripts = [HERE / f"{name}.py" for name in ("settings", "workshop", "step_cost", "profile_steps", "measure")]
    folders = [
        *scripts,
        *(HERE / "driver").glob("*.py"),
        *(HERE / "drafters").rglob("*.*"),
        *(HERE / "prompts").iterdir(),
    ]
    return sha256([file for file in folders if file.is_file()])


def write_json(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, json.dumps(data, indent=1) + "\n")


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
