"""What the capture hooks recorded from a running engine, as an on-policy trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from avsim.capture.recovery import Recovered, find_captures, recover
from avsim.errors import InputError
from avsim.sources.card import TraceCard
from avsim.sources.importers.base import Imported, Importer
from avsim.sources.importers.capture_tables import Table, block_frames, request_frame, step_frame
from avsim.sources.schema import FEATURES

__all__ = ["Capture"]

PIECE_ROWS = 1 << 17
_FROM_FACTS = {field.name for field in fields(TraceCard)} - {"name", "kind", "temperature", "notes", "schema_version"}
_VARY = ("seed",)


@dataclass(frozen=True)
class Capture(Importer):
    """Imports the folder that `AVSIM_TRACE_DIR` named, or one `capture-…` folder in it.

    Folders of several processes become one trace if their engines are the same: one after the other, by the time
    they were begun. A request whose end was not recorded (the engine was killed, or recording stopped) is kept with
    the tokens that its blocks show. Left out are blocks that start past the end of their output (an engine that
    schedules ahead runs one step too many), blocks with a NaN or impossible feature, and aborted or cut requests
    without a block; the card's notes count them, and everything that the recorder dropped.
    """

    name: ClassVar[str] = "capture"
    reads: ClassVar[str] = "a folder that the capture hooks wrote"

    title: str | None = None
    """Name of the trace; by default made of the target's and the drafter's kind."""
    target: str | None = None
    """Of the card; by default as the engine named it, which for a local model is its folder."""
    drafter: str | None = None
    prompts: str = "unknown"
    licence: str = "unknown"
    notes: str = ""

    def read(self, source: Path) -> Imported:
        found = [recover(folder) for folder in find_captures(source)]
        _check_agree(found)
        tables: list[Table] = []
        first_step = first_request = 0
        for log in found:
            tables.append(Table.of(log, first_step, first_request))
            first_step += log.last_step + 1
            first_request += max(log.requests, default=-1) + 1
        requests = pl.concat([request_frame(table) for table in tables])
        if not sum(table.num_usable for table in tables):
            reasons = "; ".join(_losses(tables)) or "nothing was recorded"
            raise InputError(f"{source}: no usable blocks ({reasons})")
        temperatures = requests["temperature"].unique()
        card = self._card(found, tables, temperatures[0] if len(temperatures) == 1 else None)
        features = tuple(name for name in FEATURES if name in _features(found))
        has_mask = any(log.has_mask for log in found)
        pieces = (frame for table in tables for frame in block_frames(table, features, has_mask))
        steps = pl.concat([step_frame(table) for table in tables])
        return Imported(card, requests, _larger(pieces), steps)

    def _card(self, found: list[Recovered], tables: list[Table], temperature: float | None) -> TraceCard:
        facts = dict(found[0].about["facts"])
        facts["seed"] = facts.get("seed") if len({log.about["facts"].get("seed") for log in found}) == 1 else None
        known = {name: value for name, value in facts.items() if name in _FROM_FACTS}
        defaults: dict[str, Any] = {
            "target": "unknown",
            "drafter": "unknown",
            "drafter_kind": "unknown",
            "date": str(found[0].about.get("started"))[:10],
            "complete_blocks": True,
            "prompts": self.prompts,
            "licence": self.licence,
        }
        named = {"target": self.target, "drafter": self.drafter}
        values = {**defaults, **known, **{name: value for name, value in named.items() if value is not None}}
        title = self.title or "-".join([str(values["target"]).rsplit("/", 1)[-1], values["drafter_kind"], "capture"])
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", title).lstrip("._-") or "capture"
        try:
            return TraceCard(
                name=name,
                kind="on-policy",
                temperature=temperature,
                notes=f"{self.notes} {_notes(found, tables)}".strip(),
                **values,
            )
        except (InputError, TypeError) as error:
            raise InputError(f"{found[0].folder / 'facts.json'}: {error}") from None


def _features(found: list[Recovered]) -> tuple[str, ...]:
    return next((log.names for log in found if log.names), ())


def _check_agree(found: list[Recovered]) -> None:
    first = found[0].about["facts"]
    for log in found[1:]:
        facts = log.about["facts"]
        for name in sorted({*first, *facts} - {*_VARY}):
            if first.get(name) != facts.get(name):
                raise InputError(
                    f"{log.folder}: {name} is {facts.get(name)!r}, but {first.get(name)!r} in {found[0].folder.name}; "
                    f"these are different engines, so import their folders one by one"
                )
        if log.names and log.names != _features(found):
            raise InputError(
                f"{log.folder}: it recorded {', '.join(log.names)}, but {found[0].folder.name} recorded "
                f"{', '.join(_features(found))}; import their folders one by one"
            )


def _notes(found: list[Recovered], tables: list[Table]) -> str:
    requests = sum((table.tally for table in tables), Counter[str]())
    parts = [
        f"Captured from a running engine: {_count(len(found), 'process', 'processes')}",
        f"requests: {_listed(requests)}",
        *_losses(tables),
    ]
    if requests["cut"]:
        parts.append("cut requests have no recorded end, so their output_len is what had been emitted by then")
    if len(found) > 1:
        parts.append("steps and arrival times of the processes follow each other here, whenever they ran")
    rates = sorted({log.about.get("sample_rate", 1.0) for log in found})
    if rates != [1.0]:
        parts.append(f"sampled: {', '.join(f'{rate:g}' for rate in rates)} of the requests, chosen by hashed id")
    unknown = sorted({*_features(found)} - {*FEATURES})
    if unknown:
        parts.append(f"features that this version does not know were left out: {', '.join(unknown)}")
    return "; ".join(parts) + "."


def _losses(tables: list[Table]) -> list[str]:
    parts = []
    recorder: Counter[str] = Counter()
    dropped_steps = 0
    for table in tables:
        counters = table.log.counters
        recorder.update(counters.get("dropped_blocks", {}))
        dropped_steps += counters.get("dropped_steps", 0)
    if recorder:
        parts.append(f"verdicts that the recorder dropped: {_listed(recorder)}")
    if dropped_steps:
        parts.append(f"steps that were dropped whole as the writer could not keep up: {dropped_steps}")
    imported = sum((table.left_out for table in tables), Counter[str]())
    if imported:
        parts.append(f"recorded blocks that were left out: {_listed(imported)}")
    for table in tables:
        log = table.log
        if log.ended is None:
            most, seconds = log.about.get("most_steps_lost_if_killed"), log.about.get("flush_seconds")
            parts.append(
                f"{log.folder.name} was not closed: at most {most} steps before its end are missing, or {seconds:g} s"
            )
        elif log.ended != "closed":
            parts.append(f"{log.folder.name} stopped early: {log.ended}")
        if log.damage.cut_bytes:
            parts.append(
                f"{log.folder.name}: {log.damage.cut_bytes} bytes at the end of "
                f"{_count(log.damage.cut_parts, 'log file', 'log files')} could not be read"
                f" ({_count(log.damage.cut_steps, 'step', 'steps')} by the torn header)"
            )
    return parts


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()) if number)


def _larger(pieces: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Join small frames: each is cheap, but writing one costs as much as writing a thousand rows."""
    held: list[pl.DataFrame] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        rows += piece.height
        if rows >= PIECE_ROWS:
            yield pl.concat(held)
            held, rows = [], 0
    if held:
        yield pl.concat(held)
