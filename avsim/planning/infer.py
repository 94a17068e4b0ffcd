"""From throughputs of plain and fixed-depth arms to a posterior of step cost and acceptance."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit

from avsim.errors import InputError
from avsim.planning.expected import expected_step
from avsim.planning.law import NUM_BUMPS, StepLaw
from avsim.planning.population import BLOCK_SHARE, Latents, Population, Spread, spread_for_auc
from avsim.planning.sampler import sample
from avsim.planning.throughput_table import Point
from avsim.policies import NO_LOGIT_LIMIT, Adaptive
from avsim.types import F64Array

__all__ = ["Fit", "Posterior", "Priors", "fit_points"]

_COST = (
    "log_fixed_ms", "log_saturating", "log_knee_tokens", "log_per_token_ms", "log_per_req_ms", "log_draft_fixed_ratio",
    "log_draft_req_ratio", "log_draft_slot_ratio", "log_prompt_ratio", "log_cliff_ratio",
)  # fmt: skip
_CONFIDENCE = ("log_sd", "logit_request_share", "log_slope", "offset")
_BUMPS = slice(len(_COST) + len(_CONFIDENCE), len(_COST) + len(_CONFIDENCE) + NUM_BUMPS)
_CELLS = 1024  # blocks behind one expectation


@dataclass(frozen=True, slots=True)
class Priors:
    """Mean and standard deviation of each quantity; `load` reads what is shipped."""

    cost: Mapping[str, tuple[float, float]]
    acceptance: Mapping[str, tuple[float, float]]
    confidence: Mapping[str, tuple[float, float]]
    noise: Mapping[str, float]

    @classmethod
    def load(cls) -> Priors:
        """Return the priors in `avsim/planning/priors.toml`."""
        text = resources.files("avsim.planning").joinpath("priors.toml").read_text(encoding="utf-8")
        data: dict[str, dict[str, Any]] = tomllib.loads(text)
        cost, acceptance, confidence = (
            {key: (float(value[0]), float(value[1])) for key, value in data[part].items()}
            for part in ("cost", "acceptance", "confidence")
        )
        return cls(cost, acceptance, confidence, data["noise"])

    def with_auc(self, auc: float, sd: float, acceptance: float = 0.7) -> Priors:
        """Return priors for confidences whose quality is known: the AUC of a slot accepted that often, and its sd."""
        middle = spread_for_auc(auc, acceptance)
        width = np.log(spread_for_auc(min(auc + sd, 0.99), acceptance) / middle)
        return replace(self, confidence=dict(self.confidence) | {"log_sd": (float(np.log(middle)), float(width))})


@dataclass(frozen=True)
class Fit:
    """What is fitted: points of one engine, the priors, and how a parameter vector is laid out.

    `limit` is the capture limit in tokens, None for no cliff; `max_total_logits` caps adaptive verification's budget.
    Layout: cost, confidence, bumps of the cost curve, then level, slope and K wiggles of each workload.
    """

    points: Sequence[Point]
    priors: Priors
    num_slots: int
    limit: int | None
    max_total_logits: int = NO_LOGIT_LIMIT
    workloads: tuple[str, ...] = ()
    mean: F64Array = field(init=False)
    sd: F64Array = field(init=False)

    def __post_init__(self) -> None:
        if not self.workloads:
            object.__setattr__(self, "workloads", tuple(dict.fromkeys(point.workload for point in self.points)))
        rows = [self.priors.cost[name] for name in _COST] + [self.priors.confidence[name] for name in _CONFIDENCE]
        rows += [self.priors.cost["bump"]] * NUM_BUMPS
        shape = self.priors.acceptance
        for _ in self.workloads:
            rows += [shape["level"], shape["slope"], *[shape["wiggle"]] * self.num_slots]
        object.__setattr__(self, "mean", np.array([row[0] for row in rows]))
        object.__setattr__(self, "sd", np.array([row[1] for row in rows]))

    def law(self, theta: F64Array) -> StepLaw:
        """Return the step law of parameter vectors `[n, P]`; its fields are `[n]`."""
        value = {name: np.exp(theta[:, i]) for i, name in enumerate(_COST)}
        fixed, per_token = value["log_fixed_ms"], value["log_per_token_ms"]
        return StepLaw(
            fixed=fixed,
            saturating=value["log_saturating"],
            knee=value["log_knee_tokens"],
            per_token=per_token,
            per_req=value["log_per_req_ms"],
            draft_fixed=fixed * value["log_draft_fixed_ratio"],
            draft_per_req=per_token * value["log_draft_req_ratio"],
            draft_per_slot=per_token * value["log_draft_slot_ratio"],
            prompt_per_output=per_token * value["log_prompt_ratio"],
            cliff=fixed * value["log_cliff_ratio"],
            bumps=theta[:, _BUMPS],
            limit=self.limit,
        )

    def conditional(self, theta: F64Array, workload: str) -> F64Array:
        """Return conditional acceptance, `[n, K]`."""
        start = _BUMPS.stop + self.workloads.index(workload) * (self.num_slots + 2)
        part = theta[:, start : start + self.num_slots + 2]
        return expit(part[:, :1] + part[:, 1:2] * np.arange(self.num_slots) + part[:, 2:])

    def spread(self, theta: F64Array) -> Spread:
        """Return the spread of one parameter vector `[P]`."""
        sd, share, slope, offset = theta[len(_COST) : len(_COST) + len(_CONFIDENCE)]
        request = float(expit(share))
        block = min(BLOCK_SHARE, 1 - request)
        return Spread(float(np.exp(sd)), request, block, float(np.exp(slope)), float(offset))

    def auc(self, theta: F64Array, workload: str) -> float:
        """Return the AUC of the confidences at slot 0 under one parameter vector `[P]`."""
        conditional = self.conditional(theta[None], workload)[0]
        return float(Population.make(conditional, self.spread(theta), _latents(self.num_slots, 64)).auc()[0])

    def predicted(self, theta: F64Array) -> tuple[F64Array, F64Array]:
        """Return the logarithms of throughput and acceptance length at every point, `[n, points]` each."""
        law = self.law(theta)
        lengths = {name: 1 + np.cumsum(np.cumprod(self.conditional(theta, name), axis=1), axis=1) for name in
                   self.workloads}  # fmt: skip
        rate, length = np.empty((2, len(theta), len(self.points)))
        for i, point in enumerate(self.points):
            if point.policy == "adaptive":
                cells = [self.adaptive(row, law.draw(j), point) for j, row in enumerate(theta)]
                rate[:, i], length[:, i] = np.array(cells).T
                continue
            al = lengths[point.workload][:, point.depth - 1] if point.depth else np.ones(len(theta))
            rate[:, i] = law.throughput_tok_s(point.num_reqs, al, point.depth)
            length[:, i] = al
        return np.log(rate), np.log(length)

    def adaptive(self, theta: F64Array, law: StepLaw, point: Point, overhead_ms: float = 0.0) -> tuple[float, float]:
        """Return throughput, tok/s, and acceptance length of adaptive verification at a point, in expectation.

        The budget is vLLM's rule on the true law, which is its belief here; `overhead_ms` comes on top of every step.
        """
        reqs = max(1, round(point.num_reqs))
        conditional = self.conditional(theta[None], point.workload)[0, : point.depth]
        latents = _latents(point.depth, reqs)
        population = Population.make(conditional, self.spread(theta), latents)
        tables = law.tables(reqs, point.depth)
        found = expected_step(Adaptive(), population, tables, max_total_logits=self.max_total_logits)
        emitted = reqs + found.accepted
        tokens = reqs + found.admitted
        step = law.verify_ms(reqs, tokens) + law.draft_ms(reqs, point.depth) + overhead_ms
        total = float((step + law.prompt_per_output * emitted).sum())
        # Steps of whole requests stand for the average load, which need not be whole.
        scale = point.num_reqs / reqs
        return float(emitted.sum()) / total * 1e3 * scale, float(emitted.sum()) / (reqs * len(emitted))

    def residuals(self, theta: F64Array) -> F64Array:
        """Return standardised residuals of points and priors, `[n, points + lengths + P]`."""
        rate, length = self.predicted(theta)
        seen = np.log([point.throughput_tok_s for point in self.points])
        noise = [np.hypot(self.priors.noise["throughput"], point.noise_pct / 100) for point in self.points]
        parts = [(rate - seen) / noise, (theta - self.mean) / self.sd]
        known = [i for i, point in enumerate(self.points) if point.acceptance_length is not None]
        if known:
            given = np.log([float(self.points[i].acceptance_length or 1) for i in known])
            parts.append((length[:, known] - given) / self.priors.noise["acceptance_length"])
        return np.concatenate(parts, axis=1)

    def log_density(self, theta: F64Array) -> F64Array:
        """Return the logarithm of the posterior density up to a constant, `[n]`."""
        return -0.5 * (self.residuals(theta) ** 2).sum(axis=1)


@dataclass(frozen=True)
class Posterior:
    """Draws `[n, P]` of a fit, the most probable parameters `[P]`, and how well they reproduce the points."""

    fit: Fit
    draws: F64Array
    best: F64Array
    accepted_moves: float

    def errors_pct(self) -> F64Array:
        """Return the error of the most probable parameters at each point, %."""
        rate, _ = self.fit.predicted(self.best[None])
        seen = np.log([point.throughput_tok_s for point in self.fit.points])
        return np.expm1(rate[0] - seen) * 100

    def ratio(self, adaptive: Point, against: Sequence[Point], overhead_ms: F64Array, draws: F64Array) -> F64Array:
        """Return adaptive's throughput over the best of some plain and fixed arms in each draw, `[n]`."""
        law = self.fit.law(draws)
        lengths = np.cumsum(np.cumprod(self.fit.conditional(draws, adaptive.workload), axis=1), axis=1) + 1
        rates = [
            law.throughput_tok_s(adaptive.num_reqs, lengths[:, point.depth - 1] if point.depth else 1.0, point.depth)
            for point in against
        ]
        best = np.max(rates, axis=0)
        mine = [self.fit.adaptive(row, law.draw(i), adaptive, float(overhead_ms[i]))[0] for i, row in enumerate(draws)]
        return np.array(mine) / best


