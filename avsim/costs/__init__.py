"""Cost models. To add a kind: a file here, and a line in the imports and in `BUILTIN`; a preset is a JSON file.

A preset of a curve goes to `curves/`, a model's shape to `models/`, a GPU's data sheet to `gpus/`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

from avsim import registry
from avsim.costs import shapes
from avsim.costs.base import CostCard, CostModel, CostTables, StepShape
from avsim.costs.curve import CurveCost, staircase
from avsim.costs.draft import DraftParts
from avsim.costs.inject import DistortedCost, NoisyCost
from avsim.costs.linear import LinearCost
from avsim.costs.roofline import RooflineCost
from avsim.errors import InputError

__all__ = [
    "BUILTIN",
    "CostCard",
    "CostModel",
    "CostTables",
    "CurveCost",
    "DistortedCost",
    "DraftParts",
    "LinearCost",
    "NoisyCost",
    "RooflineCost",
    "StepShape",
    "available",
    "dump",
    "load",
    "parse",
    "parse_document",
    "presets",
    "shapes",
    "staircase",
]

BUILTIN: dict[str, type[Any]] = {
    cls.name: cls for cls in (CurveCost, LinearCost, RooflineCost, NoisyCost, DistortedCost)
}


def available() -> dict[str, type[Any]]:
    """Return every kind of cost model by name, including those of installed packages."""
    return registry.installed("costs", BUILTIN)


def presets() -> list[str]:
    """Return the names of the shipped cost models."""
    folder = resources.files("avsim.costs").joinpath("curves")
    return sorted(path.name.removesuffix(".json") for path in folder.iterdir() if path.name.endswith(".json"))


def load(name_or_path: str | Path) -> CostModel:
    """Load a preset by name, a cost model from a JSON file, or one from its spec (`roofline:model=…,gpu=…`).

    Raises:
        InputError: no such preset or file, the file is not a valid cost model, or the spec is wrong.
    """
    text = str(name_or_path)
    if text in presets():
        source = resources.files("avsim.costs").joinpath("curves", f"{text}.json")
        return parse(source.read_text(encoding="utf-8"), text)
    path = Path(name_or_path)
    if not path.is_file():
        specs = {name: kind.spec for name, kind in available().items() if getattr(kind, "spec", None)}
        if text.partition(":")[0].strip() in specs:
            built: CostModel = registry.from_spec(text, "costs", specs).build()
            return built
        known = [*presets(), *(f"{name}:…" for name in specs)]
        raise InputError(f"no cost preset or file {text!r}{registry.suggest(text, known)}")
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file ({error.reason}); a cost model is JSON") from None


def parse(text: str, where: str) -> CostModel:
    """Build a cost model from its JSON text; `where` names the file in errors."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON (line {error.lineno}: {error.msg})") from None
    return parse_document(data, where)


def parse_document(data: Any, where: str) -> CostModel:
    """Build a cost model from what its JSON holds; `where` names the file in errors."""
    try:
        kinds = available()
        if data.get("kind") not in kinds:
            raise InputError(f"{where}: kind is {data.get('kind')!r}{registry.suggest(str(data.get('kind')), kinds)}")
        known = {field.name for field in fields(CostCard)}
        card = CostCard(**{key: value for key, value in data["card"].items() if key in known})
        model: CostModel = kinds[data["kind"]].from_json(data, card)
    except KeyError as error:
        raise InputError(f"{where}: the key {error} is missing; see `avsim cost show` for a complete example") from None
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: malformed cost model: {error}") from None
    return model


def dump(model: CostModel) -> dict[str, Any]:
    """Return the JSON form of a cost model, with its card."""
    return {"card": asdict(model.card)} | model.to_json()
