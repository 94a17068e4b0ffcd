"""What an experiment found: checks against published numbers, and the script's entry point that writes them down."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from avsim.errors import AvsimError, InputError
from avsim.experiments.spec import Experiment, read_experiment
from avsim.manifest import json_text, read_text, write_file

__all__ = ["Check", "Result", "main", "read_result"]

Rule = Literal["within", "relative", "at least", "at most", "reported"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One number beside what it should be.

    error = got − expected (`relative`: got / expected − 1; against a range: how far outside it, 0 inside).

    Attributes:
        name: what the number is.
        got: what was found.
        expected: what was published, a number or a range (low, high); None only where there is nothing to hold it to.
        rule: `within` and `relative` pass where |error| ≤ tolerance, `at least` where error ≥ −tolerance, `at most`
            where error ≤ tolerance; `reported` is shown beside the published number and never passes or fails.
        tolerance: what is allowed, in the unit of `error`.
        unit: of got and expected.
        low, high: interval of `got`, where it has one; the experiment says of what.
        source: where `expected` comes from.

    Raises:
        InputError: an unknown rule, a number that is not finite, or nothing to compare with.

    >>> Check(name="V[1024]", got=20.634, expected=20.634, unit="ms").passed
    True
    >>> Check(name="speedup", got=1.2936, expected=1.2937, rule="relative", tolerance=1e-3).passed
    True
    >>> Check(name="slope", got=0.9, expected=(0.44, 0.83), rule="reported").passed is None
    True
    """

    name: str
    got: float
    expected: float | tuple[float, float] | None = None
    rule: Rule = "within"
    tolerance: float = 0.0
    unit: str = ""
    low: float | None = None
    high: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("got", "tolerance", "low", "high"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))
        if self.expected is not None:
            low, high = self.expected if isinstance(self.expected, tuple) else (self.expected, self.expected)
            plain = (float(low), float(high)) if isinstance(self.expected, tuple) else float(low)
            object.__setattr__(self, "expected", plain)
        if self.rule not in get_args(Rule):
            raise InputError(f"check {self.name}: rule is {self.rule!r}; it must be one of {', '.join(get_args(Rule))}")
        if self.expected is None and self.rule != "reported":
            raise InputError(f"check {self.name}: rule {self.rule!r} needs an expected value")
        ends = [self.got, self.tolerance, *(x for x in (self.low, self.high, *self._range) if x is not None)]
        if not all(math.isfinite(x) for x in ends):
            raise InputError(f"check {self.name}: every number must be finite, not {ends}")
        if self.tolerance < 0 or (self.rule == "reported" and self.tolerance):
            raise InputError(f"check {self.name}: tolerance must be ≥ 0, and 0 where it is only reported")
        if (self.low is None) != (self.high is None):
            raise InputError(f"check {self.name}: an interval needs both ends")
        if self.rule == "relative" and (isinstance(self.expected, tuple) or not self.expected):
            raise InputError(f"check {self.name}: a relative error needs one expected number other than 0")

    @property
    def _range(self) -> tuple[float, ...]:
        if self.expected is None:
            return ()
        return self.expected if isinstance(self.expected, tuple) else (self.expected, self.expected)

    @property
    def error(self) -> float | None:
        """How far `got` is off; None where nothing is expected."""
        if not self._range:
            return None
        low, high = self._range
        if self.rule == "relative":
            return self.got / low - 1
        return self.got - low if self.got < low else max(0.0, self.got - high)

    @property
    def passed(self) -> bool | None:
        """Whether the rule holds; None where the number is only reported."""
        if self.rule == "reported" or self.error is None:
            return None
        if self.rule == "at least":
            return self.got >= self._range[0] - self.tolerance
        if self.rule == "at most":
            return self.got <= self._range[-1] + self.tolerance
        return abs(self.error) <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict, with `error` and `passed` worked out."""
        expected = list(self.expected) if isinstance(self.expected, tuple) else self.expected
        return asdict(self) | {"expected": expected, "error": self.error, "passed": self.passed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Check:
        """Rebuild a check; `error` and `passed` are worked out anew, not believed."""
        values = {key: value for key, value in data.items() if key not in ("error", "passed")}
        if isinstance(values.get("expected"), list):
            low, high = values["expected"]
            values["expected"] = (float(low), float(high))
        return cls(**values)


@dataclass(frozen=True)
class Result:
    """What a run found: its checks, one sentence for the table, and the hash of every input."""

    checks: tuple[Check, ...]
    finding: str = ""
    inputs: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {"finding": self.finding, "inputs": self.inputs, "checks": [check.to_json() for check in self.checks]}


def read_result(path: Path) -> Result:
    """Read a result.json.

    Raises:
        InputError: it is missing or malformed.
    """
    try:
        data = json.loads(read_text(path))
        checks = tuple(Check.from_json(check) for check in data["checks"])
        return Result(checks, str(data["finding"]), dict(data["inputs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not the result of an experiment: {error}") from None


def main(run: Callable[[Experiment, Path], Result]) -> None:
    """Be an experiment's run.py: `python run.py OUT` runs it, writing result.json beside what `run` writes into OUT.

    Exit codes: 0 ran (whatever the checks say), 2 bad input. Checks are judged by `avsim experiment run`.
    """
    try:
        if len(sys.argv) != 2:
            raise InputError(f"usage: python {sys.argv[0]} OUT (or `avsim experiment run` on its folder)")
        experiment, out = read_experiment(Path(sys.argv[0]).absolute().parent), Path(sys.argv[1])
        if missing := experiment.missing():
            raise InputError(missing)
        inputs = experiment.inputs()
        result = run(experiment, out)
        write_file(out / "result.json", json_text(Result(result.checks, result.finding, inputs).to_json()))
    except AvsimError as error:
        print(f"avsim: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
