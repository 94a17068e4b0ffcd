"""Measured blocks, summed up, and ratios of throughputs with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import settings
from workshop import Workshop

DRAWS = 2000


@dataclass(frozen=True)
class Sums:
    """One arm in one block, over the steps at full concurrency."""

    steps: int
    reqs: int
    ms: float
    emitted: int
    accepted: int
    verified: int
    draft_ms: float
    decide_ms: float
    verify_ms: float
    expected: float | None
    slots: tuple[tuple[int, float, int], ...]
    turns: np.ndarray
    """Tokens and ms of each turn, `[T, 2]`."""

    @classmethod
    def of(cls, turns: list[list[dict[str, Any]]], concurrency: int) -> Sums:
        full = [[step for step in turn if step["num_reqs"] == concurrency] for turn in turns]
        steps = [step for turn in full for step in turn]

        def total(name: str) -> Any:
            return sum(step[name] for step in steps)

        expected = None if any(step["expected"] is None for step in steps) else total("expected")
        parts = (total(name) for name in ("draft_ms", "decide_ms", "verify_ms"))
        return cls(
            len(steps), total("num_reqs"), total("ms"), total("emitted"), total("accepted"), total("verified"), *parts,
            expected, tuple(tuple(slot) for step in steps for slot in step["slots"]),
            np.array([[sum(step[name] for step in turn) for name in ("emitted", "ms")] for turn in full]),
        )  # fmt: skip

    @property
    def rate(self) -> float:
        """Tokens per ms."""
        return self.emitted / self.ms


Blocks = dict[str, list[dict[str, Sums]]]


@dataclass(frozen=True)
class Ratio:
    """A ratio of throughputs with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        return "gain" if self.low > 1 else "loss" if self.high < 1 else "no difference"

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def measured_ratio(blocks: list[dict[str, Sums]], arm: str, base: str) -> Ratio:
    """Return the mean over blocks of arm / base; the interval resamples turns, the same ones of both arms."""
    rng, draws = np.random.default_rng(0), np.zeros(DRAWS)
    for block in blocks:
        own, other = block[arm].turns, block[base].turns
        picks = rng.integers(0, len(own), (DRAWS, len(own)))
        mine, theirs = own[picks].sum(axis=1), other[picks].sum(axis=1)
        draws += mine[:, 0] / mine[:, 1] / (theirs[:, 0] / theirs[:, 1]) / len(blocks)
    low, high = np.quantile(draws, (0.025, 0.975))
    mean = np.mean([block[arm].rate / block[base].rate for block in blocks])
    return Ratio(float(mean), float(low), float(high))


def predicted_ratio(told: dict[str, Any], arm: str, base: str, repeats: int) -> Ratio:
    """Return the mean over replicates of arm / base; the interval is that of the mean of so many blocks."""
    ratios = np.array(told[arm]["ratios"]) / np.array(told[base]["ratios"])
    spread = 1.96 * float(ratios.std(ddof=1)) / repeats**0.5
    mean = float(ratios.mean())
    return Ratio(mean, mean - spread, mean + spread)


def read_blocks(shop: Workshop) -> tuple[Blocks, dict[str, list[dict[str, Any]]]]:
    """Return the sums of each arm by cell and repeat, and the blocks' own facts."""
    sums: Blocks = {}
    facts: dict[str, list[dict[str, Any]]] = {}
    loads = {cell.name: cell.concurrency for cell in shop.setup.cells}
    for file in shop.blocks:
        block = settings.read_json(file)
        cell = block["cell"]
        found = {arm: Sums.of(turns, loads[cell]) for arm, turns in block.pop("arms").items()}
        sums.setdefault(cell, []).append(found)
        facts.setdefault(cell, []).append(block)
    return sums, facts
