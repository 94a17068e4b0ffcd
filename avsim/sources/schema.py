"""The columns of a trace's tables, and what each may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from avsim.errors import InputError
from avsim.features import MAX_LOG_ODDS
from avsim.registry import suggest

__all__ = ["BLOCKS", "FEATURES", "MASK", "REQUESTS", "SCHEMA_VERSION", "STEPS", "FeatureSpec", "check_table"]

SCHEMA_VERSION = 1
MASK = "mask"
TOP_LOGITS = 16
_ANY = 3.0e38
_SLACK = 1e-5


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A per-slot feature: its closed range, and whether every drafted slot must have it.

    A feature of the target (such as `alpha`) is known only where verification reached the slot: NaN elsewhere.
    """

    low: float
    high: float
    required: bool = True


FEATURES: Mapping[str, FeatureSpec] = {
    "log_odds": FeatureSpec(-MAX_LOG_ODDS, MAX_LOG_ODDS),
    "log_odds_f32": FeatureSpec(-MAX_LOG_ODDS, MAX_LOG_ODDS),
    "entropy": FeatureSpec(-_SLACK, _ANY),
    "margin": FeatureSpec(-_SLACK, _ANY),
    "logsumexp": FeatureSpec(-_ANY, _ANY),
    "draft_logprob": FeatureSpec(-_ANY, _SLACK),
    "confidence": FeatureSpec(-_SLACK, 1 + _SLACK),
    **{f"top_logit_{rank}": FeatureSpec(-_ANY, _ANY) for rank in range(TOP_LOGITS)},
    "alpha": FeatureSpec(-_SLACK, 1 + _SLACK, required=False),
    "target_logprob": FeatureSpec(-_ANY, _SLACK, required=False),
    "accept_prob": FeatureSpec(-_SLACK, 1 + _SLACK, required=False),
}

BLOCKS: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),
    "request": pl.Int64(),
    "position": pl.Int32(),
    "num_drafted": pl.Int16(),
    "num_admitted": pl.Int16(),
    "num_accepted": pl.Int16(),
}
REQUESTS: Mapping[str, pl.DataType] = {
    "request": pl.Int64(),
    "source": pl.Int64(),
    "prompt_len": pl.Int64(),
    "output_len": pl.Int64(),
    "temperature": pl.Float64(),
    "top_p": pl.Float64(),
    "category": pl.String(),
    "arrival_s": pl.Float64(),
}
REQUIRED_OF_REQUESTS = ("request", "source", "prompt_len", "output_len", "temperature")
STEPS: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),
    "num_reqs": pl.Int64(),
    "num_target_tokens": pl.Int64(),
    "num_prefill_tokens": pl.Int64(),
    "kv_tokens": pl.Int64(),
    "forward_ms": pl.Float64(),
    "drafter_ms": pl.Float64(),
    "graph_mode": pl.String(),
}
_SLOT_COLUMN = re.compile(r"(?P<feature>.+)_(?P<slot>\d+)")


def check_table(
    schema: Mapping[str, pl.DataType], known: Mapping[str, pl.DataType], required: tuple[str, ...], where: str
) -> None:
    """Check a table's columns against the known ones: all required are there, and each has the right kind of dtype.

    Any integer width is read; floats must be floats and text must be text.

    Raises:
        InputError: a column is missing, unknown, or of another kind.
    """
    for name in required:
        if name not in schema:
            raise InputError(f"{where}: column {name!r} is missing; it has {', '.join(schema) or 'none'}")
    for name, dtype in schema.items():
        if name not in known:
            raise InputError(f"{where}: unknown column {name!r}{suggest(name, known)}")
        if not _same_kind(dtype, known[name]):
            raise InputError(f"{where}: column {name!r} is {dtype}, not {known[name]}; cast it before writing")


def slot_column(feature: str, slot: int) -> str:
    """Return the column that holds a feature's slot: `log_odds_3`."""
    return f"{feature}_{slot}"


def features_of(schema: Mapping[str, pl.DataType], num_slots: int, where: str) -> tuple[str, ...]:
    """Check the columns of a blocks table, and return the names of the features that it holds.

    Raises:
        InputError: an unknown column, or a feature that lacks one of the K slots.
    """
    slots: dict[str, set[int]] = {}
    plain: dict[str, pl.DataType] = {}
    for name, dtype in schema.items():
        match = _SLOT_COLUMN.fullmatch(name)
        if match is None:
            plain[name] = dtype
            continue
        feature, slot = match["feature"], int(match["slot"])
        if feature not in FEATURES or slot >= num_slots:
            raise InputError(
                f"{where}: unknown column {name!r}; a per-slot column is a feature and a slot below {num_slots}, "
                f"and the features are {', '.join(FEATURES)}"
            )
        if not _same_kind(dtype, pl.Float32()):
            raise InputError(f"{where}: column {name!r} is {dtype}, not Float32; cast it before writing")
        slots.setdefault(feature, set()).add(slot)
    for feature, found in slots.items():
        missing = sorted(set(range(num_slots)) - found)
        if missing:
            raise InputError(f"{where}: column {slot_column(feature, missing[0])!r} is missing; K is {num_slots}")
    required = tuple(name for name in BLOCKS if name != "step")
    check_table(plain, {**BLOCKS, MASK: pl.String()}, required, where)
    return tuple(name for name in FEATURES if name in slots)


def _same_kind(dtype: pl.DataType, wanted: pl.DataType) -> bool:
    if wanted.is_integer():
        return dtype.is_integer()
    if wanted.is_float():
        return dtype in (pl.Float32, pl.Float64) or dtype == pl.Null
    return dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)
