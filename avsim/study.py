"""The replay command's job: every arm at every load, with intervals and verdicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import polars as pl

from avsim import estimators, policies, registry
from avsim.config import ReplayConfig
from avsim.costs import CostModel, load
from avsim.errors import InputError
from avsim.estimators.base import EstimatorState
from avsim.metrics import savings
from avsim.metrics.verdict import Verdict, judge, with_overhead
from avsim.simulate import Arm, SimulationResult, Totals, simulate
from avsim.sources.base import Trace
from avsim.types import IntArray
from avsim.workload import Pool, request_sequences, requests_for, resample_units, split_units

__all__ = ["ArmAtLoad", "NamedArm", "Study", "build_arms", "max_total_logits", "pick_totals", "run_closed"]

_WARM, _WHOLE, _CALIBRATION, _JUDGED = 1, 2, 3, 4
_Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class NamedArm:
    """An arm under the name that tables show, and whether it is to be judged or only compared with."""

    name: str
    arm: Arm
    judged: bool

    @property
    def fixed(self) -> bool:
        return isinstance(self.arm.policy, policies.FixedDepth)


@dataclass(frozen=True, slots=True)
class ArmAtLoad:
    """All runs of one arm at one load; run 0 of each total is the sample itself, the others are replicates."""

    name: str
    concurrency: int
    whole: Totals
    calibration: Totals | None
    judged: Totals
    details: dict[str, Any]
    steps: pl.DataFrame
    reliability: pl.DataFrame | None


@dataclass(frozen=True)
class Study:
    """A closed-loop study on loaded inputs."""

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

    def run(self, named: NamedArm, concurrency: int) -> ArmAtLoad:
        """Simulate one arm at one load: whole pool, judged half, and for fixed depths the calibration half."""
        arm = named.arm
        samples, states = self.samples(_WHOLE), self._warm(arm, _WHOLE, concurrency)
        if arm.estimator is not None and arm.policy.uses_confidence:
            # One more run beside run 0, on the same requests, from a cold start.
            cold = arm.estimator.start(self.pool.num_slots)
            samples, states = [*samples, samples[0]], [*(states or [cold] * len(samples)), cold]
        runs = [*range(self.config.bootstrap + 1), 0][: len(samples)]
        result = self._simulate(arm, samples, _WHOLE, concurrency, runs=runs, states=states, log=True)
        kept = np.arange(self.config.bootstrap + 1)
        halves = {part: self.samples(part) for part in (_JUDGED, _CALIBRATION)}
        warm = self._warm(arm, _CALIBRATION, concurrency)
        judged = self._simulate(arm, halves[_JUDGED], _JUDGED, concurrency, states=warm).full
        calibration = None
        if named.fixed:
            calibration = self._simulate(arm, halves[_CALIBRATION], _CALIBRATION, concurrency).full
        details, steps, reliability = self._details(named, concurrency, result)
        return ArmAtLoad(
            named.name, concurrency, result.full.pick(kept), calibration, judged, details, steps, reliability
        )

    def _simulate(
        self,
        arm: Arm,
        samples: list[IntArray],
        part: int,
        concurrency: int,
        *,
        runs: Sequence[int] | None = None,
        states: list[EstimatorState] | None = None,
        log: bool = False,
    ) -> SimulationResult:
        seeds = [[self.config.seed, part, concurrency, run] for run in runs or range(len(samples))]
        return self._serve(arm, request_sequences(samples, 8 * concurrency, seeds), concurrency, states=states, log=log)

    def _warm(self, arm: Arm, part: int, concurrency: int) -> list[EstimatorState] | None:
        """Let the estimator serve the part's requests, in another order, until it has refitted `warm_refits` times."""
        if not arm.policy.uses_confidence or arm.estimator is None or self.config.warm_refits == 0:
            return None
        steps = self.config.warm_refits * arm.estimator.refit_interval
        minimum = requests_for(self.pool, concurrency, steps)
        samples = self.samples(part)
        seeds = [[self.config.seed, _WARM, part, concurrency, run] for run in range(len(samples))]
        sequences = request_sequences(samples, minimum, seeds)
        return self._serve(arm, sequences, concurrency, max_steps=steps).states

    def _serve(
        self,
        arm: Arm,
        sequences: IntArray,
        concurrency: int,
        *,
        states: list[EstimatorState] | None = None,
        max_steps: int | None = None,
        log: bool = False,
    ) -> SimulationResult:
        return simulate(
            self.pool,
            arm,
            sequences,
            concurrency,
            self.truth,
            belief=self.belief,
            states=states,
            max_total_logits=self.logits,
            max_steps=max_steps,
            log=log,
        )

    def _details(
        self,
        named: NamedArm,
        concurrency: int,
        result: SimulationResult,
    ) -> tuple[dict[str, Any], pl.DataFrame, pl.DataFrame | None]:
        arm, log = named.arm, result.log
        assert log is not None
        num_slots = arm.policy.depth(self.pool.num_slots)
        path = savings.flatten_log(log)
        full, run = result.full, 0
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
            "emitted_tokens_per_request_step": float(full.emitted[run] / full.blocks[run]),
            "acceptance": savings.acceptance(full, self.pool, path, num_slots),
            "drafted_slots": int(full.drafted[run]),
            "verified_slots": int(full.admitted[run]),
            "wasted_slots": int(full.admitted[run] - full.accepted[run]),
            "verified_share": float(full.admitted[run] / full.drafted[run]) if full.drafted[run] else None,
            "steps_at_full_concurrency": int(full.steps[run]),
            "step_ms": float(full.ms[run] / full.steps[run]),
            "step_regret_pct": None,
            "confidence": None,
        }
        reliability = None
        if arm.policy.drafts and num_slots == self.pool.num_slots:
            regret = savings.step_regret_pct(path, self.pool, self.truth, concurrency, num_slots)
            details["step_regret_pct"] = regret
        if arm.policy.uses_confidence:
            calibration = savings.score_confidences(log, self.pool, path, num_slots)
            state = result.states[0]
            details["confidence"] = calibration.summary() | {"refits": state.refits, "state": state.to_json()["params"]}
            reliability = _reliability_frame(calibration, named.name, concurrency)
        return details, savings.steps_frame(path, self.pool, named.name, concurrency), reliability


