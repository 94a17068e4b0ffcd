"""One arm at one load: the requests, their resamples, the warm-up, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import polars as pl

from avsim import estimators, policies, registry
from avsim.config import ReplayConfig
from avsim.costs import CostModel, load
from avsim.errors import InputError
from avsim.estimators.base import EstimatorState
from avsim.loads import Load, loads_of
from avsim.metrics import savings
from avsim.metrics.serving import Measures, latency_details, measure
from avsim.simulate import Arm, RequestTimes, SimulationResult, StepLog, Totals, simulate
from avsim.sources.base import Trace
from avsim.types import IntArray
from avsim.workload import Pool, request_sequences, requests_for, resample_units, split_units

__all__ = [
    "ArmAtLoad", "Halves", "NamedArm", "Study", "build_arms", "make_study", "max_total_logits", "pick_totals",
]  # fmt: skip

_WARM, _WHOLE, _CALIBRATION, _JUDGED, _ARRIVE = 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class NamedArm:
    """An arm under the name that tables show, and whether it is to be judged or only compared with."""

    name: str
    arm: Arm
    judged: bool

    @property
    def fixed(self) -> bool:
        return isinstance(self.arm.policy, policies.FixedDepth)

    @property
    def reads_tables(self) -> bool:
        """Whether its decisions may depend on step costs."""
        return not isinstance(self.arm.policy, policies.FixedDepth | policies.NoDrafting | policies.Threshold)


@dataclass(frozen=True, slots=True)
class Halves:
    """What one arm came to at one load: on all requests, on the judged half, and on the half that chooses."""

    whole: Measures
    judged: Measures
    calibration: Measures | None

    @property
    def parts(self) -> list[Measures]:
        """Whichever there are."""
        return [part for part in (self.whole, self.judged, self.calibration) if part is not None]


@dataclass(frozen=True, slots=True)
class ArmAtLoad:
    """One arm at one load: its runs, and run 0 in detail."""

    name: str
    load: str
    halves: Halves
    details: dict[str, Any]
    steps: pl.DataFrame
    reliability: pl.DataFrame | None


@dataclass(frozen=True)
class Study:
    """A study on loaded inputs."""

    pool: Pool
    truth: CostModel
    belief: CostModel | None
    config: ReplayConfig
    logits: int
    halves: tuple[IntArray, IntArray] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "halves", split_units(self.pool.unit, self.config.seed))

    def samples(self, part: int) -> list[IntArray]:
        """Return the request sample of each run: the part of the pool itself, then B resamples of its units."""
        requests = {_CALIBRATION: self.halves[0], _JUDGED: self.halves[1]}.get(part, np.arange(len(self.pool.start)))
        # Warm-up and whole runs must resample alike, so the draw depends on the set of requests, not on the part.
        rng = np.random.default_rng([self.config.seed, 0xB007, len(requests), int(requests[0])])
        return [requests] + [resample_units(requests, self.pool.unit, rng) for _ in range(self.config.bootstrap)]

    def run(self, named: NamedArm, load: Load) -> ArmAtLoad:
        """Simulate one arm at one load: whole pool, judged half, and for fixed depths the calibration half."""
        arm = named.arm
        samples, states = self.samples(_WHOLE), self._warm(arm, _WHOLE, load)
        if arm.estimator is not None and arm.policy.uses_confidence:
            # One more run beside run 0, on the same requests, from a cold start.
            cold = arm.estimator.start(self.pool.num_slots)
            samples, states = [*samples, samples[0]], [*(states or [cold] * len(samples)), cold]
        runs = [*range(self.config.bootstrap + 1), 0][: len(samples)]
        result = self._simulate(arm, samples, _WHOLE, load, runs=runs, states=states, log=True)
        measures = self._measure(result, load)
        halves = self._halves(named, load, measures.pick(np.arange(self.config.bootstrap + 1)))
        details, steps, reliability = self._details(named, load, result, measures)
        return ArmAtLoad(named.name, load.name, halves, details, steps, reliability)

    def vary(self, named: NamedArm, load: Load) -> Halves:
        """Simulate as `run` does, without details."""
        states = self._warm(named.arm, _WHOLE, load)
        result = self._simulate(named.arm, self.samples(_WHOLE), _WHOLE, load, states=states)
        return self._halves(named, load, self._measure(result, load))

    def first_run(self, named: NamedArm, load: Load) -> tuple[RequestTimes, StepLog]:
        """Return the requests' times and the steps of run 0 of `run`."""
        sample = self.samples(_WHOLE)[:1]
        states = self._warm(named.arm, _WHOLE, load, runs=1)
        result = self._simulate(named.arm, sample, _WHOLE, load, states=states, log=True)
        assert result.log is not None
        return self._seen(result, load), result.log

    def _halves(self, named: NamedArm, load: Load, whole: Measures) -> Halves:
        warm = self._warm(named.arm, _CALIBRATION, load)
        judged = self._simulate(named.arm, self.samples(_JUDGED), _JUDGED, load, states=warm)
        calibration = None
        if named.fixed:
            result = self._simulate(named.arm, self.samples(_CALIBRATION), _CALIBRATION, load)
            calibration = self._measure(result, load)
        return Halves(whole, self._measure(judged, load), calibration)

    def _measure(self, result: SimulationResult, load: Load) -> Measures:
        return measure(_windowed(result), self._seen(result, load))

    @staticmethod
    def _seen(result: SimulationResult, load: Load) -> RequestTimes:
        """Return the times as clients see them, who wait where there are more of them than seats."""
        return result.times.behind(load.clients) if load.clients is not None and load.waits else result.times

    def _simulate(
        self,
        arm: Arm,
        samples: list[IntArray],
        part: int,
        load: Load,
        *,
        runs: Sequence[int] | None = None,
        states: list[EstimatorState] | None = None,
        log: bool = False,
    ) -> SimulationResult:
        runs = runs or range(len(samples))
        seeds = [[self.config.seed, part, load.key, run] for run in runs]
        sequences = request_sequences(samples, load.num_requests, seeds)
        sequences = load.in_order(sequences, runs, whole=part == _WHOLE)
        arrive = [[self.config.seed, _ARRIVE, part, run] for run in runs]
        return self._serve(arm, sequences, load, arrive, states=states, log=log)

    def _warm(self, arm: Arm, part: int, load: Load, runs: int | None = None) -> list[EstimatorState] | None:
        """Let the estimator serve the part's requests, in another order, until it has refitted `warm_refits` times."""
        if not arm.policy.uses_confidence or arm.estimator is None or self.config.warm_refits == 0:
            return None
        steps = self.config.warm_refits * arm.estimator.refit_interval
        busy = load.seats if load.process is None else min(load.seats, 4 * load.busy)
        minimum = requests_for(self.pool, busy, steps)
        samples = self.samples(part)[:runs]
        seeds = [[self.config.seed, _WARM, part, load.key, run] for run in range(len(samples))]
        arrive = [[self.config.seed, _ARRIVE, _WARM, part, run] for run in range(len(samples))]
        sequences = request_sequences(samples, minimum, seeds)
        return self._serve(arm, sequences, load, arrive, max_steps=steps).states

    def _serve(
        self,
        arm: Arm,
        sequences: IntArray,
        load: Load,
        arrive: list[list[int]],
        *,
        states: list[EstimatorState] | None = None,
        max_steps: int | None = None,
        log: bool = False,
    ) -> SimulationResult:
        return simulate(
            self.pool,
            arm,
            sequences,
            load.seats,
            self.truth,
            arrivals=load.arrivals_ms(sequences.shape[1], arrive),
            belief=self.belief,
            states=states,
            max_total_logits=self.logits,
            prompts=self.config.prompt_mode,
            token_budget=self.config.token_budget,
            chunked=self.config.chunked_prefill,
            max_steps=max_steps,
            places=2 * load.busy + 8,
            log=log,
        )

    def _details(
        self, named: NamedArm, load: Load, result: SimulationResult, measures: Measures
    ) -> tuple[dict[str, Any], pl.DataFrame, pl.DataFrame | None]:
        arm, log = named.arm, result.log
        assert log is not None
        num_slots = arm.policy.depth(self.pool.num_slots)
        path = savings.flatten_log(log)
        full, run = measures.totals, 0
        cold = full.throughput_tok_s[-1] if arm.policy.uses_confidence else None
        details: dict[str, Any] = {
            "policy": named.name,
            "spec": registry.format_spec(arm.policy),
            "estimator": registry.format_spec(arm.estimator) if arm.policy.uses_confidence else None,
            "judged": named.judged,
            "unattainable": arm.policy.uses_truth or bool(arm.policy.uses_confidence and _bound(arm)),
            "throughput_tok_s": float(full.throughput_tok_s[run]),
            "throughput_whole_run_tok_s": float(result.whole.throughput_tok_s[run]),
            "throughput_cold_start_tok_s": float(cold) if cold is not None else None,
            "tpot_ms": savings.tpot_ms(log),
            "acceptance_length": 1 + float(full.accepted[run] / full.blocks[run]),
            "emitted_tokens_per_request_step": float((full.emitted - full.first_tokens)[run] / full.blocks[run]),
            "acceptance": savings.acceptance(full, self.pool, path, num_slots),
            "drafted_slots": int(full.drafted[run]),
            "verified_slots": int(full.admitted[run]),
            "wasted_slots": int(full.admitted[run] - full.accepted[run]),
            "verified_share": float(full.admitted[run] / full.drafted[run]) if full.drafted[run] else None,
            "steps_at_full_concurrency": int(full.steps[run]),
            "step_ms": float(measures.work.busy_ms[run] / full.steps[run]),
            "step_regret_pct": None,
            "confidence": None,
        }
        replicates = measures.pick(np.arange(self.config.bootstrap + 1))
        details |= latency_details(
            self._seen(result, load), log, replicates, float(result.clock_ms[run]), waits=load.waits,
            scheduled=self.config.prompt_mode == "scheduled",
        )  # fmt: skip
        reliability = None
        plain = load.process is None and self.config.token_budget is None and not arm.policy.plans
        if plain and arm.policy.drafts and num_slots == self.pool.num_slots:
            regret = savings.step_regret_pct(path, self.pool, self.truth, load.seats, num_slots)
            details["step_regret_pct"] = regret
        if arm.policy.uses_confidence:
            calibration = savings.score_confidences(log, self.pool, path, num_slots)
            state = result.states[0]
            details["confidence"] = calibration.summary() | {"refits": state.refits, "state": state.to_json()["params"]}
            reliability = _reliability_frame(calibration, named.name, load)
        return details, savings.steps_frame(log, path, self.pool, named.name, load.name, load.clients), reliability


