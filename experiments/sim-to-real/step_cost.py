"""The driver's step costs: measured with `avsim.costs.profile`, kept as a cost model with the terms that a CPU needs.

    verify = base(T + B) + per row and cached token · (T + B) · KV / R
    draft  = chain(depth, R) + per row · (T + B − R)

avsim's own `curve` differs in two ways. Its KV term counts the cached tokens of each *request*, which is right where
attention is bound by reading them; here it is bound by arithmetic, so every *row* pays for the context that it reads.
And its draft parts charge the first pass in a skipped step, which a drafter without a cache does not run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from driver.runner import DriverRunner, Step

from avsim.costs.base import CostCard, CostModel, StepShape, common_terms
from avsim.costs.profile import CpuTimer, ProfilePlan
from avsim.costs.profile.measure import Measured, measure
from avsim.types import F64Array

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class DriverCost(CostModel):
    """See above.

    Attributes:
        verify: (tokens, ms) at an empty cache.
        per_row_token_ns: per row of the target's step and token of its context.
        draft: (requests, ms) for each depth 0 … K, the first pass over one row per request.
        first_per_row_us: per further row of the first pass.
    """

    name: ClassVar[str] = "sim-to-real-driver"

    verify: Points
    per_row_token_ns: float
    draft: tuple[Points, ...]
    first_per_row_us: float

    @property
    def uses_kv(self) -> bool:
        return True

    @property
    def draft_depends_on_depth(self) -> bool:
        return True

    @property
    def skip_is_known(self) -> bool:
        return True

    def verify_ms(self, shape: StepShape) -> F64Array:
        context = shape.kv_tokens / np.maximum(shape.num_reqs, 1)
        base = _between(self.verify, shape.num_tokens)
        return np.asarray(base + shape.num_tokens * context * (self.per_row_token_ns * 1e-6))

    def draft_ms(self, shape: StepShape) -> F64Array:
        most = len(self.draft) - 1
        depth = np.full(len(shape.num_reqs), most) if shape.draft_depth is None else shape.draft_depth
        chains = np.stack([_between(points, shape.num_reqs) for points in self.draft])
        more = np.maximum(shape.num_tokens - shape.num_reqs, 0) * (self.first_per_row_us * 1e-3)
        return np.asarray(chains[np.minimum(depth, most), np.arange(len(depth))] + more)

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        return f"{num_tokens} tokens: extrapolated" if num_tokens > self.verify[-1][0] else None

    def to_json(self) -> dict[str, Any]:
        return self.common_json() | {
            "verify": self.verify, "per_row_token_ns": self.per_row_token_ns, "draft": self.draft,
            "first_per_row_us": self.first_per_row_us,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any], card: CostCard) -> DriverCost:
        def points(value: Any) -> Points:
            return tuple((int(size), float(ms)) for size, ms in value)

        return cls(
            verify=points(data["verify"]),
            per_row_token_ns=float(data["per_row_token_ns"]),
            draft=tuple(points(one) for one in data["draft"]),
            first_per_row_us=float(data["first_per_row_us"]),
            card=card,
            **common_terms(data),
        )


def _between(points: Points, sizes: np.ndarray) -> F64Array:
    """Interpolate, and go on with the last slope."""
    x, y = np.asarray(points, dtype=np.float64).T
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return np.asarray(np.interp(sizes, x, y) + np.maximum(sizes - x[-1], 0) * slope)


class ColdTimer(CpuTimer):
    """Runs a small target step, untimed, before each timing: a draft pass never finds its weights in the cache."""

    def __init__(self, between: Step, clock: Callable[[], float]):
        super().__init__(clock)
        self.between = between

    def ms(self, step: Step) -> float:
        self.between()
        return super().ms(step)

    def describe(self) -> dict[str, str]:
        return {"timer": "wall clock around each call, after a target step of one token"}


def measure_verify(
    runner: DriverRunner, sizes: tuple[int, ...], contexts: tuple[int, ...], repeats: int, minutes: float,
    clock: Callable[[], float], progress: Callable[[int, int, str], None],
) -> Measured:  # fmt: skip
    """Time the target's steps, up to K + 1 tokens a request."""
    plan = ProfilePlan(
        tokens=sizes,
        contexts=contexts,
        num_slots=runner.num_slots,
        spreads=("block",),
        repeats=repeats,
        minutes=minutes,
    )
    return measure(runner, plan, CpuTimer(clock), time.monotonic, progress)


