"""Estimators with one realistic mistake each; `test_estimator_contract.py` says which checks catch it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from avsim.estimators import OnlineLogistic, PositionRate
from avsim.estimators.base import MEMORY
from avsim.features import sigmoid


@dataclass(frozen=True)
class Float64Output(PositionRate):
    """Forgets the cast back to float32."""

    def predict(self, params, features, shape):
        return super().predict(params, features, shape).astype(np.float64)


@dataclass(frozen=True)
class LinearProbability(PositionRate):
    """A straight line through the usual log-odds, which leaves [0, 1] at unusual ones."""

    @property
    def features(self):
        return ("log_odds",)

    def predict(self, params, features, shape):
        return np.float32(0.02) * features["log_odds"] + params["rate"][:, None] * np.float32(0.4)

    def refit(self, params, stats):
        return params, stats


@dataclass(frozen=True)
class PeeksEntropy(PositionRate):
    """Reads a feature where the trace happens to have it, without declaring it."""

    def predict(self, params, features, shape):
        if features.get("entropy") is not None:
            return np.clip(super().predict(params, features, shape) - features["entropy"], 0, 1)
        return super().predict(params, features, shape)


@dataclass(frozen=True)
class ScalesInPlace(OnlineLogistic):
    """Multiplies the caller's features instead of a copy."""

    def predict(self, params, features, shape):
        logit = features["log_odds"]
        logit *= params["slope"]
        logit += params["intercepts"][:, None]
        return sigmoid(logit)


@dataclass(frozen=True)
class AddsInPlace(PositionRate):
    """Adds into the statistics that it was given."""

    def accumulate(self, stats, observations):
        for name, value in super().accumulate(stats, observations).items():
            stats[name][:] = value
        return stats


@dataclass(frozen=True)
class LearnsAtOnce(PositionRate):
    """Keeps a running rate outside the state, so that predictions move between refits."""

    running: Any = field(default_factory=lambda: {"rate": np.float32(0.5)}, compare=False)

    def predict(self, params, features, shape):
        return np.full(shape, self.running["rate"], dtype=np.float32)

    def accumulate(self, stats, observations):
        rate = observations.accepted[observations.observed].mean() if observations.observed.any() else 0.5
        self.running["rate"] = np.float32(rate)
        return super().accumulate(stats, observations)


@dataclass(frozen=True)
class StructuredStats(PositionRate):
    """Packs its counts into a structured array, which JSON cannot carry."""

    def zero_stats(self, num_speculative_tokens):
        return {"counts": np.zeros(num_speculative_tokens, dtype=[("accepted", "f8"), ("observed", "f8")])}

    def accumulate(self, stats, observations):
        counts = stats["counts"].copy()
        counts["accepted"] += (observations.observed & observations.accepted).sum(axis=1)
        counts["observed"] += observations.observed.sum(axis=1)
        return {"counts": counts}

    def refit(self, params, stats):
        counts = stats["counts"]
        return super().refit(params, {name: counts[name] for name in counts.dtype.names})[0], stats


@dataclass(frozen=True)
class KeepsHistory(PositionRate):
    """Remembers every count it ever saw."""

    def zero_stats(self, num_speculative_tokens):
        return super().zero_stats(num_speculative_tokens) | {"history": np.zeros((num_speculative_tokens, 0))}

    def accumulate(self, stats, observations):
        history = np.concatenate([stats["history"], observations.observed.astype(np.float64)], axis=1)
        return super().accumulate(stats, observations) | {"history": history}

    def refit(self, params, stats):
        counts = {name: stats[name] for name in ("accepted", "observed")}
        return super().refit(params, counts)[0], stats


@dataclass(frozen=True)
class AveragesPerCall(PositionRate):
    """Moves a running rate by a fixed share at every call of accumulate, however many steps that call holds."""

    def accumulate(self, stats, observations):
        added = super().accumulate({name: np.zeros_like(value) for name, value in stats.items()}, observations)
        return {name: 0.9 * stats[name] + added[name] for name in stats}


@dataclass(frozen=True)
class SingleSums(OnlineLogistic):
    """Adds whole blocks in float32, in an order that depends on how they were split."""

    def accumulate(self, stats, observations):
        whole = super().accumulate(stats, observations)
        return {name: value.astype(np.float32).astype(np.float64) for name, value in whole.items()}


