"""The errors that avsim raises on purpose; the command line turns each into one line and an exit code."""

from __future__ import annotations

__all__ = ["AvsimError", "CheckFailed", "InputError"]


class AvsimError(Exception):
    """Base of every error that avsim raises on purpose."""

    exit_code = 3


class InputError(AvsimError, ValueError):
    """Bad input or usage: the message says what is wrong, where, and what to do."""

    exit_code = 2


class CheckFailed(AvsimError):
    """A check that the user asked for did not pass."""

    exit_code = 1
