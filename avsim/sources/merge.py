"""Several traces of one target and drafter, as one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from avsim.errors import InputError
from avsim.sources.base import Trace, open_trace
from avsim.sources.card import TraceCard
from avsim.sources.parquet import frames, reading
from avsim.sources.schema import BLOCKS, MASK, STEPS, slot_column
from avsim.sources.validate import validate_trace
from avsim.sources.writer import write_trace

__all__ = ["merge_traces"]

MUST_AGREE = (
    "kind",
    "target",
    "drafter",
    "drafter_kind",
    "num_speculative_tokens",
    "draft_sampling",
    "acceptance_rule",
    "temperature",
    "vocab_size",
    "recorded",
    "past_end_blocks",
    "synthetic",
)
LISTED = ("engine", "engine_version", "hardware", "prompts", "licence", "date")


def merge_traces(
    path: str | Path,
    traces: Sequence[str | Path],
    *,
    name: str | None = None,
    allow_mixed_temperature: bool = False,
    same_prompts: bool = False,
    overwrite: bool = False,
) -> Trace:
    """Write one trace that holds the requests of several, one trace after the other.

    Requests, steps and sources are numbered anew; gaps between the steps of a trace stay. Arrival times go on from
    the last one before. Every trace is validated first; blocks are streamed, so memory does not grow with them, and
    the folder appears whole or not at all.

    A trace holds no prompts, so whether two traces served the same ones cannot be seen: their requests are different
    sources, each a unit of its own when resampling, unless `same_prompts` says so. Requests that are in truth the same
    prompt but count as different units make intervals too narrow.

    Args:
        path: the folder to make.
        traces: the folders to merge, two or more.
        name: of the merged trace.
        allow_mixed_temperature: take traces of different temperatures; the card's is then None.
        same_prompts: requests with the same id have the same content in every trace, as when one list of prompts was
            served several times: they become one source.
        overwrite: replace a trace that is already at `path`.

    Raises:
        InputError: fewer than two traces, the same one twice, a field of the cards that differs, ids that cannot be
            the same prompts, or a bad trace.
    """
    if len(traces) < 2:
        raise InputError("a merge needs at least two traces")
    for folder in traces:
        validate_trace(folder)
    opened = [open_trace(folder) for folder in traces]
    _check_agree(opened, allow_mixed_temperature)
    inputs = _numbered(opened)
    card = _card(opened, name)
    requests = _requests(inputs, _sources(opened, same_prompts))
    return write_trace(path, card, requests, _blocks(inputs), _steps(inputs), overwrite)


@dataclass(frozen=True)
class _Input:
    trace: Trace
    first_request: int
    step_shift: int
    arrival_shift: float


def _check_agree(opened: list[Trace], allow_mixed_temperature: bool) -> None:
    first = opened[0]
    hashes: dict[str, Path] = {}
    for trace in opened:
        for field in MUST_AGREE:
            one, other = getattr(first.card, field), getattr(trace.card, field)
            if one == other or (field == "temperature" and allow_mixed_temperature):
                continue
            advice = "; --allow-mixed-temperature merges them" if field == "temperature" else ""
            raise InputError(
                f"{field} is {_told(one)} in {first.path}, but {_told(other)} in {trace.path}; "
                f"traces that are merged must agree on it{advice}"
            )
        if (twin := hashes.setdefault(trace.card.content_hash, trace.path)) is not trace.path:
            raise InputError(f"{trace.path}: it holds the same data as {twin}; merge each trace once")


def _told(value: Any) -> str:
    return ("+".join(value) or "nothing") if isinstance(value, tuple) else repr(value)


def _numbered(opened: list[Trace]) -> list[_Input]:
    inputs: list[_Input] = []
    request, step, arrival = 0, 0, 0.0
    for trace in opened:
        low, high = _step_range(trace)
        inputs.append(_Input(trace, request, step - low, arrival))
        request += len(trace.requests)
        step += high - low + 1
        arrivals = trace.requests["arrival_s"].drop_nulls().to_list()
        arrival += max(arrivals, default=0.0)
    return inputs


def _step_range(trace: Trace) -> tuple[int, int]:
    if trace.card.kind == "dense":
        return 0, -1
    found: list[int] = []
    for part in trace.parts:
        with reading(part.path):
            scan = pl.scan_parquet(part.path, glob=False).select(low=pl.col("step").min(), high=pl.col("step").max())
            found += [value for value in scan.collect().row(0) if value is not None]
    if (steps := trace.steps()) is not None:
        found += [steps["step"][0], steps["step"][-1]]
    return min(found), max(found)


def _sources(opened: list[Trace], same_prompts: bool) -> list[list[int]]:
    """Number the sources anew; with `same_prompts`, sources that share a request id, however indirectly, are one."""
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(key: tuple[int, int]) -> tuple[int, int]:
        parent.setdefault(key, key)
        while parent[key] != key:
            parent[key] = key = parent[parent[key]]
        return key

    first: dict[int, tuple[int, int, int]] = {}
    for number, trace in enumerate(opened):
        for request, source, prompt_len in trace.requests.select("request", "source", "prompt_len").iter_rows():
            key = root((number, source))
            if not same_prompts:
                continue
            index, twin, length = first.setdefault(request, (number, source, prompt_len))
            if length != prompt_len:
                raise InputError(
                    f"request {request} has a prompt of {length} tokens in {opened[index].path}, but of {prompt_len} "
                    f"in {trace.path}; these are not the same prompts"
                )
            parent[key] = root((index, twin))
    numbers: dict[tuple[int, int], int] = {}
    return [
        [numbers.setdefault(root((number, source)), len(numbers)) for source in trace.requests["source"].to_list()]
        for number, trace in enumerate(opened)
    ]


def _requests(inputs: list[_Input], sources: list[list[int]]) -> pl.DataFrame:
    return pl.concat(
        one.trace.requests.with_columns(
            pl.Series("request", range(one.first_request, one.first_request + len(own)), dtype=pl.Int64),
            pl.Series("source", own, dtype=pl.Int64),
            pl.col("arrival_s") + one.arrival_shift,
        )
        for one, own in zip(inputs, sources, strict=True)
    )


def _blocks(inputs: list[_Input]) -> Iterator[pl.DataFrame]:
    masked = any(one.trace.has_mask for one in inputs)
    for one in inputs:
        trace = one.trace
        plain = [name for name in BLOCKS if name != "step" or trace.card.kind == "on-policy"]
        mask = [MASK] if trace.has_mask else []
        slots = [slot_column(name, k) for name in trace.features for k in range(trace.card.num_speculative_tokens)]
        old = trace.requests["request"]
        new = pl.Series(range(one.first_request, one.first_request + len(old)), dtype=pl.Int64)
        columns = [pl.col(name).cast(dtype) for name, dtype in BLOCKS.items() if name in plain and name != "step"]
        columns += [(pl.col("step").cast(pl.Int64) + one.step_shift)] if "step" in plain else []
        columns += [pl.col(name).cast(pl.Float32) for name in slots]
        columns += [(pl.col(MASK) if mask else pl.lit(None).alias(MASK)).cast(pl.String)] if masked else []
        for part in trace.parts:
            for frame in frames(part, plain + mask + slots):
                yield frame.select(columns).with_columns(pl.col("request").replace_strict(old, new))


def _steps(inputs: list[_Input]) -> pl.DataFrame | None:
    """Return the step tables, one after the other; a trace without one gives its blocks' steps, and no more."""
    tables = [one.trace.steps() for one in inputs]
    if all(table is None for table in tables):
        return None
    found = []
    for one, table in zip(inputs, tables, strict=True):
        if table is None:
            steps = [pl.scan_parquet(part.path, glob=False).select("step").unique() for part in one.trace.parts]
            with reading(one.trace.path):
                bare = pl.concat(steps).select(pl.col("step").cast(pl.Int64).unique().sort()).collect()
            table = bare.with_columns(pl.lit(None, dtype=dtype).alias(n) for n, dtype in STEPS.items() if n != "step")
        found.append(table.with_columns(pl.col("step") + one.step_shift).select(list(STEPS)))
    return pl.concat(found)


