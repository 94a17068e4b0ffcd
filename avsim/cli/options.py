"""Parsing and progress that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from avsim.errors import InputError

__all__ = ["numbers", "progress_bar", "words"]


def words(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of specs; a comma inside a spec's options belongs to the spec.

    >>> words("none,online-logistic:l2=1e-2,damping=10,fixed:3")
    ('none', 'online-logistic:l2=1e-2,damping=10', 'fixed:3')
    """
    items: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if "=" in part and ":" not in part and items:
            items[-1] += f",{part}"
        elif part:
            items.append(part)
    return tuple(items)


def numbers(text: str, what: str) -> tuple[int, ...]:
    """Split a comma-separated list of whole numbers.

    Raises:
        InputError: something is not a whole number.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"{what} must be whole numbers separated by commas, not {text!r}") from None


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show progress on stderr while a terminal watches; yields a function of (done, total, what)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total, what: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn(), TextColumn("{task.fields[what]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=what)
