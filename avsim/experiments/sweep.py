"""A sweep: every combination of some lists as a replay, and the key under which its result is kept."""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from avsim import __version__
from avsim.config import ReplayConfig
from avsim.costs import dump, load
from avsim.errors import InputError
from avsim.experiments.spec import Experiment
from avsim.manifest import sha256_json
from avsim.registry import suggest
from avsim.sources import open_trace, validate_trace
from avsim.study import build_arms
from avsim.what_if import check_match

__all__ = ["Configuration", "expand"]

_PATHS = ("trace", "cost", "belief")


@dataclass(frozen=True)
class Configuration:
    """One replay of a sweep.

    Attributes:
        point: the values of the grid's keys, as written.
        config: the replay, with paths resolved.
        inputs: content hash of the trace and the cost models.
        key: hash of everything that decides the result: config, inputs, and avsim's version.
    """

    point: dict[str, Any]
    config: ReplayConfig
    inputs: dict[str, str]
    key: str

    @property
    def label(self) -> str:
        """The point in one line."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.point.items())


def expand(experiment: Experiment) -> list[Configuration]:
    """Return every configuration of a sweep, the last key of the grid varying fastest, all of them checked.

    Raises:
        InputError: an unknown key, a value of the wrong type, a trace or cost that is missing or does not match, or a
            combination that a replay would refuse.
    """
    where = experiment.folder / "experiment.toml"
    base, grid = experiment.base, experiment.grid
    known = [item.name for item in fields(ReplayConfig)]
    for name in (*base, *grid):
        if name not in known:
            raise InputError(f"{where}: a replay has no {name!r}{suggest(name, known)}")
    if twice := sorted(set(base) & set(grid)):
        raise InputError(f"{where}: {twice[0]} stands in [base] and in [grid]; keep one")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}: [grid] {name} must be a list of values, not {values!r}")
        if any(value in values[:index] for index, value in enumerate(values)):
            raise InputError(f"{where}: [grid] {name} names a value twice: {values}")
    for item in fields(ReplayConfig):
        if item.default is MISSING and item.name not in (*base, *grid):
            raise InputError(f"{where}: {item.name} is missing: put it into [base] or [grid]")
    found: list[Configuration] = []
    hashes: dict[str, str] = {}
    for chosen in itertools.product(*grid.values()):
        point = dict(zip(grid, chosen, strict=True))
        try:
            found.append(_configuration(experiment.folder, base, point, hashes))
        except InputError as error:
            at = Configuration(point, ReplayConfig(trace="", cost=""), {}, "").label
            raise InputError(f"{where}: {at}: {error}") from None
    return found


def _configuration(
    folder: Path, base: Mapping[str, Any], point: Mapping[str, Any], hashes: dict[str, str]
) -> Configuration:
    written = {name: _typed(name, value) for name, value in {**base, **point}.items()}
    asked = ReplayConfig.from_json(written)
    resolved = {name: _resolved(folder, written[name]) for name in _PATHS if name in written}
    config = ReplayConfig.from_json(written | resolved)
    inputs = _check(config, hashes)
    key = sha256_json({"config": asked.to_json(), "inputs": inputs, "avsim": __version__})[:32]
    return Configuration(dict(point), config, inputs, key)


def _check(config: ReplayConfig, hashes: dict[str, str]) -> dict[str, str]:
    """Refuse what a replay would refuse, before anything runs; return the hashes of the inputs.

    `hashes` keeps those of traces that have been read: checking one means reading all of it.
    """
    trace, truth = open_trace(config.trace), load(config.cost)
    if config.trace not in hashes:
        validate_trace(config.trace)  # the card's hash is worth something only if the tables still have it
        hashes[config.trace] = str(trace.card.content_hash)
    inputs = {"trace": hashes[config.trace], "cost": sha256_json(dump(truth))}
    if config.belief is not None:
        inputs["belief"] = sha256_json(dump(load(config.belief)))
    check_match(trace, truth, config.what_if, num_slots=config.num_slots)
    recorded = trace.card.num_speculative_tokens
    slots = config.num_slots or recorded
    if slots > recorded:
        raise InputError(f"num_slots is {slots}, but {trace.path} holds K = {recorded}")
    build_arms(config, slots)
    return inputs


def _resolved(folder: Path, value: str) -> str:
    """Return a path that starts at the experiment's folder; a preset's name, or a path from elsewhere, as it is."""
    return str((folder / value).resolve()) if (folder / value).exists() else value


def _typed(name: str, value: Any) -> Any:
    """Return a value as `ReplayConfig` holds it; a single value stands for a list of one."""
    hint = typing.get_type_hints(ReplayConfig)[name]
    if typing.get_origin(hint) is tuple and not isinstance(value, list):
        value = [value]
    if not _fits(value, hint):
        raise InputError(f"{name} must be {_described(hint)}, not {value!r}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in hint.__args__)
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, list) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _described(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"a list of {typing.get_args(hint)[0].__name__}"
    return str(hint).removeprefix("typing.").removesuffix(" | None") if not isinstance(hint, type) else hint.__name__


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
