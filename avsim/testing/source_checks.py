"""Checks that every trace must pass, wherever it comes from: recorded, imported or synthetic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from avsim.errors import InputError
from avsim.sources.base import Trace
from avsim.sources.schema import FEATURES, MASK, REQUESTS, STEPS, slot_column
from avsim.sources.validate import validate_trace
from avsim.types import Blocks

__all__ = ["SOURCE_CHECKS"]

_COUNTS = ("num_drafted", "num_admitted", "num_accepted")
_COLUMNS = ("request", "position", "step", *_COUNTS, "unfit")


def check_valid_on_disk(trace: Trace) -> None:
    """The folder passes `validate_trace`: every value, and the content hash."""
    try:
        validate_trace(trace.path)
    except InputError as error:
        raise AssertionError(f"validate_trace refuses it: {error}") from error


def check_tables(trace: Trace) -> None:
    """The request and step tables have the schema's columns and types, and the card counts what is there."""
    schema = dict(trace.requests.schema)
    assert schema == dict(REQUESTS), f"the request table has {schema}, not {dict(REQUESTS)}"
    assert trace.requests["request"].is_unique().all(), "two requests have the same id"
    steps = trace.steps()
    if steps is not None:
        assert dict(steps.schema) == dict(STEPS), f"the step table has {dict(steps.schema)}, not {dict(STEPS)}"
    card = trace.card
    assert card.num_requests == len(trace.requests), f"the card counts {card.num_requests} requests"
    assert card.num_blocks == trace.num_blocks, f"the card counts {card.num_blocks} blocks, not {trace.num_blocks}"
    assert card.recorded == trace.features, f"the card records {card.recorded}, the files hold {trace.features}"
    unknown = set(trace.features) - set(FEATURES)
    assert not unknown, f"features {sorted(unknown)} are not in the schema"


def check_block_types(trace: Trace) -> None:
    """Blocks are int64 `[n]`, features float32 `[K, n]`, the mask bool `[n]`; a step only in on-policy traces."""
    blocks, rows = trace.blocks(trace.features), trace.num_blocks
    for name in _COLUMNS:
        column = getattr(blocks, name)
        if column is None:
            assert name in ("step", "unfit"), f"{name} is None"
            continue
        wanted = np.bool_ if name == "unfit" else np.int64
        assert column.dtype == wanted, f"{name} is {column.dtype}, not {np.dtype(wanted)}"
        assert column.shape == (rows,), f"{name} has shape {column.shape}, not {(rows,)}"
    on_policy = trace.card.kind == "on-policy"
    assert (blocks.step is not None) == on_policy, f"a step column in a trace of kind {trace.card.kind}, or none"
    assert set(blocks.features) == set(trace.features), f"asked for {trace.features}, got {tuple(blocks.features)}"
    shape = (trace.card.num_speculative_tokens, rows)
    for name, values in blocks.features.items():
        assert values.dtype == np.float32, f"feature {name} is {values.dtype}, not float32"
        assert values.shape == shape, f"feature {name} has shape {values.shape}, not {shape}"


def check_values(trace: Trace) -> None:
    """0 ≤ A ≤ M ≤ drafted ≤ K, positions inside their outputs, features in range, and NaN in undrafted slots."""
    blocks, num_slots = trace.blocks(trace.features), trace.card.num_speculative_tokens
    drafted, admitted, accepted = (getattr(blocks, name) for name in _COUNTS)
    ordered = (accepted >= 0) & (accepted <= admitted) & (admitted <= drafted) & (drafted <= num_slots)
    assert ordered.all(), f"row {ordered.argmin()} breaks 0 ≤ num_accepted ≤ num_admitted ≤ num_drafted ≤ {num_slots}"
    if trace.card.kind == "dense":
        assert (admitted == drafted).all(), "a dense trace verifies every drafted slot"
    requests = len(trace.requests)
    assert ((blocks.request >= 0) & (blocks.request < requests)).all(), "a block belongs to no row of the request table"
    last = trace.requests["output_len"].to_numpy()[blocks.request] - 2 + trace.card.past_end_blocks
    assert ((blocks.position >= 0) & (blocks.position <= last)).all(), "a block starts outside its request's output"
    inside = np.arange(num_slots)[:, None] < drafted
    for name, values in blocks.features.items():
        spec = FEATURES[name]
        assert np.isnan(values[~inside]).all(), f"feature {name} has values in slots that were not drafted"
        present = values[inside]
        present = present if spec.required else present[~np.isnan(present)]
        in_range = ((present >= spec.low) & (present <= spec.high)).all()
        assert in_range, f"feature {name} leaves {spec.low:g} … {spec.high:g} in a drafted slot"


def check_matches_files(trace: Trace) -> None:
    """Blocks hold what the Parquet files say, read plainly: ids, counts, mask, and every feature slot by slot."""
    blocks = trace.blocks(trace.features)
    frame = pl.concat([pl.read_parquet(part.path, glob=False) for part in trace.parts])
    ids = trace.requests["request"].to_numpy()[blocks.request]
    assert np.array_equal(ids, frame["request"].to_numpy()), "blocks belong to other requests than in the files"
    for name in ("position", *_COUNTS, *(("step",) if trace.card.kind == "on-policy" else ())):
        assert np.array_equal(getattr(blocks, name), frame[name].to_numpy()), f"{name} differs from the files"
    assert (blocks.unfit is not None) == (MASK in frame.columns), "the mask column is lost or made up"
    if blocks.unfit is not None:
        masked = frame[MASK].is_not_null().to_numpy()
        assert np.array_equal(blocks.unfit, masked), "unfit differs from the mask column of the files"
    for name, values in blocks.features.items():
        for slot in range(trace.card.num_speculative_tokens):
            stored = frame[slot_column(name, slot)].cast(pl.Float32).to_numpy()
            inside = blocks.num_drafted > slot
            same = np.array_equal(values[slot][inside], stored[inside], equal_nan=True)
            assert same, f"feature {name} differs from the files in slot {slot}"


