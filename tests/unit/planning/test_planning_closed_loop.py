"""The planner's steady steps against the simulator's closed loop, on requests drawn from the same spread.

The planner knows throughputs, per-position acceptance, the step cost and how confidences are spread. The closed loop
knows none of these as numbers: it serves 800 requests block by block, with their own confidences and verdicts, and the
last block of a request loses what lies past its end, which steady steps do not know (about 1 % of throughput here, in
every arm).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from laws import CARD, LawCost, law_of
from scipy.special import logit

from avsim import estimators, policies
from avsim.planning.expected import expected_step
from avsim.planning.infer import Priors, fit_points
from avsim.planning.population import Latents, Population, Spread
from avsim.planning.predict import Overhead, predict_adaptive
from avsim.planning.throughput_table import Point
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.workload import Pool, request_sequences

K, REQUESTS, LENGTH = 5, 800, 150
STEPS = 4000
CONDITIONAL = np.array([0.72, 0.66, 0.7, 0.68, 0.72])
SPREAD = Spread(1.5, 0.15)
LAW = law_of(fixed=8.0, per_token=0.03, draft_fixed=1.2, draft_per_req=0.012, draft_per_slot=0.004)


@dataclass
class Loop:
    """A pool of requests, and its closed loop under a policy."""

    pool: Pool

    def run(self, policy: str, load: int) -> SimulationResult:
        sequences = request_sequences([np.arange(REQUESTS)], REQUESTS, [[1]])
        arm = Arm(policies.make(policy), estimators.make("raw-confidence"))
        return simulate(self.pool, arm, sequences, load, LawCost(LAW, card=CARD), max_steps=STEPS, log=True)

    def throughput(self, policy: str, load: int) -> float:
        return float(self.run(policy, load).full.throughput_tok_s[0])


@pytest.fixture(scope="module")
def loop() -> Loop:
    """Requests whose blocks follow the population's law: u stays with the request, the rest is drawn for each block."""
    rng = np.random.default_rng(11)
    fresh = Latents.draw(K, LENGTH, REQUESTS, 12)
    latents = replace(fresh, request=np.broadcast_to(rng.standard_normal((1, 1, REQUESTS)), (1, LENGTH, REQUESTS)))
    blocks = Population.make(CONDITIONAL, SPREAD, latents)
    verdict = rng.random(blocks.acceptance.shape) < blocks.acceptance
    accepted = np.logical_and.accumulate(verdict, axis=0).sum(axis=0)
    by_request = [x.transpose(*range(x.ndim - 2), -1, -2).reshape(*x.shape[:-2], -1) for x in (accepted, blocks.live)]
    rows, confidence = by_request[0], by_request[1]
    whole, fit = np.full(len(rows), K), np.zeros(len(rows), dtype=bool)
    pool = Pool(
        K, np.arange(REQUESTS) * LENGTH, np.full(REQUESTS, 10), np.full(REQUESTS, LENGTH + 1), np.arange(REQUESTS),
        rows, whole, whole, {"log_odds": logit(confidence.astype(np.float64)).astype(np.float32)}, fit,
    )  # fmt: skip
    return Loop(pool)


def counted(result: SimulationResult, pool: Pool) -> np.ndarray:
    """Return conditional acceptance per position from an engine's counters, at full admission."""
    assert result.log is not None
    taken = np.concatenate([
        np.minimum(pool.num_accepted[rows], admitted)[active]
        for rows, admitted, active in zip(result.log.rows, result.log.admitted, result.log.active, strict=True)
    ])  # fmt: skip
    marginal = (taken[:, None] > np.arange(K)).mean(axis=0)
    return np.asarray(marginal / np.concatenate(([1.0], marginal[:-1])))


@pytest.mark.parametrize("load", [4, 32, 96])
def test_steady_steps_give_the_closed_loops_ratio(loop: Loop, load: int) -> None:
    """From the counters of the fixed arm, adaptive over fixed within 1 %, both arms within 1.5 %."""
    fixed, adaptive = (loop.run(policy, load) for policy in (f"fixed:{K}", "adaptive"))
    blocks = Population.make(counted(fixed, loop.pool), SPREAD, Latents.draw(K, 4096 // load, load, 3))
    rate = {}
    for policy in (f"fixed:{K}", "adaptive"):
        step = expected_step(policies.make(policy), blocks, LAW.tables(load, K))
        ms = LAW.verify_ms(load, load + step.admitted) + LAW.draft_ms(load, K)
        rate[policy] = (load * len(step.admitted) + step.accepted.sum()) / ms.sum() * 1e3
    found = [float(result.full.throughput_tok_s[0]) for result in (fixed, adaptive)]
    ratio = found[1] / found[0]
    assert rate[f"fixed:{K}"] == pytest.approx(found[0], rel=0.015)
    assert rate["adaptive"] == pytest.approx(found[1], rel=0.015)
    assert rate["adaptive"] / rate[f"fixed:{K}"] == pytest.approx(ratio, rel=0.01)


def test_a_fit_to_the_closed_loops_fixed_arms_predicts_its_adaptive_arm(loop: Loop) -> None:
    """Nothing but throughputs of plain and fixed arms and the spread: adaptive / best arm within 3 % at three loads."""
    loads, arms = (4, 32, 96), [("none", 0), ("fixed", 1), ("fixed", 3), ("fixed", K)]
    points = [
        Point("", policy, d, load, load, loop.throughput(f"{policy}:{d}" if d else policy, load))
        for load in loads
        for policy, d in arms
    ]
    priors = Priors.load()
    known = {"log_sd": np.log(SPREAD.sd), "logit_request_share": logit(SPREAD.request_share), "log_slope": 0.0,
             "offset": 0.0}  # fmt: skip
    priors = replace(priors, confidence={name: (float(value), 0.01) for name, value in known.items()})
    posterior = fit_points(points, priors, limit=None, seed=0, sweeps=200)
    assert np.abs(posterior.errors_pct()).max() < 2.0
    gains = []
    for item in predict_adaptive(posterior, depth=K, overhead=Overhead(), draws=40):
        best = max(point.throughput_tok_s for point in points if point.concurrency == item.concurrency)
        simulated = loop.throughput("adaptive", item.concurrency) / best
        assert item.ratio == pytest.approx(simulated, rel=0.03), item
        assert item.low <= simulated <= item.high, item
        gains.append(simulated)
    assert max(gains) > 1.03, "without a gain to predict this shows nothing"
