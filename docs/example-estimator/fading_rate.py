from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators import Estimator


@dataclass(frozen=True)
class FadingRate(Estimator):
    """An example: each slot has two acceptance rates, of sure and of unsure drafts, and old verdicts fade."""

    name: ClassVar[str] = "fading-rate"
    features = ("log_odds",)
    split: float = 1.0  # log-odds above which a draft is sure
    half_life: float = 20.0  # refits after which a verdict counts half

    def __post_init__(self):
        super().__post_init__()
        if not (np.isfinite(self.split) and self.half_life > 0):
            raise InputError(f"{self.name}: split must be finite and half_life > 0")

    def init(self, num_speculative_tokens):
        return {"rate": np.full((2, num_speculative_tokens, 1), 0.5, dtype=np.float32)}

    def predict(self, params, features, shape):
        return np.where(features["log_odds"] > self.split, *params["rate"])

    def zero_stats(self, num_speculative_tokens):
        return {name: np.zeros((2, num_speculative_tokens, 1)) for name in ("accepted", "observed")}

    def accumulate(self, stats, observations):
        sure = observations.features["log_odds"] > self.split
        observed = np.stack([sure, ~sure]) & observations.observed
        labels = {"accepted": observed & observations.accepted, "observed": observed}
        return {name: stats[name] + mask.sum(axis=2, keepdims=True) for name, mask in labels.items()}

    def refit(self, params, stats):
        rate = (stats["accepted"] + 5) / (stats["observed"] + 10)  # a prior of 1/2, worth ten verdicts
        fade = 0.5 ** (1 / self.half_life)
        return {"rate": rate.astype(np.float32)}, {name: fade * sums for name, sums in stats.items()}
