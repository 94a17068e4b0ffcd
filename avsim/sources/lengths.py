"""How long prompts and outputs are: distributions by name with options, `lognormal:mean=200,sigma=0.8,max=1024`.

To add one: a frozen dataclass here, and its name in `BUILTIN`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim import registry
from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["BUILTIN", "LONGEST", "Fixed", "Geometric", "Lengths", "LogNormal", "Uniform", "make"]

LONGEST = 1 << 20
"""Tokens up to which a length can be drawn: far above what is served, and a request of it still fits in memory."""


@dataclass(frozen=True)
class Lengths(ABC):
    """Base of every distribution of lengths, in tokens; subclasses are frozen dataclasses of options."""

    name: ClassVar[str]
    positional: ClassVar[str | None] = None

    def draw(self, num: int, least: int, rng: np.random.Generator) -> IntArray:
        """Return lengths, rounded to whole tokens, int64 `[num]`.

        Args:
            num: how many.
            least: tokens below which no length can be.
            rng: the source of chance; one number is taken for each length, in order.

        Raises:
            InputError: the options allow lengths below `least`, or a length comes out above `LONGEST`.
        """
        tokens = np.maximum(np.rint(self._quantiles(rng.random(num), least)), least)
        if tokens.max(initial=0) > LONGEST:
            raise InputError(
                f"{registry.format_spec(self)} draws a length of {tokens.max():.3g} tokens, and the most is {LONGEST}; "
                "give max"
            )
        return tokens.astype(np.int64)

    @abstractmethod
    def _quantiles(self, chance: F64Array, least: int) -> F64Array:
        """Return the lengths below which these shares of all lengths are; `chance` is in [0, 1)."""


@dataclass(frozen=True)
class Fixed(Lengths):
    """Every length is the same number of tokens.

    >>> Fixed(128).draw(3, 2, np.random.default_rng(0)).tolist()
    [128, 128, 128]
    """

    name: ClassVar[str] = "fixed"
    positional: ClassVar[str | None] = "tokens"

    tokens: int

    def __post_init__(self) -> None:
        _check_most(self, "tokens", self.tokens)

    def _quantiles(self, chance: F64Array, least: int) -> F64Array:
        _check_least(self, "tokens", self.tokens, least)
        return np.full(len(chance), float(self.tokens))


@dataclass(frozen=True)
class Uniform(Lengths):
    """Every whole number of tokens from `low` to `high` is equally likely.

    >>> sorted(set(Uniform(low=2, high=4).draw(99, 2, np.random.default_rng(0)).tolist()))
    [2, 3, 4]
    """

    name: ClassVar[str] = "uniform"

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_most(self, "high", self.high)
        if self.low > self.high:
            raise InputError(f"{self.name}: low must be at most high, not {self.low} and {self.high}")

    def _quantiles(self, chance: F64Array, least: int) -> F64Array:
        _check_least(self, "low", self.low, least)
        return np.minimum(np.floor(self.low + chance * (self.high - self.low + 1)), self.high)


@dataclass(frozen=True)
class LogNormal(Lengths):
    """The logarithm of the length is normal with spread `sigma`: ln L ~ N(ln mean − sigma²/2, sigma²).

    `mean` is that of the law before it is rounded and cut. Lengths above `max` are cut to it, as an engine does that
    stops at max_tokens (None for no limit), and shorter ones than can be are made as short as can be.
    """

    name: ClassVar[str] = "lognormal"

    mean: float
    sigma: float
    max: int | None = None

    def __post_init__(self) -> None:
        _check_law(self)
        if not 0 <= self.sigma <= 10:
            raise InputError(f"{self.name}: sigma is the spread of ln tokens, from 0 to 10, not {self.sigma}")

    def _quantiles(self, chance: F64Array, least: int) -> F64Array:
        from scipy.special import ndtri  # slow to import, and only needed here

        normal = ndtri(np.clip(chance, 2.0**-53, 1 - 2.0**-53))
        return _cut(self, self.mean * np.exp(self.sigma * normal - self.sigma**2 / 2), least)


@dataclass(frozen=True)
class Geometric(Lengths):
    """After the shortest length, every further token is the last with the same probability: 1 / (mean − shortest + 1).

    `mean` is that of the law before it is cut. Lengths above `max` are cut to it; none for no limit.
    """

    name: ClassVar[str] = "geometric"

    mean: float
    max: int | None = None

    def __post_init__(self) -> None:
        _check_law(self)

    def _quantiles(self, chance: F64Array, least: int) -> F64Array:
        if self.mean < least:
            raise InputError(f"{self.name}: mean must be at least {least} tokens here, not {self.mean:g}")
        more = self.mean - least
        if more == 0:
            return np.full(len(chance), float(least))
        further = np.floor(np.log1p(-chance) / -np.log1p(1 / more))
        return _cut(self, least + further, least)


BUILTIN: dict[str, type[Lengths]] = {cls.name: cls for cls in (Fixed, Uniform, LogNormal, Geometric)}


def make(spec: str) -> Lengths:
    """Build a distribution from its spec; a number alone is a fixed length.

    >>> make("128"), make("geometric:mean=50")
    (Fixed(tokens=128), Geometric(mean=50.0, max=None))

    Raises:
        InputError: as `avsim.registry.from_spec` does.
    """
    bare = spec.strip()
    made: Lengths = registry.from_spec(f"fixed:{bare}" if bare.isdecimal() else spec, "lengths", BUILTIN)
    return made


def _cut(law: LogNormal | Geometric, lengths: F64Array, least: int) -> F64Array:
    if law.max is None:
        return lengths
    _check_least(law, "max", law.max, least)
    return np.minimum(lengths, law.max)


def _check_law(law: LogNormal | Geometric) -> None:
    if not 0 < law.mean <= LONGEST:
        raise InputError(f"{law.name}: mean is in tokens, above 0 and at most {LONGEST}, not {law.mean}")
    if law.max is not None:
        _check_most(law, "max", law.max)


def _check_most(law: Lengths, what: str, value: int) -> None:
    if value > LONGEST:
        raise InputError(f"{law.name}: {what} must be at most {LONGEST} tokens, not {value}")


def _check_least(law: Lengths, what: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{law.name}: {what} must be at least {least} here, not {value}")
