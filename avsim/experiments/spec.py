"""What an experiment asks, and of which inputs: its experiment.toml."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from avsim.errors import InputError
from avsim.manifest import read_text
from avsim.registry import suggest

__all__ = ["REFERENCE", "Experiment", "find", "read_experiment"]

Kind = Literal["exact", "predicted", "explained", "reported", "sweep"]
REFERENCE = "AVSIM_REFERENCE"
"""The environment variable that names the folder which holds `reference/`."""

_TEXTS = ("id", "title", "question", "kind", "source", "fitted", "predicted", "pass")
_LISTS = ("needs", "traces")
_TABLES = ("base", "grid")


@dataclass(frozen=True)
class Experiment:
    """One question with its inputs, and for a published number what was fitted, predicted and is asked for.

    Attributes:
        folder: where it lies.
        id: a short name, unique in its folder of experiments.
        kind: `exact` (an identity or an algorithm), `predicted` (nothing of the target was used), `explained`
            (something of it was), `reported` (shown beside the published number, not judged), or `sweep`.
        source: who published the numbers.
        fitted, predicted: what was, in words.
        pass_if: the criterion, in words.
        needs: files of published measurements, relative to `$AVSIM_REFERENCE/reference`.
        trace_patterns: traces that are read, as paths or patterns relative to the folder.
        fast: whether it takes seconds, so that tests run it.
        base, grid: of a sweep: what all configurations share, and the lists that are combined.
    """

    folder: Path
    id: str
    title: str
    question: str
    kind: Kind
    source: str = ""
    fitted: str = ""
    predicted: str = ""
    pass_if: str = ""
    needs: tuple[str, ...] = ()
    trace_patterns: tuple[str, ...] = ()
    fast: bool = False
    base: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def traces(self) -> list[Path]:
        """Folders of the traces that are read, in order of name.

        Raises:
            InputError: a pattern fits no trace.
        """
        found: list[Path] = []
        for pattern in self.trace_patterns:
            fits = sorted(card.parent.resolve() for card in self.folder.glob(f"{pattern}/trace.json"))
            if not fits:
                raise InputError(f"{self.folder / 'experiment.toml'}: no trace fits {pattern!r}; paths start there")
            found += fits
        return found

    def reference(self, name: str) -> Path:
        """Return the path of a published file, which must be among `needs`."""
        if name not in self.needs:
            raise InputError(f"{self.folder / 'experiment.toml'}: {name} is read, but `needs` does not list it")
        return Path(os.environ[REFERENCE]) / "reference" / name

    def missing(self) -> str | None:
        """Say why the published files are not at hand, or return None if they are.

        Raises:
            InputError: the folder is named, but lacks a file.
        """
        if not self.needs:
            return None
        if not os.environ.get(REFERENCE):
            return f"{REFERENCE} is not set"
        for name in self.needs:
            if not self.reference(name).is_file():
                raise InputError(f"{REFERENCE}={os.environ[REFERENCE]} lacks reference/{name}, which {self.id} reads")
        return None

    def inputs(self) -> dict[str, str]:
        """Return the hash of every published file and trace that is read."""
        from avsim.sources import open_trace

        hashes = {name: _sha256(self.reference(name)) for name in self.needs}
        return hashes | {path.name: str(open_trace(path).card.content_hash) for path in self.traces}


def _sha256(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def find(folder: Path) -> list[Experiment]:
    """Return the experiment of a folder, or all below it, in order of id (V2 before V11).

    Raises:
        InputError: there is none, one is malformed, or two share an id.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name an experiment's folder, or one that holds experiments")
    here = folder / "experiment.toml"
    files = [here] if here.is_file() else sorted(folder.rglob("experiment.toml"))
    if not files:
        raise InputError(f"{folder}: neither it nor a folder below holds an experiment.toml")
    found = sorted((read_experiment(path.parent) for path in files), key=lambda item: _natural(item.id))
    for one, other in itertools.pairwise(found):
        if one.id == other.id:
            raise InputError(f"{one.folder} and {other.folder} share the id {one.id}; rename one")
    return found


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text)]


def read_experiment(folder: Path) -> Experiment:
    """Read a folder's experiment.toml.

    Raises:
        InputError: it is missing, malformed, or lacks run.py.
    """
    path = folder / "experiment.toml"
    try:
        data = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    known = [*_TEXTS, *_LISTS, *_TABLES, "fast"]
    for key, value in data.items():
        if key not in known:
            raise InputError(f"{path}: unknown key {key!r}{suggest(key, known)}")
        _check_type(path, key, value)
    kind = data.get("kind")
    if kind not in get_args(Kind):
        raise InputError(f"{path}: kind is {kind!r}; it must be one of {', '.join(get_args(Kind))}")
    needed = ("id", "title", "question", *(_TABLES if kind == "sweep" else ("source", "fitted", "predicted", "pass")))
    for key in needed:
        if not data.get(key):
            raise InputError(f"{path}: {key} is missing or empty")
    if not re.fullmatch(r"[\w-]+", data["id"], re.ASCII):
        raise InputError(f"{path}: id {data['id']!r} must consist of letters, digits, - and _")
    surplus = [key for key in ((*_LISTS, "fast") if kind == "sweep" else _TABLES) if key in data]
    if surplus:
        raise InputError(f"{path}: {surplus[0]} means nothing for kind {kind!r}")
    if kind != "sweep" and not (folder / "run.py").is_file():
        raise InputError(f"{folder}: run.py is missing beside experiment.toml")
    renamed = {"pass": "pass_if", "traces": "trace_patterns"}
    values: dict[str, Any] = {
        renamed.get(key, key): tuple(value) if key in _LISTS else value for key, value in data.items()
    }
    return Experiment(folder=folder.absolute(), **values)


def _check_type(path: Path, key: str, value: Any) -> None:
    if key in _TEXTS and not isinstance(value, str):
        raise InputError(f"{path}: {key} must be a text, not {value!r}")
    if key in _LISTS and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise InputError(f"{path}: {key} must be a list of texts, not {value!r}")
    if key in _TABLES and not isinstance(value, dict):
        raise InputError(f"{path}: {key} must be a table: write [{key}]")
    if key == "fast" and not isinstance(value, bool):
        raise InputError(f"{path}: fast must be true or false, not {value!r}")
