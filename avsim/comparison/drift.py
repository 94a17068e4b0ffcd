"""Traffic that changes, at once or slowly, or is mixed, and what that costs an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from avsim import registry
from avsim.comparison.scoring import block_losses, predict_walk
from avsim.comparison.walk import Table, Walk, chain_lengths, full_walk
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.metrics.confidence_set import paired_change, unit_draws
from avsim.sources import open_trace
from avsim.sources.base import Trace
from avsim.types import BoolArray, F64Array, IntArray
from avsim.workload import Pool, split_units

__all__ = ["SCENARIOS", "TOLERANCE", "WINDOW_STEPS", "Scene", "drift", "follower", "make_scene"]

SCENARIOS = {
    "switch": "all requests change at once",
    "slow": "the share of the new requests rises from none to all",
    "mixed": "half of the requests are new ones throughout, and the estimator has learned on such a mixture",
}
WINDOW_STEPS = 50
TOLERANCE = 0.01
"""An estimator has recovered when its log-loss stays within this share of that of its twin."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Two kinds of requests in one pool.

    Attributes:
        pool, table: the blocks of both.
        new: whether a request is of the second kind, bool `[requests]`.
        names: of the two kinds.
    """

    pool: Pool
    table: Table
    new: BoolArray
    names: tuple[str, str]

    @property
    def new_rows(self) -> BoolArray:
        """Whether a block belongs to a request of the second kind, bool `[rows]`."""
        ends = np.append(self.pool.start, len(self.pool.num_accepted))
        return np.repeat(self.new, np.diff(ends))


def follower(trace: Trace, then: str, num_slots: int | None = None) -> Trace | str:
    """Return the trace that traffic changes to, or the name of the category, without reading any block.

    Raises:
        InputError: no such category or trace, or the other trace is not dense or of fewer slots.
    """
    kind, equals, name = then.partition("=")
    if equals and kind == "category":
        known = sorted(trace.requests["category"].fill_null("(none)").unique())
        if name not in known or len(known) < 2:
            raise InputError(f"{trace.path}: no category {name!r} to change to; it has {', '.join(known)}")
        return name
    other = open_trace(then)
    if other.card.kind != "dense":
        raise InputError(f"{other.path}: an on-policy trace cannot be served anew; traffic changes to dense ones only")
    slots = num_slots or trace.card.num_speculative_tokens
    if other.card.num_speculative_tokens < slots:
        raise InputError(
            f"{other.path}: K = {other.card.num_speculative_tokens}, but {trace.path} has {slots}; pass --k"
        )
    return other


def make_scene(trace: Trace, then: str, features: Sequence[str], num_slots: int | None = None) -> Scene:
    """Join a dense trace with another one (a path), or cut it by category (`category=NAME` becomes the new traffic).

    Raises:
        InputError: as `follower`, or a trace lacks a feature.
    """
    other = follower(trace, then, num_slots)
    pool = Pool.from_trace(trace, features, num_slots=num_slots)
    table = Table.of_pool(pool, trace)
    if isinstance(other, str):
        new = table.category[pool.start] == table.categories.index(other)
        others = ", ".join(name for name in table.categories if name != other)
        return Scene(pool, table, new, (others, other))
    second = Pool.from_trace(other, features, num_slots=pool.num_slots)
    both = _joined(pool, second)
    names = (trace.card.name, other.card.name)
    joined = Table(
        pool.num_slots, both.features, both.num_accepted, both.num_recorded, both.unfit,
        np.concatenate((table.unit, Table.of_pool(second, other).unit + pool.num_units)),
        np.repeat([0, 1], [len(pool.num_accepted), len(second.num_accepted)]), names,
    )  # fmt: skip
    return Scene(both, joined, np.repeat([False, True], [len(pool.start), len(second.start)]), names)


def _joined(first: Pool, second: Pool) -> Pool:
    moved = replace(second, start=second.start + len(first.num_accepted), unit=second.unit + first.num_units)
    values: dict[str, Any] = {}
    for item in fields(Pool):
        one, other = getattr(first, item.name), getattr(moved, item.name)
        if item.name == "features":
            values[item.name] = {name: np.concatenate((one[name], other[name]), axis=1) for name in one}
        else:
            values[item.name] = one if item.name == "num_slots" else np.concatenate((one, other))
    return Pool(**values)


def drift(
    estimator: Estimator, scene: Scene, scenario: str, *, steps: int, num_seats: int, bootstrap: int, seed: int
) -> dict[str, Any]:
    """Say what a change of traffic costs an estimator, against twins of it that each know one kind of requests.

    A twin has learned for `steps` steps on the kind that it scores, and meets the same blocks, without the others. The
    estimator has learned for as long on what came before. Excess is its log-loss over its twin's, on every reached
    slot of the blocks that are scored: of new requests after a `switch`, of all in `slow` and `mixed`. There a twin
    learns from its own kind only, so from fewer labels: below 0, sharing has helped more than it has cost.

    Requests repeat, since traces are short. So half of the source requests of each kind, and as many of either, is
    learned from beforehand, and the other half is judged: whoever had met the very blocks that are scored, or more
    requests than the other, would look better than it is.

    Returns:
        JSON-ready: log-loss of both, excess in % with its interval, `recovery_steps` (0 where the interval of the
        excess does not lie above 0; None where the excess has not come down for good within the run, and where nothing
        changes at once), and the excess over time.
    """
    rng = np.random.default_rng([seed, 0xD21F7])
    length = chain_lengths(scene.pool)
    (old, old_judged), (new, new_judged) = (_halves(scene, kind, length, seed) for kind in (False, True))
    old, new = (rng.permutation(requests)[: min(len(old), len(new))] for requests in (old, new))
    wanted = steps * num_seats
    if scenario == "switch":
        sequence = _sequence(new_judged, length, wanted, rng)
    else:
        sequence = _mixture(old_judged, new_judged, length, wanted, rng, rising=scenario == "slow")
    before = _mixture(old, new, length, wanted, rng) if scenario == "mixed" else _sequence(old, length, wanted, rng)
    prepared = full_walk(scene.pool, before, num_seats).until(steps)
    walk = full_walk(scene.pool, sequence, num_seats).until(steps)
    _, state = predict_walk(estimator, scene.table, prepared)
    loss, _ = _loss(estimator, scene, walk, state)
    twin = np.zeros(len(walk.rows))
    is_new = scene.new_rows[walk.rows]
    for kind, requests in ((False, old), (True, new)):
        if not (is_new == kind).any():
            continue
        alone = full_walk(scene.pool, _sequence(requests, length, wanted, rng), num_seats).until(steps)
        _, learned = predict_walk(estimator, scene.table, alone)
        mine = is_new == kind
        twin[mine], _ = _loss(estimator, scene, walk.restricted(mine), learned)
    return _excess(estimator, scene, scenario, walk, loss, twin, bootstrap, seed)


def _loss(estimator: Estimator, scene: Scene, walk: Walk, state: EstimatorState) -> tuple[F64Array, EstimatorState]:
    confidence, state = predict_walk(estimator, scene.table, walk, start=state)
    accepted, reached = scene.table.verdicts(walk.rows)
    return block_losses(confidence, accepted, reached), state


def _excess(
    estimator: Estimator,
    scene: Scene,
    scenario: str,
    walk: Walk,
    loss: F64Array,
    twin: F64Array,
    bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    table, step = scene.table, walk.step_of()
    unit = table.unit[walk.rows]
    units = np.unique(unit)
    mine, theirs = (np.bincount(unit, values, table.num_units)[units].astype(np.float64) for values in (loss, twin))
    change = paired_change(mine, theirs, unit_draws(len(units), bootstrap, seed))
    window = step // WINDOW_STEPS
    size = int(window.max()) + 1
    sums = [np.bincount(window, values, size) for values in (loss, twin)]
    share = (sums[0] - sums[1]) / np.maximum(sums[1], 1e-12)
    above = np.flatnonzero(share > TOLERANCE)
    recovered = 0 if not len(above) else (int(above[-1]) + 1) * WINDOW_STEPS
    shown = change.low_pct is not None and change.low_pct > 0
    recovered = recovered if shown else 0  # an excess that may be chance is nothing to recover from
    settled = scenario == "switch" and recovered < size * WINDOW_STEPS
    count = max(int(table.verdicts(walk.rows)[1].sum()), 1)
    return {
        "scenario": scenario,
        "estimator": registry.format_spec(estimator),
        "before": scene.names[0],
        "after": scene.names[1],
        "slots": count,
        "log_loss": float(loss.sum() / count),
        "twin_log_loss": float(twin.sum() / count),
        "excess_pct": change.change_pct,
        "excess_low_pct": change.low_pct,
        "excess_high_pct": change.high_pct,
        "excess_nats": float((loss - twin).sum()),
        "steps": int(step.max()) + 1,
        "recovery_steps": recovered if settled else None,
        "curve": [
            {"step": number * WINDOW_STEPS, "excess_pct": float(value * 100)} for number, value in enumerate(share)
        ],
    }


def _halves(scene: Scene, kind: bool, length: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Split the requests of a kind by source: to learn from beforehand, and to judge on."""
    requests = np.flatnonzero((scene.new == kind) & (length > 0))
    halves = split_units(scene.pool.unit[requests], seed)
    if not min(map(len, halves)):
        raise InputError(
            f"{scene.names[kind]}: one request is too little traffic; a change needs two or more of a kind"
        )
    return requests[halves[0]], requests[halves[1]]


def _sequence(requests: IntArray, length: IntArray, blocks: int, rng: np.random.Generator) -> IntArray:
    """Return whole permutations of some requests until they hold enough blocks."""
    rounds = -(-blocks // max(int(length[requests].sum()), 1)) + 1
    return np.concatenate([rng.permutation(requests) for _ in range(rounds)])


def _mixture(
    old: IntArray, new: IntArray, length: IntArray, blocks: int, rng: np.random.Generator, *, rising: bool = False
) -> IntArray:
    """Return requests drawn from both kinds: each with probability 1/2, or that of new ones rising from 0 to 1."""
    picked, held = [], 0
    streams = [iter(_sequence(requests, length, 2 * blocks, rng).tolist()) for requests in (old, new)]
    while held < 1.2 * blocks:
        share = min(held / blocks, 1.0) if rising else 0.5
        request = next(streams[int(rng.random() < share)])
        picked.append(request)
        held += int(length[request])
    return np.array(picked)
