"""Finding estimators, policies, cost models and sources by name, with options: `online-logistic:l2=1e-3`.

A spec is `name`, `name:value` (for the option that the class names in `positional`) or
`name:option=value,option=value`; an option that is yes or no may stand alone. Names come from avsim itself and from
the entry-point groups `avsim.estimators`, `avsim.policies`, `avsim.costs`, `avsim.sources` and `avsim.arrivals` of
installed packages.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from avsim.errors import InputError

__all__ = ["format_spec", "from_spec", "installed", "suggest"]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the closest known name, or the list of all.

    >>> suggest("online-logstic", ["online-logistic", "position-rate"])
    "; did you mean 'online-logistic'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def installed(kind: str, builtin: Mapping[str, type]) -> dict[str, type]:
    """Return every class of a kind ("estimators", "policies", …): avsim's own, then installed packages'.

    Raises:
        InputError: a package's entry point cannot be loaded or takes a name that is already used.
    """
    found = dict(builtin)
    for entry in metadata.entry_points(group=f"avsim.{kind}"):
        if entry.name in found:
            raise InputError(f"entry point {entry.value!r} registers {kind} {entry.name!r}, which already exists")
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise InputError(f"cannot load {kind} {entry.name!r} from entry point {entry.value!r}: {error}") from error
    return found


def from_spec(spec: str, kind: str, classes: Mapping[str, type]) -> Any:
    """Build an instance of a registered dataclass from its spec.

    Raises:
        InputError: unknown name or option, a value of the wrong type, or one that the class rejects.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in classes:
        raise InputError(f"unknown {_singular(kind)} {name!r}{suggest(name, classes)}")
    cls = classes[name]
    hints = typing.get_type_hints(cls)
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals and hints.get(key.replace("-", "_")) is bool:
            equals, value = "=", "true"
        if not equals:
            positional = getattr(cls, "positional", None)
            if positional is None:
                raise InputError(f"{name}: cannot read {item!r}; write option=value ({_options(cls)})")
            key, value = positional, item
        key = key.replace("-", "_")
        if key in options:
            raise InputError(f"{name}: option {key} is given twice: {options[key]!r} and {value!r}")
        options[key] = value
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key, value in options.items():
        if key not in fields:
            raise InputError(f"{name}: no option {key!r}{suggest(key, fields)}" if fields else f"{name} has no options")
        options[key] = _parse(value, hints[key], f"{name}: option {key}")
    missing = [
        field.name
        for field in fields.values()
        if field.name not in options
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InputError(f"{name} needs {', '.join(missing)}: write {name}:{missing[0]}=…")
    return cls(**options)


def format_spec(instance: Any) -> str:
    """Return the shortest spec that rebuilds an instance."""
    parts = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value == field.default:
            continue
        text = str(value).lower() if isinstance(value, bool) else f"{value}"
        positional = field.name == getattr(instance, "positional", None)
        parts.append(text if positional else f"{field.name}={text}")
    return ":".join([instance.name, ",".join(parts)]) if parts else str(instance.name)


def _singular(kind: str) -> str:
    names = {"policies": "policy", "costs": "cost model", "arrivals": "arrival process"}
    return names.get(kind, kind.removesuffix("s"))


def _options(cls: type) -> str:
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    return f"options: {', '.join(names)}" if names else "it has no options"


def _parse(text: str, hint: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        if text.lower() in {"none", ""} and type(None) in hint.__args__:
            return None
        hint = next(arg for arg in hint.__args__ if arg is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        allowed = typing.get_args(hint)
        if text not in allowed:
            raise InputError(f"{where} is {text!r}{suggest(text, allowed)}")
        return text
    try:
        if hint is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return hint(text)
    except (ValueError, KeyError):
        raise InputError(f"{where} must be a {getattr(hint, '__name__', hint)}, not {text!r}") from None