@dataclass(frozen=True)
class StandardisesBlock(OnlineLogistic):
    """Standardises a feature by the mean of the block at hand, future steps included."""

    def predict(self, params, features, shape):
        f = features["log_odds"]
        centred = f - f.mean() if f.size else f
        return super().predict(params, {"log_odds": centred}, shape)


@dataclass(frozen=True)
class LearnsUnobserved(PositionRate):
    """Takes the label of every slot at face value, the unobserved ones too, as not accepted."""

    def accumulate(self, stats, observations):
        return super().accumulate(stats, replace(observations, observed=np.ones_like(observations.observed)))


@dataclass(frozen=True)
class MasksByZero(OnlineLogistic):
    """Multiplies unobserved slots by 0, which keeps their NaN."""

    def accumulate(self, stats, observations):
        f, p, observed = observations.features["log_odds"], observations.confidence, observations.observed
        mask = observed.astype(np.float64)
        weight, residual = mask * p * (1 - p), mask * (observations.accepted - p.astype(np.float64))
        columns = {"a": weight * f * f, "b": weight * f, "c": weight, "g0": residual * f, "g1": residual, "n": mask}
        return {name: stats[name] + column.sum(axis=1) for name, column in columns.items()}


@dataclass(frozen=True)
class ForgetsByRow(PositionRate):
    """Discounts from row to row instead of from step to step, so the last request of a step counts most."""

    def accumulate(self, stats, observations):
        rows = observations.observed.shape[1]
        weight = 0.98 ** np.arange(rows)[::-1]
        accepted = observations.observed & observations.accepted
        return {
            "accepted": stats["accepted"] * 0.98**rows + accepted @ weight,
            "observed": stats["observed"] * 0.98**rows + observations.observed @ weight,
        }


@dataclass(frozen=True)
class DrawsFreely(PositionRate):
    """Samples its rates at refit from a generator that nothing seeds."""

    def refit(self, params, stats):
        new, kept = super().refit(params, stats)
        noise = np.random.default_rng().normal(0, 1e-3, len(new["rate"]))
        return {"rate": (new["rate"] + noise).clip(0, 1).astype(np.float32)}, kept


@dataclass(frozen=True)
class RawNewton(PositionRate):
    """One undamped Newton step a refit on the log-odds of each rate; its curvature vanishes at 0 and 1."""

    def init(self, num_speculative_tokens):
        return {"rate": np.full(num_speculative_tokens, 0.5, np.float32), "bias": np.zeros(num_speculative_tokens)}

    def refit(self, params, stats):
        with np.errstate(all="ignore"):
            p = sigmoid(params["bias"]).astype(np.float64)
            step = (stats["accepted"] - stats["observed"] * p) / (stats["observed"] * p * (1 - p))
            bias = params["bias"] + np.where(stats["observed"] > 0, step, 0.0)
        return {"rate": sigmoid(bias), "bias": bias}, self.zero_stats(len(p))


@dataclass(frozen=True)
class BorrowsDepth(PositionRate):
    """Gives a slot without observations the rate of the slot before it."""

    def refit(self, params, stats):
        new, kept = super().refit(params, stats)
        rate = new["rate"].copy()
        for slot in np.flatnonzero(stats["observed"] == 0):
            rate[slot] = rate[slot - 1] if slot else rate[slot]
        return {"rate": rate}, kept


@dataclass(frozen=True)
class JointRate(PositionRate):
    """Divides by the blocks that reached slot 0: a rate per verified block, not a conditional one."""

    def refit(self, params, stats):
        reached = np.where(stats["observed"] > 0, stats["observed"][0], 0)
        new, _ = super().refit(params, stats | {"observed": reached})
        return new, stats


@dataclass(frozen=True)
class FrozenSlope(OnlineLogistic):
    """Never moves its slope: right on the average, wrong at every feature."""

    def refit(self, params, stats):
        new, cleared = super().refit(params, stats)
        return {**new, "slope": params["slope"]}, cleared


@dataclass(frozen=True)
class RemembersTheBatch(PositionRate):
    """Keeps of every request what the whole batch did."""

    @property
    def memory_size(self):
        return 1

    def remember(self, params, observations):
        return np.full_like(observations.features[MEMORY], observations.accepted.sum())
