"""What an output token takes: verified slots, rows and FLOPs of the target, GPU time, and money."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from avsim.costs import shapes
from avsim.costs.base import CostModel
from avsim.costs.cliff import padding
from avsim.costs.inject import DistortedCost, NoisyCost
from avsim.costs.roofline import RooflineCost
from avsim.metrics.intervals import ratio_interval
from avsim.metrics.serving import Measures
from avsim.types import F64Array

__all__ = ["Engine", "economy", "engine_of", "savings"]

_PER_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of the engine beside its step times.

    Attributes:
        gpus: how many; None if unknown.
        active_params: the target's weights that one token meets; None if unknown.
        params_source: where that number comes from.
        pads: whether the sizes that steps are padded to are known.
        price_per_gpu_hour: in any currency; None to leave money out.
    """

    gpus: int | None
    active_params: float | None
    params_source: str
    pads: bool
    price_per_gpu_hour: float | None


def engine_of(model: CostModel, gpus: int | None, price_per_gpu_hour: float | None) -> Engine:
    """Return what a cost model knows of its engine; `gpus` overrides its card's.

    >>> from avsim.costs import load
    >>> engine = engine_of(load("deepseek-v4-flash-tp4-b300"), None, None)
    >>> engine.gpus, engine.params_source
    (4, 'deepseek-v4-flash')
    """
    base = model
    while isinstance(base, NoisyCost | DistortedCost):
        base = base.base
    found = re.match(r"(\d+)\s*[×x]", model.card.hardware)
    counted = base.tp if isinstance(base, RooflineCost) else int(found[1]) if found else None
    params, source = None, ""
    if isinstance(base, RooflineCost):
        params, source = base.target.active_params, base.target.name
    elif name := _preset(model.card.model):
        params, source = shapes.model(name).active_params, name
    return Engine(gpus or counted, params, source, padding(model) is not None, price_per_gpu_hour)


def _preset(model: str) -> str | None:
    """Return the shipped shape that a model's name begins with, the longest of them."""
    own = _squeezed(model)
    names = [name for name in shapes.models() if own.startswith(_squeezed(name))]
    return max(names, key=len, default=None)


def _squeezed(name: str) -> str:
    return "".join(char for char in name.rsplit("/", 1)[-1].lower() if char.isalnum())


def _quantities(measures: Measures, engine: Engine) -> dict[str, F64Array]:
    """Return each quantity per output token, `[runs]`; per million of them where the name says so."""
    emitted, work = measures.totals.emitted, measures.work
    found = {
        "verified_slots_per_token": measures.totals.admitted / emitted,
        "target_rows_per_token": work.tokens / emitted,
    }
    if engine.pads:
        found["padded_rows_per_token"] = work.padded_tokens / emitted
    if engine.active_params is not None:
        rows = work.padded_tokens if engine.pads else work.tokens
        found["target_gflops_per_token"] = 2 * engine.active_params / 1e9 * rows / emitted
    seconds = measures.totals.ms / 1e3 / emitted * _PER_MILLION
    found["engine_seconds_per_million_tokens"] = seconds
    if engine.gpus is not None:
        found["gpu_seconds_per_million_tokens"] = engine.gpus * seconds
        if engine.price_per_gpu_hour is not None:
            found["cost_per_million_tokens"] = engine.gpus * seconds / 3600 * engine.price_per_gpu_hour
    return found


def economy(measures: Measures, engine: Engine) -> dict[str, Any]:
    """Return what run 0 took per output token, and the share of the time in which the engine was busy."""
    found: dict[str, Any] = {name: float(values[0]) for name, values in _quantities(measures, engine).items()}
    return found | {"busy_share": float(measures.work.busy_ms[0] / measures.totals.ms[0])}


def savings(policy: str, pairs: Sequence[tuple[str, Measures, Measures]], engine: Engine) -> list[dict[str, Any]]:
    """Return each quantity of a policy over that of what it is compared with, with intervals.

    Args:
        pairs: name of the rival, the policy's measures, the rival's on the same samples.
    """
    found = []
    for against, mine, theirs in pairs:
        own, other = _quantities(mine, engine), _quantities(theirs, engine)
        line: dict[str, Any] = {"policy": policy, "against": against}
        for name, values in own.items():
            if (values > 0).all() and (other[name] > 0).all():
                ratios = values / other[name]
                interval = ratio_interval(float(ratios[0]), np.asarray(ratios[1:]))
                line[name] = {"ratio": interval.ratio, "low": interval.low, "high": interval.high}
            else:
                line[name] = None
        found.append(line)
    return found
