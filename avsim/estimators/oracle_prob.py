"""The target's probability of accepting the very token that was drawn: unattainable, and lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from avsim.estimators.oracle_alpha import OracleAlpha

__all__ = ["OracleProb"]


@dataclass(frozen=True)
class OracleProb(OracleAlpha):
    """p_k = min(1, p(d_k) / q(d_k)) of the drawn token d_k, p the target's and q the drafter's probability.

    It bounds every score that may look at the drawn token, such as `slot-logit`. All that it does not know is the
    uniform number of the rejection sampler, which `oracle-label` knows as well. No engine has it before verification,
    and as it reads d_k it is lossy with sampled drafts (DESIGN §3).

    Where the trace does not know it (slots that verification did not reach), p_k is the slot's running mean, as in
    `oracle-alpha`. Traces with greedy drafts have no `accept_prob`.

    Source: the acceptance rule of Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
    decoding", 2023.

    >>> import numpy as np
    >>> estimator = OracleProb(prior=0.75)
    >>> features = {"accept_prob": np.array([[1.0], [np.nan]], dtype=np.float32)}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).tolist()
    [[1.0], [0.75]]
    """

    name: ClassVar[str] = "oracle-prob"
    uses_drawn_token: ClassVar[bool] = True
    column: ClassVar[str] = "accept_prob"
