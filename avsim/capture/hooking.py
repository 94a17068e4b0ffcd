"""What hooks need of a module of vLLM before they touch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

__all__ = ["lacking"]


def lacking(module: ModuleType, needed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the classes, and methods of the others, that a module lacks.

    >>> import collections
    >>> lacking(collections, {"Counter": ("update", "serve"), "Engine": ("run",)})
    ['Counter.serve', 'Engine']
    """
    missing: list[str] = []
    for name, methods in needed.items():
        owner = getattr(module, name, None)
        if owner is None:
            missing.append(name)
        else:
            missing += [f"{name}.{method}" for method in methods if not callable(getattr(owner, method, None))]
    return missing
