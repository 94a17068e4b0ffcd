"""Finished groups of requests beside a trace that is being made, so that a killed run can go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from avsim.errors import InputError

__all__ = ["Parts", "publish"]


class Parts:
    """The folder `OUT.partial`: `run.json` says what is being made, `group-*` hold what is done.

    A group counts as done once its request table is there; that file is moved into place last.
    """

    def __init__(self, out: Path):
        self.folder = out.with_name(f"{out.name}.partial")

    def begin(self, about: dict[str, Any], resume: bool) -> dict[str, Any]:
        """Start, or go on with a run that was asked for in the same words; return what its `run.json` says.

        Args:
            about: `asked` must agree between the runs; the rest is kept from the first.

        Raises:
            InputError: a partial run is there and `resume` is off, or it was asked for otherwise.
        """
        file = self.folder / "run.json"
        if self.folder.exists() and not resume:
            raise InputError(f"{self.folder}: an unfinished run is there; pass --resume to go on, or remove it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                publish(file, lambda path: path.write_text(json.dumps(about, indent=2), encoding="utf-8"))
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be used ({error})") from None
        asked, before = about["asked"], found.get("asked", {})
        for name in asked:
            if asked[name] != before.get(name):
                raise InputError(
                    f"{self.folder}: the unfinished run has {name} {before.get(name)!r}, not {asked[name]!r}; "
                    f"repeat its options, or remove it"
                )
        return found

    def done(self, group: int) -> bool:
        """Tell whether a group is finished."""
        return self._file(group, "requests").exists()

    def add(self, group: int, requests: pl.DataFrame, blocks: pl.DataFrame) -> None:
        """Keep a finished group."""
        publish(self._file(group, "blocks"), blocks.write_parquet)
        publish(self._file(group, "requests"), requests.write_parquet)

    def requests(self, groups: range) -> pl.DataFrame:
        """Return the request table of all groups."""
        return pl.concat([pl.read_parquet(self._file(group, "requests")) for group in groups])

    def blocks(self, groups: range) -> Iterator[pl.DataFrame]:
        """Yield each group's blocks; one without any is left out."""
        for group in groups:
            frame = pl.read_parquet(self._file(group, "blocks"))
            if frame.height:
                yield frame

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, group: int, table: str) -> Path:
        return self.folder / f"group-{group:05d}.{table}.parquet"


def publish(path: Path, write: Any) -> None:
    """Let `write` make a file beside its final place, flush it to the disk, and move it there."""
    temporary = path.with_name(f".{path.name}.tmp")
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