def fit_points(
    points: Sequence[Point],
    priors: Priors,
    *,
    limit: int | None,
    max_total_logits: int = NO_LOGIT_LIMIT,
    seed: int,
    sweeps: int = 3000,
) -> Posterior:
    """Fit step cost and acceptance to throughputs of one engine.

    Args:
        points: cells that may be used. Adaptive cells among them are fitted too, which makes whatever is then said of
            them an explanation, not a prediction.
        limit: tokens up to which graphs are captured; None for no cliff.
        max_total_logits: see `StepBatch`.
        seed, sweeps: of the sampler.

    Raises:
        InputError: fewer than two cells, or none that drafts.
    """
    depth = max((point.depth for point in points), default=0)
    if len(points) < 2 or depth == 0:
        raise InputError("a fit needs at least two cells, and one that drafts")
    fit = Fit(points, priors, depth, limit, max_total_logits)
    # Of the starts, some may end in a local minimum, so the best of several counts.
    rng = np.random.default_rng([seed, 0xF17])
    starts = [fit.mean, *(fit.mean + fit.sd * rng.standard_normal((7, len(fit.mean))))]
    found = [least_squares(lambda x: fit.residuals(x[None])[0], start, max_nfev=400) for start in starts]
    best = min(found, key=lambda result: result.cost)
    width = len(fit.mean)
    scale = np.sqrt(np.diag(np.linalg.pinv(best.jac.T @ best.jac)))
    walkers = best.x + 0.3 * scale * rng.standard_normal((4 * width, width))
    draws, moves = sample(fit.log_density, walkers, sweeps, seed=seed)
    return Posterior(fit, draws, np.asarray(best.x), moves)


def _latents(num_slots: int, reqs: int) -> Latents:
    steps = max(4, -(-_CELLS // reqs))
    return Latents.draw(num_slots, steps, reqs, 0)
