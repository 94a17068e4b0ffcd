"""Reading the log of a capture back, however it ended: everything up to the last whole record of each file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avsim.capture.events import DETAILS
from avsim.capture.log import FACTS, Damage, Record, parts, read_facts, read_part
from avsim.errors import InputError

__all__ = ["CapturedRequest", "Recovered", "find_captures", "recover"]


@dataclass(slots=True)
class CapturedRequest:
    """What the log says of a request.

    Attributes:
        details: by the names in `avsim.capture.events.DETAILS`; empty if the record of its beginning was lost.
        finished: whether its end was recorded.
        aborted: whether it ended before it was done.
        output_len: emitted tokens: the engine's count if it gave one, else as far as the blocks go; 0 if unknown.
    """

    details: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    aborted: bool = False
    output_len: int = 0


@dataclass(slots=True)
class Recovered:
    """The log of one process.

    Attributes:
        about: `facts.json`.
        requests: by number; numbers rise as requests begin.
        names: the recorded features, in the order of the arrays.
        has_mask: whether any block's labels are unfit.
        counters: as of the last whole record; see `Recorder.counters`.
        ended: why recording ended, None where the process died before it said so.
        damage: what could not be read.
        last_step: number of the last step in the log, −1 if there is none.
    """

    folder: Path
    about: dict[str, Any]
    requests: dict[int, CapturedRequest] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    has_mask: bool = False
    counters: dict[str, Any] = field(default_factory=dict)
    ended: str | None = None
    damage: Damage = field(default_factory=Damage)
    last_step: int = -1

    def records(self) -> Iterator[Record]:
        """Yield the records again, one in memory at a time."""
        damage = Damage()
        for path in parts(self.folder):
            yield from read_part(path, damage)


def find_captures(source: Path) -> list[Path]:
    """List the capture folders at or directly below `source`, by the time they were begun.

    Raises:
        InputError: there are none.
    """
    if (source / FACTS).is_file():
        return [source]
    # A process killed while it made its folder leaves one without facts, and without any log.
    found = [folder for folder in source.glob("capture-*") if (folder / FACTS).is_file()] if source.is_dir() else []
    if not found:
        raise InputError(f"{source}: no capture here; point at the folder that AVSIM_TRACE_DIR named")
    return sorted(found, key=lambda folder: (str(read_facts(folder).get("started")), folder.name))


def recover(folder: Path) -> Recovered:
    """Read the log of one process once, keeping all but the blocks.

    Raises:
        InputError: the facts or a file cannot be read. Torn and damaged records are no error, but `damage`.
    """
    found = Recovered(folder, read_facts(folder))
    emitted: dict[int, int] = {}
    for path in parts(folder):
        for record in read_part(path, found.damage):
            _add_requests(found, record)
            found.counters = record.meta["counters"]
            found.ended = record.meta.get("end", found.ended)
            if record.arrays and record.arrays["steps.step"].size:
                found.last_step = int(record.arrays["steps.step"][-1])
            if "request" in record.arrays:
                found.names = tuple(record.meta["features"]) or found.names
                found.has_mask |= bool(record.meta["masks"])
                ends = record.arrays["position"] + record.arrays["num_accepted"] + 2
                for number, end in zip(record.arrays["request"].tolist(), ends.tolist(), strict=True):
                    emitted[number] = max(end, emitted.get(number, 0))
    for number, end in emitted.items():
        request = found.requests.setdefault(number, CapturedRequest())
        request.output_len = request.output_len if request.output_len > 0 else end
    return found


def _add_requests(found: Recovered, record: Record) -> None:
    for number, *details in record.meta.get("starts", ()):
        request = found.requests.setdefault(number, CapturedRequest())
        request.details = request.details or dict(zip(DETAILS, details, strict=True))
    for number, output_len, aborted in record.meta.get("finishes", ()):
        request = found.requests.setdefault(number, CapturedRequest())
        request.finished, request.aborted, request.output_len = True, aborted, output_len