def check_sorted(trace: Trace) -> None:
    """Dense blocks come by (request, position); on-policy blocks by (step, request), positions rising in a request."""
    blocks = trace.blocks()
    keys = (blocks.request, blocks.position) if blocks.step is None else (blocks.step, blocks.request)
    first, second = np.diff(keys[0]), np.diff(keys[1])
    names = "(request, position)" if blocks.step is None else "(step, request)"
    assert ((first > 0) | ((first == 0) & (second > 0))).all(), f"blocks do not rise by {names}"
    order = np.argsort(blocks.request, kind="stable")
    same = np.diff(blocks.request[order]) == 0
    assert (np.diff(blocks.position[order])[same] > 0).all(), "a request goes back to a position that it has passed"


def check_re_iterable(trace: Trace) -> None:
    """A second pass gives the same blocks, whether the first one was finished or not."""
    first = trace.blocks(trace.features)
    next(_passes(trace, 1))
    _same(first, trace.blocks(trace.features), "a second pass over blocks()")
    for _ in range(2):
        _same(first, _joined(list(_passes(trace, 100))), "a pass in pieces")


def check_pieces(trace: Trace) -> None:
    """Pieces of any size join to the same content as `blocks()`; each holds whole steps and enough rows."""
    whole = trace.blocks(trace.features)
    for min_rows in (1, 7, 64, len(whole) + 1):
        pieces = list(_passes(trace, min_rows))
        _same(whole, _joined(pieces), f"pieces of at least {min_rows} rows")
        if trace.card.kind == "dense":
            continue
        for piece, following in itertools.pairwise(pieces):
            assert len(piece) >= min_rows, f"a piece of {len(piece)} rows, where at least {min_rows} were asked for"
            assert piece.step is not None
            assert following.step is not None
            assert piece.step[-1] < following.step[0], f"step {piece.step[-1]} is torn over two pieces"


def check_columns_on_demand(trace: Trace) -> None:
    """Reading fewer features gives the same rows with those features alone; an unrecorded one is refused."""
    whole = trace.blocks(trace.features)
    for chosen in ((), trace.features[:1]):
        part = trace.blocks(chosen)
        assert tuple(part.features) == tuple(chosen), f"asked for {chosen}, got {tuple(part.features)}"
        expected = replace(whole, features={name: whole.features[name] for name in chosen})
        _same(expected, part, f"reading the features {chosen}")
    try:
        trace.blocks(("no-such-feature",))
    except InputError:
        return
    raise AssertionError("a feature that was not recorded is not refused")


def check_fewer_slots(trace: Trace) -> None:
    """`num_slots` cuts features and counts to the first slots, in one piece and in many; more than K is refused."""
    whole, num_slots = trace.blocks(trace.features), trace.card.num_speculative_tokens
    for width in {1, max(1, num_slots - 1), num_slots}:
        cut = replace(
            whole,
            num_drafted=np.minimum(whole.num_drafted, width),
            num_admitted=np.minimum(whole.num_admitted, width),
            num_accepted=np.minimum(whole.num_accepted, width),
            features={name: values[:width] for name, values in whole.features.items()},
        )
        _same(cut, trace.blocks(trace.features, num_slots=width), f"the first {width} slots")
        if trace.card.kind == "on-policy":
            pieces = trace.iter_blocks(trace.features, num_slots=width, min_rows=50)
            _same(cut, _joined(list(pieces)), f"the first {width} slots in pieces")
    try:
        trace.blocks((), num_slots=num_slots + 1)
    except InputError:
        return
    raise AssertionError(f"{num_slots + 1} slots are read from a trace that recorded {num_slots}")


def _passes(trace: Trace, min_rows: int) -> Iterator[Blocks]:
    if trace.card.kind == "dense":
        return trace.chunks(trace.features)
    return trace.iter_blocks(trace.features, min_rows=min_rows)


def _joined(pieces: list[Blocks]) -> Blocks:
    def column(name: str) -> np.ndarray | None:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else np.concatenate(parts)

    names = tuple(pieces[0].features)
    features = {name: np.concatenate([piece.features[name] for piece in pieces], axis=1) for name in names}
    columns = {name: column(name) for name in _COLUMNS}
    return Blocks(**columns, features=features)  # type: ignore[arg-type]


def _same(left: Blocks, right: Blocks, what: str) -> None:
    for name in _COLUMNS:
        mine, other = getattr(left, name), getattr(right, name)
        same = (mine is None and other is None) or (mine is not None and np.array_equal(mine, other))
        assert same, f"{what} gives another {name}"
    assert left.features.keys() == right.features.keys(), f"{what} gives other features"
    for name, values in left.features.items():
        same = np.array_equal(values, right.features[name], equal_nan=True)
        assert same, f"{what} gives another {name}"


SOURCE_CHECKS = (
    check_valid_on_disk,
    check_tables,
    check_block_types,
    check_values,
    check_matches_files,
    check_sorted,
    check_re_iterable,
    check_pieces,
    check_columns_on_demand,
    check_fewer_slots,
)