def _windowed(result: SimulationResult) -> SimulationResult:
    """Count the whole run where some run was never at full load: all requests were seated as they came."""
    if (result.full.steps > 0).all():
        return result
    return replace(result, full=result.whole, work=result.whole_work)


def _bound(arm: Arm) -> bool:
    return arm.estimator is not None and arm.estimator.uses_truth


def _reliability_frame(calibration: Any, policy: str, load: Load) -> pl.DataFrame:
    parts = []
    for slot in [None, *range(calibration.num_slots)]:
        lines = calibration.reliability(slot)
        for line in lines:
            parts.append({"policy": policy, "load": load.name, "concurrency": load.clients, "slot": slot} | line)
    schema = {
        "policy": pl.String, "load": pl.String, "concurrency": pl.Int32, "slot": pl.Int32,
        "confidence": pl.Float64, "acceptance": pl.Float64, "count": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(parts, schema=schema)


def build_arms(config: ReplayConfig, num_slots: int) -> list[NamedArm]:
    """Return the arms of a config, baselines first, each named once.

    Raises:
        InputError: an unknown spec, a depth beyond K, or an arm named twice.
    """
    baselines: list[str] = []
    for spec in config.baselines:
        baselines += [f"fixed:{k}" for k in range(1, num_slots + 1)] if spec == "fixed" else [spec]
    readers = [estimators.make_online(spec) for spec in config.estimators]
    arms: dict[str, NamedArm] = {}
    for spec, judged in [(s, False) for s in baselines] + [(s, True) for s in config.policies]:
        policy = policies.make(spec)
        policy.depth(num_slots)
        name = registry.format_spec(policy)
        if not policy.uses_confidence:
            arms[name] = NamedArm(name, Arm(policy), judged or (name in arms and arms[name].judged))
            continue
        if not readers:
            raise InputError(f"policy {name} needs an estimator: pass --estimator")
        for estimator in readers:
            full = name if len(readers) == 1 else f"{name} + {registry.format_spec(estimator)}"
            arm = Arm(
                policy, estimator, config.lag, overhead_ms=config.av_overhead_ms or 0.0,
                overhead_us_per_req=config.av_overhead_us_per_req or 0.0,
            )  # fmt: skip
            arms[full] = NamedArm(full, arm, judged)
    return list(arms.values())


def max_total_logits(vocab: int | None) -> int:
    """Return how many logit rows vLLM's rejection sampler takes at once: max(1, 2³⁰ // (4 · vocab)).

    >>> max_total_logits(129280), max_total_logits(262144)
    (2076, 1024)
    """
    return policies.NO_LOGIT_LIMIT if vocab is None else max(1, 2**30 // (4 * vocab))


def make_study(trace: Trace, config: ReplayConfig, arms: Sequence[NamedArm]) -> tuple[Study, list[Load]]:
    """Load what a config names.

    Raises:
        InputError: a trace that is not dense or lacks a feature, or a load that it cannot serve.
    """
    wanted = sorted({name for item in arms if item.arm.estimator for name in item.arm.estimator.features})
    pool = Pool.from_trace(trace, wanted, num_slots=config.num_slots)
    truth, belief = load(config.cost), load(config.belief) if config.belief else None
    vocab = config.vocab or truth.card.vocab_size or trace.card.vocab_size
    study = Study(pool, truth, belief, config, max_total_logits(vocab))
    column = trace.requests["arrival_s"] if "arrival_s" in trace.requests.columns else None
    arrival_s = None if column is None or column.null_count() else column.to_numpy()
    return study, loads_of(config, pool, truth, arrival_s)


def pick_totals(totals: Sequence[Totals], choice: IntArray) -> Totals:
    """Return, for every run, the totals of the arm chosen for it; `choice` is `[runs]`."""
    stacked = {item.name: np.stack([getattr(total, item.name) for total in totals]) for item in fields(Totals)}
    return Totals(**{name: column[choice, np.arange(len(choice))] for name, column in stacked.items()})
