"""Shipped shapes of models and data sheets of GPUs, for rooflines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from avsim.costs.model_shape import BYTES, ModelShape
from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["Gpu", "gpu", "gpus", "model", "models"]


@dataclass(frozen=True)
class Gpu:
    """One GPU of a data sheet, dense peaks.

    Attributes:
        hbm_gb_s: memory bandwidth, GB/s.
        hbm_gb: memory, GB.
        tflops: dense peak by dtype, TFLOP/s; an fp4 or fp8 model on a GPU without it computes in the next wider type.
        link_gb_s: bandwidth to the other GPUs, one direction, GB/s.
        source: the data sheet, and where it was read. notes: what no source confirms.
    """

    name: str
    hbm_gb_s: float
    hbm_gb: float
    tflops: dict[str, float]
    link_gb_s: float
    source: str
    notes: str = ""

    def __post_init__(self) -> None:
        for term in ("hbm_gb_s", "hbm_gb", "link_gb_s"):
            if not getattr(self, term) > 0:
                raise InputError(f"GPU {self.name}: {term} must be > 0, not {getattr(self, term)}")
        if "bf16" not in self.tflops or not all(key in BYTES and value > 0 for key, value in self.tflops.items()):
            raise InputError(f"GPU {self.name}: tflops must hold bf16, and otherwise fp8 or fp4, all > 0")

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s for weights of a dtype."""
        wider = {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "bf16": ("bf16",)}[dtype]
        return next(self.tflops[name] for name in wider if name in self.tflops) * 1e12


def models() -> list[str]:
    """Return the names of the shipped model shapes."""
    return _names("models")


def gpus() -> list[str]:
    """Return the names of the shipped GPUs."""
    return _names("gpus")


def model(name: str) -> ModelShape:
    """Return a shipped model shape by name, or read one from a `config.json`.

    Raises:
        InputError: no such preset or file, or it cannot be read.

    >>> shape = model("llama-3.1-8b")
    >>> round(shape.total_params / 1e9, 2)
    8.03
    """
    return ModelShape.from_config(_document("models", name, "model"), Path(name).stem if "/" in name else name)


def gpu(name: str) -> Gpu:
    """Return a shipped GPU by name, or read one from a JSON file with the fields of `Gpu`.

    Raises:
        InputError: no such preset or file, or it cannot be read.
    """
    data = _document("gpus", name, "gpu")
    try:
        return Gpu(**{"name": name} | data)
    except TypeError as error:
        raise InputError(f"gpu {name}: {error}; it needs the fields of avsim/costs/gpus/h100.json") from None


def _names(folder: str) -> list[str]:
    found = resources.files("avsim.costs").joinpath(folder)
    return sorted(path.name.removesuffix(".json") for path in found.iterdir() if path.name.endswith(".json"))


def _document(folder: str, name: str, what: str) -> dict[str, Any]:
    known = _names(folder)
    try:
        if name in known:
            text = resources.files("avsim.costs").joinpath(folder, f"{name}.json").read_text(encoding="utf-8")
        elif Path(name).is_file():
            text = Path(name).read_text(encoding="utf-8")
        else:
            raise InputError(f"no {what} preset or file {name!r}{suggest(name, known)}")
        data = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{name}: a {what} must be a JSON object")
    return data
