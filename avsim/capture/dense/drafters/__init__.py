"""Drafters of the dense tracer, by kind: `draft-model:DIR`, `eagle:DIR`, `ngram:min=1,max=3`, …

To add one: a module with `load(argument, target) -> DenseDrafter`, and one line in `MODULES`.
"""

from __future__ import annotations

import importlib
from typing import Any

from avsim.capture.dense.model import Model
from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["MODULES", "load_drafter", "split_spec"]

MODULES = {
    "draft-model": "draft_model",
    "eagle": "eagle",
    "mtp": "mtp",
    "dflash": "dflash",
    "dspark": "dspark",
    "ngram": "ngram",
}


def split_spec(spec: str) -> tuple[str, str]:
    """Split `KIND:ARGUMENT` and check the kind.

    Raises:
        InputError: the kind is unknown.
    """
    kind, _, argument = spec.partition(":")
    if kind not in MODULES:
        raise InputError(f"unknown drafter {kind!r}{suggest(kind, MODULES)}")
    return kind, argument


def load_drafter(spec: str, target: Model) -> Any:
    """Load a drafter for a target: a `DenseDrafter`, or a `Lookup` if it has no logits.

    Raises:
        InputError: an unknown kind, or a checkpoint that is missing, broken or made for another target.
    """
    kind, argument = split_spec(spec)
    return importlib.import_module(f"{__name__}.{MODULES[kind]}").load(argument, target)