def measure_draft(
    runner: DriverRunner, reqs: tuple[int, ...], context: int, repeats: int, timer: ColdTimer
) -> dict[tuple[int, int, int], list[float]]:
    """Time first passes (depth 0) and chains: (depth, requests, rows of the first pass) → ms, in random order."""
    steps: dict[tuple[int, int, int], Step] = {}
    for num_reqs, rows_each in product(reqs, (1, 3, runner.num_slots + 1)):
        steps[0, num_reqs, rows_each * num_reqs] = runner.first_pass(num_reqs, rows_each, context)
    for num_reqs, depth in product(reqs, range(1, runner.num_slots + 1)):
        steps[depth, num_reqs, num_reqs] = runner.draft(num_reqs, depth, context)
    keys, rng = list(steps), np.random.default_rng(0)
    found: dict[tuple[int, int, int], list[float]] = {key: [] for key in keys}
    for repeat in range(-1, repeats):
        for index in rng.permutation(len(keys)).tolist():
            ms = timer.ms(steps[keys[index]])
            if repeat >= 0:  # the first round warms up
                found[keys[index]].append(ms)
    return found


def fit(
    verify: Measured, draft: dict[tuple[int, int, int], list[float]], runner: DriverRunner, card: CostCard
) -> tuple[DriverCost, dict[str, float]]:
    """Fit both halves to medians; the second result says how far off, in %, at the worst and the middle cell."""
    cells = [(cell.num_tokens, cell.context) for cell in verify.cells]
    medians = np.median(verify.ms, axis=1)
    sizes = sorted({size for size, _ in cells})
    # One base per size, and one slope for all, on relative errors.
    design = np.array([[*(size == one for one in sizes), size * context] for size, context in cells], dtype=np.float64)
    solution = np.linalg.lstsq(design / medians[:, None], np.ones(len(cells)), rcond=None)[0]
    slope = max(float(solution[-1]), 0.0)
    base = [float(np.mean([m - slope * n * c for m, (n, c) in zip(medians, cells, strict=True) if n == size]))
            for size in sizes]  # fmt: skip
    points = tuple(zip(sizes, np.maximum.accumulate(np.maximum(base, 1e-6)).tolist(), strict=True))
    middle = {key: float(np.median(ms)) for key, ms in draft.items()}
    per_row = 0.0
    counts = sorted({reqs for _, reqs, _ in middle})
    if runner.drafter.reads_all_rows:
        first = [(rows - reqs, ms - middle[0, reqs, reqs]) for (depth, reqs, rows), ms in middle.items() if depth == 0]
        more, extra = np.array(first).T
        per_row = max(float((more @ extra) / (more @ more)), 0.0)
    chains = [[(reqs, middle[0, reqs, reqs] if runner.drafter.reads_all_rows else 0.0) for reqs in counts]]
    chains += [[(reqs, middle[depth, reqs, reqs]) for reqs in counts] for depth in range(1, runner.num_slots + 1)]
    table = np.maximum.accumulate(np.array([[ms for _, ms in chain] for chain in chains]), axis=1)
    table = np.maximum.accumulate(table, axis=0)
    cost = DriverCost(
        verify=points,
        per_row_token_ns=slope * 1e6,
        draft=tuple(tuple(zip(counts, line.tolist(), strict=True)) for line in table),
        first_per_row_us=per_row * 1e3,
        card=card,
    )
    made = np.array([dict(points)[n] + slope * n * c for n, c in cells])
    off = np.abs(made / medians - 1) * 100
    spread = np.quantile(verify.ms, (0.25, 0.75), axis=1)
    return cost, {
        "verify_misfit_median_pct": float(np.median(off)),
        "verify_misfit_worst_pct": float(off.max()),
        "verify_iqr_median_pct": float(np.median((spread[1] - spread[0]) / medians) * 100),
        "rounds": float(verify.num_rounds),
    }
