"""What the four contract tests share."""

from __future__ import annotations

import copy

import pytest


def parametrised(cases, checks):
    """Pair every case with every check that it does not opt out of."""
    return [
        pytest.param(subject, check, id=f"{subject.name}{number}-{check.__name__.removeprefix('check_')}")
        for number, (subject, opt_outs) in enumerate(cases)
        for check in checks
        if check.__name__ not in opt_outs
    ]


def failures(checks, subject, opt_outs):
    """Return the names of the checks that raise AssertionError."""
    failed = set()
    for check in checks:
        if check.__name__ in opt_outs:
            continue
        try:
            check(copy.deepcopy(subject))  # so that what one check leaves behind does not reach the next
        except AssertionError:
            failed.add(check.__name__)
    return failed


def unneeded(checks, subject, opt_outs):
    """Return opt-outs from checks that pass, or that do not exist, or that give no reason."""
    failed = failures([check for check in checks if check.__name__ in opt_outs], subject, {})
    return [name for name, reason in opt_outs.items() if name not in failed or not reason.strip()]
