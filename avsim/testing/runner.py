"""Running a tuple of checks over one subject, with opt-outs that carry a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["run_checks"]

T = TypeVar("T")


def run_checks(checks: Sequence[Callable[[T], None]], subject: T, opt_outs: Mapping[str, str] | None = None) -> None:
    """Run every check that is not opted out of, in order.

    Args:
        checks: functions that raise AssertionError when the subject breaks the contract.
        subject: what is checked.
        opt_outs: check name to the reason why it does not apply.

    Raises:
        AssertionError: the first broken check; its message starts with the check's name.
        InputError: an opt-out names no check or gives no reason.
    """
    opt_outs = opt_outs or {}
    names = {check.__name__ for check in checks}
    for name, reason in opt_outs.items():
        if name not in names:
            raise InputError(f"opt-out {name!r} names no check{suggest(name, names)}")
        if not reason.strip():
            raise InputError(f"opt-out {name!r} gives no reason")
    for check in checks:
        if check.__name__ in opt_outs:
            continue
        try:
            check(subject)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
