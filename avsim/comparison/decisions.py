"""What an estimator is worth: throughput of `adaptive` reading it, and where its distance to the oracle lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avsim import policies, registry
from avsim.comparison.scoring import fit_walk
from avsim.comparison.walk import Table, full_walk
from avsim.costs import CostModel
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.metrics.intervals import ratio_interval
from avsim.metrics.savings import flatten_log, step_regrets_pct
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.study import max_total_logits
from avsim.types import F64Array, IntArray
from avsim.workload import Pool, request_sequences, requests_for, resample_units, split_units

__all__ = ["RUNGS", "Bench", "explain", "throughput_rows"]

MIN_SOURCES = 30
_WARM, _JUDGED = 1, 2
RUNGS = {
    "chance": "what no score can know: the verdict itself against its probability",
    "features": "what the recorded features do not tell, as far as boosting finds it: against the probability itself, "
    "or against the verdict where the trace holds no probabilities",
    "model": "this estimator against boosting on the recorded features",
    "censoring": "learning from verified slots only",
    "staleness": "sizing by the confidences of the block before",
    "belief": "deciding on other step costs than the true ones",
}


@dataclass(frozen=True)
class Bench:
    """A dense trace with its step costs, cut into a half to learn on and a half to judge on.

    Attributes:
        pool, table: the blocks.
        truth, belief: the clock, and what policies read (None for the clock).
        replicates: resamples of the judged half's source requests.
        warm_steps: steps served on the other half before, the same for every estimator.
        vocab: of the model, for the limit on logit rows; None if unknown.
        seed: of orders and resamples.
    """

    pool: Pool
    table: Table
    truth: CostModel
    belief: CostModel | None
    replicates: int
    warm_steps: int
    vocab: int | None
    seed: int
    halves: tuple[IntArray, IntArray] = field(init=False)

    def __post_init__(self) -> None:
        if self.replicates < 2:
            raise InputError(f"intervals need at least 2 replicates, not {self.replicates}")
        object.__setattr__(self, "halves", split_units(self.pool.unit, self.seed))

    @property
    def num_sources(self) -> int:
        """Distinct source requests in the judged half."""
        return len(np.unique(self.pool.unit[self.halves[1]]))

    def samples(self) -> list[IntArray]:
        """Return the judged half, and resamples of its source requests: the same for every arm and load."""
        rng = np.random.default_rng([self.seed, 0xDEC])
        judged = self.halves[1]
        return [judged, *(resample_units(judged, self.pool.unit, rng) for _ in range(self.replicates))]

    def serve(self, arm: Arm, load: int, *, belief: bool = False) -> SimulationResult:
        """Serve the judged half and its resamples, with an estimator that has learned on the other half."""
        samples = self.samples()
        seeds = [[self.seed, _JUDGED, load, run] for run in range(len(samples))]
        sequences = request_sequences(samples, 8 * load, seeds)
        states = None
        if arm.policy.uses_confidence and arm.estimator is not None:
            states = [self._learned(arm, arm.estimator, load, belief)] * len(samples)
        return self._simulate(arm, sequences, load, states=states, belief=belief, log=True)

    def _learned(self, arm: Arm, estimator: Estimator, load: int, belief: bool) -> EstimatorState:
        apart = self.halves[0]
        if estimator.offline:
            return fit_walk(estimator, self.table, full_walk(self.pool, apart, load))
        steps = self.warm_steps
        if steps == 0:
            return estimator.start(self.pool.num_slots)
        minimum = requests_for(self.pool, load, steps)
        sequence = request_sequences([apart], minimum, [[self.seed, _WARM, load]])
        return self._simulate(arm, sequence, load, belief=belief, max_steps=steps).states[0]

    def _simulate(
        self,
        arm: Arm,
        sequences: IntArray,
        load: int,
        *,
        states: list[EstimatorState] | None = None,
        belief: bool = False,
        max_steps: int | None = None,
        log: bool = False,
    ) -> SimulationResult:
        return simulate(
            self.pool,
            arm,
            sequences,
            load,
            self.truth,
            belief=self.belief if belief else None,
            states=states,
            max_total_logits=max_total_logits(self.vocab),
            max_steps=max_steps,
            log=log,
        )


def throughput_rows(bench: Bench, readers: Sequence[Estimator], load: int) -> Iterator[dict[str, Any]]:
    """Yield what `adaptive` reaches at one load with each estimator, the first being the reference, then the bounds.

    `budget_regret_pct` and `allocation_regret_pct` are in hindsight, step by step in the states that the arm
    reached: the loss of rate from the size of the budget, and from giving it to the wrong slots.
    """
    reference: F64Array | None = None
    for reader in readers:
        arm = Arm(policies.Adaptive(), reader)
        result = bench.serve(arm, load, belief=bench.belief is not None)
        rates = result.full.throughput_tok_s
        reference = rates if reference is None else reference
        assert result.log is not None
        budget, allocation = step_regrets_pct(flatten_log(result.log), bench.pool, bench.truth, load)
        yield {
            "load": load,
            "arm": f"adaptive + {registry.format_spec(reader)}",
            "estimator": registry.format_spec(reader),
            "attainable": not reader.uses_truth,
            "throughput_tok_s": float(rates[0]),
            **_ratio(rates, reference, bench.num_sources, same=rates is reference),
            "verified_share": float(result.full.admitted[0] / result.full.drafted[0]),
            "budget_regret_pct": budget,
            "allocation_regret_pct": allocation,
        }
    assert reference is not None
    depths = [policies.FixedDepth(k=k) for k in range(1, bench.pool.num_slots + 1)]
    for policy in (policies.make("none"), *depths, policies.make("oracle")):
        rates = bench.serve(Arm(policy), load).full.throughput_tok_s
        yield {
            "load": load,
            "arm": registry.format_spec(policy),
            "estimator": None,
            "attainable": not policy.uses_truth,
            "throughput_tok_s": float(rates[0]),
            **_ratio(rates, reference, bench.num_sources),
            "verified_share": None,
            "budget_regret_pct": None,
            "allocation_regret_pct": None,
        }


def explain(bench: Bench, reader: Estimator, ceiling: Estimator, load: int) -> list[dict[str, Any]]:
    """Split the distance between `adaptive` with an estimator and the oracle into what a user could mend.

    From the oracle down, each rung adds one handicap; its share is the fall of throughput, %, of the rung above. A
    rung may be negative: over a whole run nothing orders them. With sampled drafts the rungs at lag 0 are lossy, so
    they lean on what a server may not use, and staleness comes out too large.

    Args:
        ceiling: an offline estimator that stands for what the features could tell.
    """
    adaptive = policies.Adaptive()
    arms: list[tuple[str, Arm, bool]] = []
    if "alpha" in bench.pool.features:
        arms.append(("chance", Arm(adaptive, _make("oracle-alpha"), 0, uncensored=True), False))
    arms += [
        ("features", Arm(adaptive, ceiling, 0, uncensored=True), False),
        ("model", Arm(adaptive, reader, 0, uncensored=True), False),
        ("censoring", Arm(adaptive, reader, 0), False),
        ("staleness", Arm(adaptive, reader, 1), False),
    ]
    if bench.belief is not None:
        arms.append(("belief", Arm(adaptive, reader, 1), True))
    above = bench.serve(Arm(policies.make("oracle")), load).full.throughput_tok_s
    top = above
    lines = []
    for name, arm, belief in arms:
        rates = bench.serve(arm, load, belief=belief).full.throughput_tok_s
        lines.append({"load": load, "rung": name, "what": RUNGS[name]} | _ratio(rates, above, bench.num_sources))
        above = rates
    whole = {"load": load, "rung": "in all", "what": "adaptive with this estimator against the oracle"}
    plain = bench.serve(Arm(policies.make("none")), load).full.throughput_tok_s
    drafting = {"load": load, "rung": "against none", "what": "adaptive with this estimator against plain decoding"}
    return [
        *lines,
        whole | _ratio(above, top, bench.num_sources),
        drafting | _ratio(above, plain, bench.num_sources),
    ]


def _make(spec: str) -> Estimator:
    from avsim import estimators

    return estimators.make(spec)


def _ratio(rates: F64Array, reference: F64Array, sources: int, same: bool = False) -> dict[str, Any]:
    """Return the change in % with its interval; run 0 is the sample itself, the others are replicates."""
    keys = ("change_pct", "change_low_pct", "change_high_pct")
    if same:
        return dict.fromkeys(keys) | {"standing": "reference"}
    if not np.isfinite(rates).all() or not np.isfinite(reference).all():
        return dict.fromkeys(keys) | {"standing": "never at full concurrency"}
    found = ratio_interval(float(rates[0] / reference[0]), rates[1:] / reference[1:])
    change = {key: (value - 1) * 100 for key, value in zip(keys, (found.ratio, found.low, found.high), strict=True)}
    standing = "faster" if found.low > 1 else "slower" if found.high < 1 else "not distinguishable"
    return change | {"standing": standing if sources >= MIN_SOURCES else "not enough requests"}