def _card(opened: list[Trace], name: str | None) -> TraceCard:
    cards = [trace.card for trace in opened]
    listed: dict[str, Any] = {}
    for field in LISTED:
        values = list(dict.fromkeys(getattr(card, field) for card in cards))
        listed[field] = values[0] if len(values) == 1 else "; ".join("unknown" if v is None else v for v in values)
    temperatures = {card.temperature for card in cards}
    seeds = {card.seed for card in cards}
    return replace(
        cards[0],
        name=name or f"{cards[0].name}-and-{len(cards) - 1}-more",
        temperature=cards[0].temperature if len(temperatures) == 1 else None,
        adaptive_verification=any(card.adaptive_verification for card in cards),
        seed=cards[0].seed if len(seeds) == 1 else None,
        complete_blocks=all(card.complete_blocks for card in cards),
        recorded=(),
        derived_from="merged from " + "; ".join(f"{card.name} ({card.content_hash[:15]}…)" for card in cards),
        notes=_notes(cards),
        **listed,
    )


def _notes(cards: list[TraceCard]) -> str:
    parts = ["Merged: the traces follow each other, whenever they were recorded."]
    for field in ("adaptive_verification", "complete_blocks"):
        having = [card.name for card in cards if getattr(card, field)]
        if 0 < len(having) < len(cards):
            parts.append(f"{field} holds for {', '.join(having)} only.")
    parts += [
        f"{card.name}: {re.sub(r'[.]?$', '.', card.notes.strip(), count=1)}" for card in cards if card.notes.strip()
    ]
    return " ".join(parts)
