"""Injected errors as they are named on the command line: `noisy:base=PRESET,sd=0.05`, `distorted:base=PRESET,…`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from avsim.costs.base import CostCard, CostModel

if TYPE_CHECKING:
    from avsim.costs.inject import DistortedCost, NoisyCost

__all__ = ["DistortedSpec", "NoisySpec"]


@dataclass(frozen=True)
class NoisySpec:
    """A clock that fluctuates from step to step and drifts: `noisy:base=PRESET,sd=0.05`.

    Attributes:
        base: a preset or a file.
        sd: standard deviation of the logarithm of a step's time; the mean stays.
        drift_pct: how much slower steps are in the end; `drift_minutes`: when the end is reached, linearly.
        drift_tokens: steps of so many tokens and more drift in full, smaller ones in proportion; 0: all alike.
    """

    name: ClassVar[str] = "noisy"
    positional: ClassVar[str | None] = "base"

    base: str
    sd: float = 0.0
    drift_pct: float = 0.0
    drift_minutes: float = 10.0
    drift_tokens: int = 0
    seed: int = 0

    def build(self) -> NoisyCost:
        """Return the cost model; raises InputError where the base or a number is wrong."""
        from avsim.costs import NoisyCost, load

        base = load(self.base)
        what = (
            f"with {self.sd:g} log-normal noise a step and {self.drift_pct:g} % drift over {self.drift_minutes:g} min"
        )
        return NoisyCost(
            base=base,
            sd=self.sd,
            drift_pct=self.drift_pct,
            drift_minutes=self.drift_minutes,
            drift_tokens=self.drift_tokens,
            seed=self.seed,
            card=_derived(base, self.name, what),
        )


@dataclass(frozen=True)
class DistortedSpec:
    """A belief with the errors of a start-up profile: `distorted:base=PRESET,tilt_pct=-20,jitter=0.05`.

    Attributes:
        base: a preset or a file.
        scale: all verify times; `draft_scale`: all draft times.
        tilt_pct: error at 1,024 tokens, growing with the logarithm of the size from 0 at one token.
        jitter: standard deviation of the logarithm of each captured size's error, before the running maximum.
        spike_tokens, spike_factor: the size measured so many times too dear (0: none); it lifts all larger ones.
        no_cliff: the jump past the capture limit was not seen: the slope below it goes on.
    """

    name: ClassVar[str] = "distorted"
    positional: ClassVar[str | None] = "base"

    base: str
    scale: float = 1.0
    draft_scale: float = 1.0
    tilt_pct: float = 0.0
    jitter: float = 0.0
    spike_tokens: int = 0
    spike_factor: float = 3.0
    no_cliff: bool = False
    seed: int = 0

    def build(self) -> DistortedCost:
        """Return the cost model; raises InputError where the base or a number is wrong."""
        from avsim.costs import DistortedCost, load

        base = load(self.base)
        changed = [
            f"{name} {getattr(self, name):g}"
            for name, usual in (("scale", 1.0), ("draft_scale", 1.0), ("tilt_pct", 0.0), ("jitter", 0.0))
            if getattr(self, name) != usual
        ]
        changed += [f"a spike at {self.spike_tokens} tokens"] if self.spike_tokens else []
        changed += ["no cliff"] if self.no_cliff else []
        return DistortedCost(
            base=base,
            scale=self.scale,
            draft_scale=self.draft_scale,
            tilt_pct=self.tilt_pct,
            jitter=self.jitter,
            spike_tokens=self.spike_tokens,
            spike_factor=self.spike_factor,
            no_cliff=self.no_cliff,
            seed=self.seed,
            card=_derived(base, self.name, f"distorted by {', '.join(changed) or 'nothing'}"),
        )


def _derived(base: CostModel, kind: str, what: str) -> CostCard:
    notes = f"SYNTHETIC: {base.card.name} ({base.card.kind}) {what}. {base.card.notes}".strip()
    return replace(base.card, name=f"{kind}-{base.card.name}", kind="synthetic", notes=notes)
