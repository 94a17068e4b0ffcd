"""Bayesian online logistic regression: vLLM's law with a Gaussian posterior, slot offsets shrunk to a common level."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.estimators.newton import drift, forget, hierarchy, newton_step
from avsim.estimators.online_logistic import logistic_sums
from avsim.features import sigmoid
from avsim.types import F32Array, F64Array, Features, Observations

__all__ = ["BayesLogistic"]


@dataclass(frozen=True)
class BayesLogistic(Estimator):
    """Logistic regression with a Gaussian posterior over (w, μ, d): p_k = σ(w·f + μ + d_k), d_k ~ N(0, `slot_sd`²).

    A slot that is thinly observed, or no longer, moves with the common level μ: published fits show that the level
    moves and not the shape. Per slot it sums what `online-logistic` sums, with p as predicted at draft time:

        a_k += W f²,  b_k += W f,  c_k += W,  g0_k += r f,  g1_k += r;   W = p(1 − p), r = y − p

    A refit lets the level drift (by half towards the prior in `level_half_life` steps, see `drift`), discounts
    old data by half in `half_life` steps (`forget`), and takes one Laplace step: Λ' = Λ + XᵀWX, m' = m + Λ'⁻¹ Xᵀr.
    The prior steadies its steps, so it can refit more often than vLLM does.

    The prior's mean is vLLM's cold start, since one fitted to the shipped traces gained next to nothing; its widths
    and the half-lives come from a coarse grid on them, where leaving any one trace out makes little difference.

    `predictive="plug-in"` (the default) puts the posterior mean into the law; `"posterior"` averages over the
    posterior, p = σ(logit / √(1 + πv/8)) with v from `variance`, and learns from the p so averaged.
    `explore` predicts from a draw of the posterior (Thompson sampling), a new one at each refit, keyed by `seed` and
    the number of refits: it depends on the past only, so it is lossless.

    Source: Opper, A Bayesian approach to on-line learning, 1998 (assumed density); MacKay, Neural Computation 4(5),
    1992 (predictive); the law is that of vLLM PR #52228.

    >>> estimator = BayesLogistic()
    >>> features = {"log_odds": np.array([[2.0], [0.0]], dtype=np.float32)}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).round(4)
    array([[0.69  ],
           [0.4502]], dtype=float32)
    >>> estimator.variance(estimator.init(2), features, (2, 1)).round(4)
    array([[0.5625],
           [0.3125]], dtype=float32)
    """

    name: ClassVar[str] = "bayes-logistic"

    refit_interval: int = field(default=32, kw_only=True)
    slope: float = 0.5
    level: float = -0.2
    slope_sd: float = 0.25
    level_sd: float = 0.5
    slot_sd: float = 0.25
    half_life: float = 1_000.0
    level_half_life: float = 3_000.0
    predictive: Literal["plug-in", "posterior"] = "plug-in"
    explore: bool = False
    seed: int = 0
    feature: Literal["log_odds", "log_odds_f32"] = "log_odds"

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = np.array([self.slope_sd, self.level_sd, self.slot_sd])
        if not np.isfinite([self.slope, self.level]).all() or not ((widths >= 0.01) & (widths <= 100)).all():
            raise InputError(f"{self.name}: slope and level must be finite; slope_sd, level_sd, slot_sd in [0.01, 100]")
        if not (self.half_life > 0 and self.level_half_life > 0):
            raise InputError(f"{self.name}: half_life and level_half_life must be > 0 steps (inf: never forget)")
        if self.explore and self.predictive == "posterior":
            raise InputError(f"{self.name}: explore predicts from a draw of the posterior; leave predictive at plug-in")
        if self.seed < 0:
            raise InputError(f"{self.name}: seed must be at least 0, not {self.seed}")

    @property
    def features(self) -> tuple[str, ...]:
        return (self.feature,)

    def init(self, num_speculative_tokens: int) -> Arrays:
        mean, precision = self._prior(num_speculative_tokens)
        refits = np.zeros(1, dtype=np.int64)
        return {"mean": mean, "precision": np.diag(precision), "coefficients": mean, "refits": refits}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        logit = self._logit(params, features)
        if self.predictive == "posterior":
            logit /= np.sqrt(1 + np.float32(np.pi / 8) * self.variance(params, features, shape))
        return sigmoid(logit)

    def variance(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        """Return the posterior variance of the logit, float32 `[K, n]`."""
        f, covariance = features[self.feature], np.linalg.inv(params["precision"])
        own = covariance[1, 1] + 2 * covariance[1, 2:] + covariance.diagonal()[2:]
        cross = 2 * (covariance[0, 1] + covariance[0, 2:])
        variance = np.float32(covariance[0, 0]) * f + cross.astype(np.float32)[:, None]
        variance *= f
        variance += own.astype(np.float32)[:, None]
        # Three rounded terms may cancel to just below 0.
        return np.maximum(variance, np.float32(0))

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return {"sums": np.zeros((5, num_speculative_tokens))}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        sums, _ = logistic_sums(observations.features[self.feature], observations)
        return {"sums": stats["sums"] + sums}

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        a, b, c, g0, g1 = stats["sums"]
        gradient, information = hierarchy(g0.sum(keepdims=True), a.sum(keepdims=True)[None], b[None], g1, c)
        prior_mean, prior = self._prior(len(c))
        keep, level_keep = (0.5 ** (self.refit_interval / t) for t in (self.half_life, self.level_half_life))
        mean = params["mean"].copy()
        mean[1] = self.level + level_keep * (mean[1] - self.level)
        precision = drift(params["precision"], 1, self.level_sd**2, level_keep)
        precision = forget(precision, np.diag(prior), keep)
        # What is forgotten becomes the prior's again, mean included; and the sums were taken at the coefficients
        # that predicted, which a drift or a draw sets apart from the mean.
        gradient += (1 - keep) * prior * (prior_mean - mean) - information @ (mean - params["coefficients"])
        mean, precision = newton_step(mean, precision, gradient, information)
        refits, coefficients = params["refits"] + 1, mean
        if self.explore:
            noise = np.random.default_rng([self.seed, int(refits[0])]).standard_normal(len(mean))
            coefficients = mean + np.linalg.solve(np.linalg.cholesky(precision).T, noise)
        new = {"mean": mean, "precision": precision, "coefficients": coefficients, "refits": refits}
        return new, self.zero_stats(len(c))

    def _logit(self, params: Arrays, features: Features) -> F32Array:
        slope, level, *_ = coefficients = params["coefficients"].astype(np.float32)
        logit: F32Array = features[self.feature] * slope
        logit += (level + coefficients[2:])[:, None]
        return logit

    def _prior(self, num_slots: int) -> tuple[F64Array, F64Array]:
        """Return the prior's mean and precisions of (w, μ, d), each `[K + 2]`."""
        mean, deviation = np.zeros(num_slots + 2), np.full(num_slots + 2, self.slot_sd)
        mean[:2], deviation[:2] = (self.slope, self.level), (self.slope_sd, self.level_sd)
        return mean, deviation**-2
