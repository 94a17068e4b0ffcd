"""The one place that says whether a way of admitting drafts keeps the output exact."""

from __future__ import annotations

from dataclasses import dataclass

from avsim.estimators.base import Estimator
from avsim.policies.base import Policy

__all__ = ["Lossless", "classify"]


@dataclass(frozen=True, slots=True)
class Lossless:
    """Whether the emitted tokens follow the target's own distribution, and why they do or do not."""

    exact: bool
    reason: str


def classify(
    policy: Policy, estimator: Estimator | None, lag: int, draft_sampling: str, *, left_out: bool = False
) -> Lossless:
    """Classify a combination of score, policy, lag and draft sampling.

    Rejection sampling stays exact if for every slot (i, k) the event "admitted" is a function of the past, of the
    tokens drafted before it, d_{i,<k}, and of things independent of d_{i,≥k} given that prefix.

    Args:
        policy: what admits; its own `lossy(lag)` speaks for its rule.
        estimator: the score; None where the policy reads none.
        lag: age of the sizing confidences in records; 0 is live.
        draft_sampling: `greedy` or `probabilistic`, as in a trace's card.
        left_out: whether running requests are left out of steps, as an open loop's may be: vLLM sizes such a request
            on its live confidences in the next step.

    Source: DESIGN §3; DSpark (arXiv 2607.05147), appendix A.

    >>> from avsim.estimators import OnlineLogistic
    >>> from avsim.policies import Adaptive
    >>> classify(Adaptive(), OnlineLogistic(), 1, "probabilistic").exact
    True
    >>> classify(Adaptive(), OnlineLogistic(), 0, "probabilistic")
    Lossless(exact=False, reason='its budget is a global argmax on live confidences')
    """
    if draft_sampling == "greedy":
        return Lossless(True, "a greedy draft is a function of the tokens before it")
    if policy.uses_truth:
        return Lossless(False, policy.lossy(lag) or "it reads the verdict")
    if not policy.uses_confidence or estimator is None:
        reason = policy.lossy(lag)
        return Lossless(False, reason) if reason else Lossless(True, "it reads nothing of the drafts")
    if estimator.uses_drawn_token:
        return Lossless(False, f"estimator {estimator.name} reads the drawn token")
    if not estimator.features:
        return Lossless(True, f"estimator {estimator.name} reads nothing of the drafts")
    reason = policy.lossy(lag)
    if reason:
        return Lossless(False, reason)
    # A rule that is lossy on live sizing confidences reads them, and gets live ones after a step without the request.
    leak = policy.lossy(0) if left_out else None
    if leak:
        return Lossless(False, f"a request left out of one step is sized on its live confidences in the next: {leak}")
    return Lossless(True, "a slot is admitted by what is known before its token is drawn")
