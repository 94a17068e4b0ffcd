"""The folder of one recording process: its facts, and log files that are appended to and rotated."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avsim.capture.log import FACTS, part_name

__all__ = ["LogFiles"]


class LogFiles:
    """Append-only log files in a new folder `capture-<pid>-<random>`, so that several engines can share a directory.

    A record goes to the operating system in one write, so it survives the death of the process; files are flushed to
    the disk itself when they are rotated or closed.

    Args:
        directory: made if it is missing.
        facts: written to `facts.json`, atomically, before any log file exists.
        rotate_bytes: size at which the next file is begun.

    Raises:
        OSError: from every method, as the file system reports it.
    """

    def __init__(self, directory: Path, facts: Mapping[str, Any], rotate_bytes: int) -> None:
        self.folder = directory / f"capture-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder.mkdir(parents=True)
        self.num_bytes = 0
        self.num_parts = 0
        self._rotate_bytes = rotate_bytes
        self._file: int | None = None
        self._size = 0
        self._write_facts(facts)

    def append(self, record: bytes) -> None:
        """Write one record whole; where that fails, what was written of it is taken back."""
        if self._file is not None and self._size + len(record) > self._rotate_bytes:
            self.close()
        if self._file is None:
            path = self.folder / part_name(self.num_parts)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            self.num_parts += 1
            self._size = 0
        view = memoryview(record)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(record)
        self.num_bytes += len(record)

    def close(self) -> None:
        """Flush the current file to the disk and close it; the next record begins another."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def _write_facts(self, facts: Mapping[str, Any]) -> None:
        text = json.dumps(facts, indent=2, ensure_ascii=False).encode() + b"\n"
        temporary = self.folder / f".{FACTS}.tmp"
        with temporary.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.folder / FACTS)
        self.num_bytes += len(text)