def _bound(arm: Arm) -> bool:
    return arm.estimator is not None and arm.estimator.uses_truth


def _reliability_frame(calibration: Any, policy: str, concurrency: int) -> pl.DataFrame:
    parts = []
    for slot in [None, *range(calibration.num_slots)]:
        lines = calibration.reliability(slot)
        for line in lines:
            parts.append({"policy": policy, "concurrency": concurrency, "slot": slot} | line)
    schema = {
        "policy": pl.String, "concurrency": pl.Int32, "slot": pl.Int32,
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
            arms[full] = NamedArm(full, Arm(policy, estimator, config.lag), judged)
    return list(arms.values())


def max_total_logits(vocab: int | None) -> int:
    """Return how many logit rows vLLM's rejection sampler takes at once: max(1, 2³⁰ // (4 · vocab)).

    >>> max_total_logits(129280), max_total_logits(262144)
    (2076, 1024)
    """
    return policies.NO_LOGIT_LIMIT if vocab is None else max(1, 2**30 // (4 * vocab))


def run_closed(
    trace: Trace, config: ReplayConfig, arms: list[NamedArm], *, progress: _Progress, workers: int | None = None
) -> dict[int, dict[str, ArmAtLoad]]:
    """Simulate every arm at every load, over worker processes; the result does not depend on their number."""
    wanted = sorted({name for item in arms if item.arm.estimator for name in item.arm.estimator.features})
    pool = Pool.from_trace(trace, wanted, num_slots=config.num_slots)
    truth, belief = load(config.cost), load(config.belief) if config.belief else None
    vocab = config.vocab or truth.card.vocab_size or trace.card.vocab_size
    study = Study(pool, truth, belief, config, max_total_logits(vocab))
    jobs = [(item, load) for load in config.concurrency for item in arms]
    # The heaviest first, so that no worker is left alone with one at the end.
    jobs.sort(key=lambda job: (not job[0].arm.policy.uses_confidence, -job[1]))
    found: dict[int, dict[str, ArmAtLoad]] = {load: {} for load in config.concurrency}
    for done, result in enumerate(_results(study, jobs, workers or min(len(jobs), os.cpu_count() or 1)), 1):
        found[result.concurrency][result.name] = result
        progress(done, len(jobs), f"{result.name} at {result.concurrency}")
    return found


def _results(study: Study, jobs: list[tuple[NamedArm, int]], workers: int) -> Iterable[ArmAtLoad]:
    if workers == 1:
        for named, concurrency in jobs:
            yield study.run(named, concurrency)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_set_study, initargs=(study,)) as executor:
        futures = [executor.submit(_run_job, *job) for job in jobs]
        for future in futures:
            yield future.result()


_study: Study | None = None


def _set_study(study: Study) -> None:
    global _study
    _study = study


def _run_job(named: NamedArm, concurrency: int) -> ArmAtLoad:
    assert _study is not None
    return _study.run(named, concurrency)


def verdicts_at_load(
    arms: list[NamedArm], results: dict[str, ArmAtLoad], num_sources: tuple[int, int], overhead_ms: float | None
) -> list[Verdict]:
    """Judge each judged arm against `none`, and against the best fixed depth.

    The best depth is chosen on the calibration half and compared on the judged half, again in every replicate.

    Args:
        num_sources: distinct source requests in the whole pool and in the judged half.
    """
    found = []
    fixed = [results[item.name] for item in arms if item.fixed]
    for item in arms:
        if not item.judged or item.name == "none":
            continue
        charged = overhead_ms if item.arm.policy.uses_confidence else 0.0
        mine = results[item.name]
        if "none" in results:
            base = results["none"].whole
            found.append(judge(item.name, "none", mine.whole, base, num_sources[0], charged))
        if fixed:
            best = np.array([r.calibration.throughput_tok_s for r in fixed if r.calibration is not None]).argmax(axis=0)
            chosen = pick_totals([r.judged for r in fixed], best)
            against = f"best fixed ({fixed[best[0]].name})"
            verdict = judge(item.name, against, mine.judged, chosen, num_sources[1], charged)
            ceiling = max(float(result.whole.throughput_tok_s[0]) for result in fixed)
            hindsight = float(with_overhead(mine.whole, charged or 0.0)[0]) / ceiling
            found.append(replace(verdict, hindsight_ratio=hindsight))
    return found


def pick_totals(totals: list[Totals], choice: IntArray) -> Totals:
    """Return, for every run, the totals of the arm chosen for it; `choice` is `[runs]`."""
    stacked = {item.name: np.stack([getattr(total, item.name) for total in totals]) for item in fields(Totals)}
    return Totals(**{name: column[choice, np.arange(len(choice))] for name, column in stacked.items()})
