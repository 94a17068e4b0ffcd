"""The log-odds that the drafter gave the token it drew: online-logistic on another feature, and lossy when sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.features import log_odds_from_log_prob
from avsim.types import F32Array, Features, Observations

__all__ = ["SlotLogit"]


@dataclass(frozen=True)
class SlotLogit(Estimator):
    """p_k = σ(w·g_k + b_k), g_k = ln q(d_k) − ln(1 − q(d_k)) of the token d_k drawn in slot k itself.

    Learning is `online-logistic`'s, number for number; so are the options. Only the feature differs, which is made
    from `draft_logprob` = ln q(d_k) and clamped to ±40.

    Lossy with sampled drafts: whether slot k is verified then depends on the token drawn there, and the emitted text
    no longer follows the target (DESIGN §3). With greedy drafts it is `online-logistic` itself, as d_k is the most
    likely token.

    Source: the drawn-token scores that vLLM issue #52053 asks about.

    >>> estimator = SlotLogit()
    >>> features = {"draft_logprob": np.log(np.array([[0.5], [0.9]], dtype=np.float32))}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).round(4)
    array([[0.4502],
           [0.7107]], dtype=float32)
    """

    name: ClassVar[str] = "slot-logit"
    uses_drawn_token: ClassVar[bool] = True

    slope: float = 0.5
    intercept: float = -0.2
    l2: float = 1e-3
    damping: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            _ = self._learner
        except InputError as error:
            raise InputError(str(error).replace(OnlineLogistic.name, self.name)) from None

    @property
    def features(self) -> tuple[str, ...]:
        return ("draft_logprob",)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return self._learner.init(num_speculative_tokens)

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        drawn = log_odds_from_log_prob(features["draft_logprob"])
        return self._learner.predict(params, {"log_odds": drawn}, shape)

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return self._learner.zero_stats(num_speculative_tokens)

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        observed = observations.observed
        drawn = np.zeros(observed.shape, dtype=np.float32)
        drawn[observed] = log_odds_from_log_prob(observations.features["draft_logprob"][observed])
        return self._learner.accumulate(stats, replace(observations, features={"log_odds": drawn}))

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        return self._learner.refit(params, stats)

    @property
    def _learner(self) -> OnlineLogistic:
        return OnlineLogistic(self.slope, self.intercept, self.l2, self.damping, refit_interval=self.refit_interval)
