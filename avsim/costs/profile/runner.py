"""What a profile measures: something whose steps can be timed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from avsim.errors import InputError

__all__ = ["Runner", "Step", "load_runner", "require"]

Step = Callable[[], object]


@runtime_checkable
class Runner(Protocol):
    """Something whose steps can be timed.

    Attributes:
        name: model and engine, for the card.
        device: `cpu` or `cuda`.
    """

    name: str
    device: str

    def verify(self, queries: Sequence[int], context: int) -> Step:
        """Ready a target step: one request per entry, `queries[i]` new tokens on top of `context` cached tokens.

        LM head and sampling of every query token are included. The returned function runs the step once, leaves the
        cache as it was, and may be called many times.
        """
        ...

    def draft(self, num_reqs: int, depth: int, context: int) -> Step | None:
        """Ready the drafting of `depth` tokens for `num_reqs` requests; None without a drafter."""
        ...

    def describe(self) -> dict[str, str]:
        """Say what is measured, for the provenance card.

        The card takes `model`, `hardware`, `vocab_size` and `drafter_kind` (in the words of a trace's card) from here
        where the user does not give them; every other entry (`dtype`, `threads`, `weights`, `includes`, `excludes`,
        versions) is recorded under its name.
        """
        ...


def load_runner(spec: str, given: dict[str, str | None]) -> Runner:
    """Make a runner from `module:factory` or `file.py:factory`; the factory is called as `factory(**given)`.

    Raises:
        InputError: no such module or factory, the factory fails, or what it returns is no `Runner`.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"--runner is {spec!r}; it is module:factory or file.py:factory")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        factory = getattr(module, name)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"--runner {spec}: cannot be loaded ({_first_line(error)})") from error
    try:
        runner = factory(**given)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"--runner {spec}: the factory failed ({_first_line(error)}); it is called with the keyword arguments "
            f"{', '.join(given)}"
        ) from error
    if not isinstance(runner, Runner):
        raise InputError(
            f"--runner {spec}: it returned {type(runner).__name__}, which lacks one of name, device, verify, draft, "
            "describe (docs/cost-profile.md)"
        )
    return runner


def require(name: str) -> Any:
    """Import a package that avsim itself does not depend on.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"this profile needs {package} ({error}); pip install {package}") from None


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"--runner: no file {path}")
    name = f"avsim_runner_{path.stem.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look their module up
    spec.loader.exec_module(module)
    return module


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
