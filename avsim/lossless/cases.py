"""The rows of `avsim check lossless`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace

from avsim import estimators, policies
from avsim.errors import InputError
from avsim.estimators.base import Estimator
from avsim.lossless.classify import Lossless, classify
from avsim.lossless.models import is_made
from avsim.policies import Policy

__all__ = ["Case", "Settings", "default_cases"]

_MOST_JOINT_DRAFTS = 1 << 13


@dataclass(frozen=True, slots=True)
class Settings:
    """How many toy models, and how large."""

    models: int = 500
    num_slots: int = 2
    vocab: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.models < 1 or self.num_slots < 1 or self.vocab < 2 or self.seed < 0:
            raise InputError("models and K must be at least 1, the vocabulary at least 2, and the seed at least 0")
        joint = self.vocab ** (2 * self.num_slots)
        if joint > _MOST_JOINT_DRAFTS:
            raise InputError(
                f"K = {self.num_slots} over {self.vocab} tokens gives two requests {joint} joint drafts to enumerate; "
                f"choose at most {_MOST_JOINT_DRAFTS}"
            )


@dataclass(frozen=True, slots=True)
class Case:
    """A combination to check.

    Attributes:
        policy, estimator, lag, draft_sampling: as in `classify`.
        greedy_target: whether the target is greedy as well (temperature 0).
        left_out: whether the first of the two requests was left out of the step before.
    """

    policy: Policy
    estimator: Estimator | None = None
    lag: int = 1
    draft_sampling: str = "probabilistic"
    greedy_target: bool = False
    left_out: bool = False

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise InputError(f"lag must be at least 0, not {self.lag}")
        if self.policy.uses_confidence and self.estimator is None:
            raise InputError(f"policy {self.policy.name} needs an estimator")

    @property
    def expected(self) -> Lossless:
        """Its class, against which the enumeration is held."""
        return classify(self.policy, self.estimator, self.lag, self.draft_sampling, left_out=self.left_out)

    @property
    def reads_verdict(self) -> bool:
        """Whether policy or score know what the target will accept, so that verdicts must be enumerated too."""
        return self.policy.uses_truth or (self.estimator is not None and "label" in self.estimator.features)

    def unmade(self, vocab: int) -> list[str]:
        """Return the features that toy models do not have."""
        return [] if self.estimator is None else [name for name in self.estimator.features if not is_made(name, vocab)]

    def greedy(self) -> Case:
        """Return the same with greedy drafts.

        Who reads verdicts is asked at temperature 0 only: above it an engine draws a coin for each verdict, and what
        reads those coins is not exact whatever is drafted.
        """
        return replace(self, draft_sampling="greedy", greedy_target=self.reads_verdict)


def default_cases(settings: Settings) -> tuple[list[Case], list[str]]:
    """Return the rows of the table, and why some registered estimators are not in it."""
    scores: list[Estimator] = []
    left = []
    for name, cls in sorted(estimators.available().items()):
        if not _has_defaults(cls):
            left.append(f"{name} needs options: name it with --policy adaptive --estimator")
            continue
        estimator = cls()
        missing = Case(policies.Adaptive(), estimator).unmade(settings.vocab)
        if missing:
            left.append(f"{name} reads {', '.join(missing)}, which toy models lack")
        else:
            scores.append(estimator)
    online, adaptive = estimators.make("online-logistic"), policies.Adaptive()
    # Exact ones first, then the leaks, each of them once more with greedy drafts.
    depths = [Case(policies.FixedDepth(k)) for k in dict.fromkeys((1, settings.num_slots))]
    ranked = [Case(adaptive, estimator) for estimator in scores]
    scheduler = Case(policies.PrefixScheduler(), online)
    # Bounds and tables of the toy models' own size.
    schedule, service = policies.BatchSchedule("1-1:2/2-:1"), policies.ServiceLevel(tpot_ms=3.0)
    sized = (policies.AdaptiveSkip(), policies.Renewal(), service)
    live = [
        *(Case(policy, online, lag=0) for policy in (adaptive, *sized)),
        Case(policies.PrefixScheduler(early_stop=False), online),
        Case(adaptive, online, left_out=True),
    ]
    oracles = [Case(policies.Oracle("budget")), Case(policies.Oracle("exact")), Case(policies.OracleSkip())]
    cases = [Case(policies.NoDrafting()), *depths, Case(schedule), Case(policies.Goodput())]
    cases += [*(case for case in ranked if case.expected.exact), scheduler, Case(adaptive, online, lag=2)]
    options = ("adaptive:explore=0.5", "adaptive:floor=1", "adaptive:hide_trimmed=true")
    rules = (*map(policies.make, options), *sized, policies.Threshold(0.5), policies.Threshold(0.5, "survival"))
    cases += [Case(rule, online) for rule in rules]
    known = {type(case.policy) for case in (*cases, *oracles)}
    for name, kind in sorted(policies.available().items()):
        if kind in known:
            continue
        if _has_defaults(kind):
            cases.append(Case(kind(), online if kind.uses_confidence else None))
        else:
            left.append(f"{name} needs options: name it with --policy")
    lossy = [*(case for case in ranked if not case.expected.exact), *live, *oracles]
    return [*cases, *lossy, *(case.greedy() for case in (depths[-1], scheduler, *lossy))], left


def _has_defaults(cls: type[Estimator] | type[Policy]) -> bool:
    return all(item.default is not MISSING or item.default_factory is not MISSING for item in fields(cls) if item.init)
