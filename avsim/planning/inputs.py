"""From what a planner writes to a plan, and to a file from which the plan can be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from avsim import costs, registry
from avsim.costs.drafters import DRAFTER_KINDS
from avsim.errors import InputError
from avsim.manifest import check_hashes, make_manifest, read_text, sha256_json
from avsim.planning.acceptance import Acceptance
from avsim.planning.borrow import Borrowed, borrow
from avsim.planning.given import PlanInput, check_quality
from avsim.planning.infer import Priors
from avsim.planning.plan import Plan, make_plan
from avsim.planning.points_plan import TablePlan, plan_from_points
from avsim.planning.predict import Overhead
from avsim.planning.throughput_table import read_points
from avsim.sources import open_trace
from avsim.study import max_total_logits

__all__ = ["PlanConfig", "PlanRun", "run_plan"]

_FORMS = ("conditional", "marginal", "lengths")
_ONLY_RATES = ("cost", "gpu", "model", "drafter", "tp", "concurrency", "context", "cost_sd", *_FORMS)
_ONLY_TABLE = ("explain", "capture_limit", "depth")
_KNOWN_SD = 0.02  # of a calibration that is given: the sampler needs a spread


@dataclass(frozen=True)
class PlanConfig:
    """What `avsim plan` was asked; None where an option was not given. See the command's help for each."""

    conditional: str | None = None
    marginal: str | None = None
    lengths: str | None = None
    cost: str | None = None
    gpu: str | None = None
    model: str | None = None
    drafter: str | None = None
    tp: int | None = None
    table: str | None = None
    explain: tuple[str, ...] = ()
    capture_limit: int | None = None
    depth: int | None = None
    concurrency: tuple[int, ...] | None = None
    context: float | None = None
    auc: float | None = None
    auc_sd: float | None = None
    borrow: str | None = None
    estimator: str | None = None
    calibration_slope: float | None = None
    calibration_offset: float | None = None
    cost_sd: float | None = None
    av_overhead_ms: float | None = None
    vocab: int | None = None
    draws: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.table is not None:
            self._refuse(_ONLY_RATES, "--table brings acceptance, costs and loads itself; leave {} out")
        else:
            self._refuse(_ONLY_TABLE, "{} belongs to --table; leave it out, or name a table")
            given = [name for name in _FORMS if getattr(self, name) is not None]
            if len(given) != 1:
                raise InputError(
                    "give acceptance in exactly one form: --conditional, --marginal or --lengths"
                    + (f" (given: {', '.join(_option(name) for name in given)})" if given else " (or --table)")
                )
        if self.cost is not None:
            self._refuse(("gpu", "model", "drafter", "tp"), "--cost names the step costs itself; leave {} out")
        elif self.table is None and (self.gpu is None or self.model is None):
            raise InputError("name step costs: --cost, or --model and --gpu for an estimate (see `avsim list costs`)")
        if self.drafter is not None and self.drafter not in DRAFTER_KINDS:
            raise InputError(f"unknown drafter {self.drafter!r}{registry.suggest(self.drafter, DRAFTER_KINDS)}")
        if self.borrow is None:
            self._refuse(("estimator",), "{} says whose confidences --borrow measures; name a trace, or leave it out")
        else:
            self._refuse(
                ("auc", "calibration_slope", "calibration_offset"),
                "--borrow measures how good confidences are; leave {} out",
            )
        if self.auc is None and self.borrow is None:
            self._refuse(("auc_sd",), "{} says how sure --auc or --borrow is; leave it out without them")
        for name in ("tp", "depth", "capture_limit", "vocab"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{_option(name)} must be at least 1, not {value}")
        if self.av_overhead_ms is not None and not 0 <= self.av_overhead_ms < float("inf"):
            raise InputError(f"--av-overhead-ms must be finite and ≥ 0, not {self.av_overhead_ms:g}")
        if self.concurrency == ():
            raise InputError("--concurrency must hold at least one number")
        if self.seed < 0:
            raise InputError(f"--seed must be at least 0, not {self.seed}")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if getattr(self, name) not in (None, ()):
                raise InputError(why.format(_option(name)))

    def to_json(self) -> dict[str, Any]:
        """Return what was given."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}

    @classmethod
    def from_json(cls, data: Any) -> PlanConfig:
        """Read what `to_json` gave.

        Raises:
            InputError: it is not the configuration of a plan.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not set(data) <= known:
            raise InputError("the manifest is not that of a plan; it must be a file that `avsim plan --out` wrote")
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        try:
            return cls(**given)
        except TypeError as error:
            raise InputError(f"the manifest's configuration is malformed: {error}") from None


@dataclass(frozen=True)
class PlanRun:
    """A plan, what it was made from, and the hashes of what was read."""

    config: PlanConfig
    inputs: dict[str, str]
    result: Plan | TablePlan
    borrowed: Borrowed | None

    def manifest(self) -> dict[str, Any]:
        """Return what is needed to repeat it."""
        return make_manifest("plan", self.config.to_json(), self.inputs)


def run_plan(
    config: PlanConfig,
    *,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    expect: dict[str, Any] | None = None,
) -> PlanRun:
    """Plan from a configuration.

    Args:
        config: what was asked.
        progress: told how far it is.
        expect: a manifest whose inputs must be the ones at hand.

    Raises:
        InputError: bad numbers or files, or inputs other than those recorded.
    """
    inputs: dict[str, str] = {}
    borrowed: Borrowed | None = None
    result: Plan | TablePlan
    check_quality(config.auc, _auc_sd(config), config.calibration_slope, config.calibration_offset)
    if config.borrow is not None:
        trace = open_trace(Path(config.borrow))
        inputs["borrow"] = str(trace.card.content_hash)
        borrowed = borrow(trace, config.estimator or "online-logistic")
    if config.table is not None:
        inputs["table"] = hashlib.sha256(read_text(Path(config.table)).encode()).hexdigest()
        _expect(expect, inputs)
        result = _from_table(config, borrowed, progress)
    else:
        given = _plan_input(config, borrowed)
        inputs["cost"] = sha256_json(costs.dump(given.cost))
        _expect(expect, inputs)
        result = make_plan(given, config.concurrency or (1, 8, 32, 64, 128, 256), progress=progress)
    return PlanRun(config, inputs, result, borrowed)


def _expect(manifest: dict[str, Any] | None, inputs: dict[str, str]) -> None:
    if manifest is not None:
        check_hashes(manifest, inputs)


def _from_table(config: PlanConfig, borrowed: Borrowed | None, progress: Callable[[int, int, str], None]) -> TablePlan:
    priors, auc_sd = Priors.load(), _auc_sd(config)
    auc, slope, offset = _quality(config, borrowed)
    if auc is not None:
        if not auc_sd >= 0.005:
            raise InputError(f"--auc-sd must be at least 0.005 with --table, whose fit needs a spread, not {auc_sd:g}")
        priors = priors.with_auc(auc, auc_sd)
    return plan_from_points(
        read_points(config.table or ""),
        _calibrated(priors, slope, offset),
        limit=config.capture_limit,
        max_total_logits=max_total_logits(config.vocab),
        depth=config.depth,
        explain=config.explain,
        overhead=None if config.av_overhead_ms is None else Overhead(config.av_overhead_ms),
        seed=config.seed,
        draws=200 if config.draws is None else config.draws,
        progress=progress,
    )


def _calibrated(priors: Priors, slope: float | None, offset: float | None) -> Priors:
    known = {} if slope is None else {"log_slope": (float(np.log(slope)), _KNOWN_SD)}
    known |= {} if offset is None else {"offset": (offset, _KNOWN_SD)}
    return replace(priors, confidence=dict(priors.confidence) | known)


def _plan_input(config: PlanConfig, borrowed: Borrowed | None) -> PlanInput:
    form = next(name for name in _FORMS if getattr(config, name) is not None)
    make = {"conditional": Acceptance.from_conditional, "marginal": Acceptance.from_marginal,
            "lengths": Acceptance.from_lengths}[form]  # fmt: skip
    acceptance = make(_rates(getattr(config, form), _option(form)))
    cost = costs.load(
        config.cost
        or f"roofline:model={config.model},gpu={config.gpu},tp={config.tp or 1},drafter={config.drafter or 'eagle'},"
        f"k={acceptance.num_slots}"
    )
    auc, slope, offset = _quality(config, borrowed)
    own_context = None if cost.uses_kv else cost.card.context_tokens
    return PlanInput(
        acceptance,
        cost,
        float(own_context or 1024) if config.context is None else config.context,
        auc,
        _auc_sd(config),
        slope,
        offset,
        None if borrowed is None else borrowed.request_share,
        config.cost_sd,
        config.av_overhead_ms,
        max_total_logits(config.vocab or cost.card.vocab_size),
        100 if config.draws is None else config.draws,
        config.seed,
    )


def _quality(config: PlanConfig, borrowed: Borrowed | None) -> tuple[float | None, float | None, float | None]:
    if borrowed is None:
        return config.auc, config.calibration_slope, config.calibration_offset
    auc = float(borrowed.auc.mean())
    if not 0.5 < auc <= 0.97:
        raise InputError(
            f"the confidences of {borrowed.estimator} on {borrowed.trace} have an AUC of {auc:.2f}; a plan needs one "
            "above 0.5 and at most 0.97: borrow from another estimator or trace"
        )
    return auc, borrowed.slope, borrowed.offset


def _auc_sd(config: PlanConfig) -> float:
    return 0.04 if config.auc_sd is None else config.auc_sd


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _rates(text: str, name: str) -> list[float]:
    parts = [part.strip() for part in text.split(",")]
    try:
        return [float(part) for part in parts]
    except ValueError:
        raise InputError(f"{name} must be numbers separated by commas, not {text!r}") from None
