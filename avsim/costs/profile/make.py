"""From what a user asks for to a plan and a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from avsim.costs.profile.plan import ProfilePlan, Spread, default_sizes
from avsim.costs.profile.runner import Runner, load_runner, require
from avsim.errors import InputError

__all__ = ["Asked", "make_plan", "make_runner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be profiled: one of model, shape and runner.

    Raises:
        InputError: none or several of them, or no word on the drafter.
    """

    model: str | None = None
    shape: str | None = None
    runner: str | None = None
    drafter: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = [name for name in ("model", "shape", "runner") if getattr(self, name) is not None]
        if len(given) != 1 and (self.runner is None or self.shape is not None):
            raise InputError(
                f"name one of --model DIR, --shape SIZES and --runner module:factory, not {len(given)} of them"
            )
        if self.drafter is None and self.runner is None:
            raise InputError("say what drafts: --drafter SPEC, or --drafter none to charge nothing for drafting")

    @property
    def no_drafter(self) -> bool:
        return self.drafter == "none"


def make_plan(
    asked: Asked,
    *,
    tokens: tuple[int, ...],
    contexts: tuple[int, ...],
    requests: tuple[int, ...],
    num_slots: int,
    depths: tuple[int, ...],
    spreads: tuple[str, ...],
    max_num_reqs: int | None,
    draft_form: str,
    capture_limit: int,
    repeats: int,
    minutes: float,
) -> ProfilePlan:
    """Return the plan; sizes that are not given are those of the device."""
    sizes = tokens or default_sizes(asked.device, capture_limit)
    if asked.no_drafter and (requests or depths):
        raise InputError("--drafter none leaves nothing for --requests and --depths to measure")
    return ProfilePlan(
        tokens=sizes,
        contexts=contexts,
        requests=() if asked.no_drafter else requests or sizes,
        num_slots=num_slots,
        depths=depths or ((1,) if draft_form == "parts" and not asked.no_drafter else ()),
        spreads=cast(tuple[Spread, ...], spreads),
        max_num_reqs=max_num_reqs,
        repeats=repeats,
        minutes=minutes,
        seed=asked.seed,
    )


def make_runner(asked: Asked, plan: ProfilePlan) -> Runner:
    """Load or build what is to be profiled.

    Raises:
        InputError: see the runners.
    """
    drafter = None if asked.no_drafter else asked.drafter
    if asked.threads is not None:
        require("torch").set_num_threads(asked.threads)
    if asked.runner is not None:
        given = {"model": asked.model, "drafter": drafter, "device": asked.device, "dtype": asked.dtype}
        runner = load_runner(asked.runner, given)
        if runner.device.partition(":")[0] != asked.device.partition(":")[0]:
            raise InputError(f"--runner {asked.runner}: it runs on {runner.device}, not on --device {asked.device}")
        return runner
    if asked.shape is not None:
        from avsim.costs.profile.decoder_shape import parse_shape
        from avsim.costs.profile.random_runner import random_runner

        return random_runner(parse_shape(asked.shape), drafter, asked.device, asked.dtype, plan, asked.seed)
    from avsim.costs.profile.transformers_runner import transformers_runner

    assert asked.model is not None
    return transformers_runner(asked.model, drafter, asked.device, asked.dtype)
