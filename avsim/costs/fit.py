"""Fitting a cost model to timings, and saying how far it is off on timings that it has not seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from avsim.costs.base import CostCard, CostModel
from avsim.costs.curve import CurveCost
from avsim.costs.fit_curve import (
    OUTLIER_FLOOR,
    OUTLIER_MADS,
    CurvePart,
    CurveRule,
    find_outliers,
    fit_curve,
    pool_sizes,
)
from avsim.costs.fit_holdout import (
    GROUPINGS,
    Blocking,
    Difference,
    Errors,
    Resamples,
    compare_forms,
    cross_predict,
    groups,
    make_blocks,
    resample,
    summarise,
)
from avsim.costs.fit_linear import LinearPart, coefficients_of, design_of, fit_linear
from avsim.costs.fit_samples import Samples
from avsim.costs.linear import LinearCost
from avsim.errors import InputError
from avsim.types import BoolArray, F64Array

__all__ = ["OUTLIER_RULE", "CostFit", "FitOptions", "OutlierList", "PartFit", "fit_costs"]

MIN_STEPS = 20
OUTLIER_RULE = f"|ms ÷ median of its size − 1| > max({OUTLIER_MADS:g} × 1.4826 × MAD, {OUTLIER_FLOOR:.0%})"
_LISTED = 100


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What is fitted, and how it is judged.

    Attributes:
        kind: the form that is written; both are judged.
        rule: how the curve is made.
        holdout: share of the blocks held out at a time; every block is held out once.
        by: how errors are broken down: `size`, `context`, `graph-mode` or `time`.
        seed: of what is drawn: which samples of a profile go together, and the blocks of the bootstrap.

    Raises:
        InputError: a value outside its range.
    """

    kind: str = "curve"
    rule: CurveRule = field(default_factory=CurveRule)
    holdout: float = 0.2
    by: str = "size"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("curve", "linear"):
            raise InputError(f"--kind is {self.kind!r}; it is curve or linear")
        if not 0.02 <= self.holdout <= 0.5:
            raise InputError(f"--holdout must be a share from 0.02 to 0.5, not {self.holdout}")
        if self.by not in GROUPINGS:
            raise InputError(f"--by is {self.by!r}; it is {', '.join(GROUPINGS)}")
        if self.seed < 0:
            raise InputError(f"--seed must be at least 0, not {self.seed}")


@dataclass(frozen=True, slots=True)
class OutlierList:
    """Timings far from the median of their size.

    Attributes:
        share_of_time: of the time of all samples; a cost model of typical steps leaves out most of it.
        largest: (source, row, size, ms, ratio to the median), the furthest first, 100 at most.
    """

    count: int
    share_of_samples: float
    share_of_time: float
    largest: tuple[tuple[int, int, int, float, float], ...]


@dataclass(frozen=True, eq=False)
class PartFit:
    """What was found about one kind of timing, `verify` or `draft`.

    Attributes:
        curve: None where no size had enough samples.
        errors: by form, over everything and by group; empty where nothing could be held out.
        closer: which form is closer on held-out timings.
    """

    samples: Samples
    outliers: OutlierList
    curve: CurvePart | None
    linear: LinearPart
    blocking: Blocking
    errors: dict[str, tuple[Errors, ...]]
    closer: Difference | None

    def to_json(self) -> dict[str, Any]:
        """Return all but the samples, as JSON data."""
        curve = self.curve
        blocking = self.blocking
        return {
            "num_samples": len(self.samples),
            "left_out": self.samples.left_out,
            "outliers": {"rule": OUTLIER_RULE} | asdict(self.outliers),
            "curve": None
            if curve is None
            else {
                "points": [
                    {"size": size, "ms": ms, "median_ms": median, "num_samples": count}
                    for (size, ms), median, count in zip(
                        curve.points, curve.medians.tolist(), curve.counts.tolist(), strict=True
                    )
                ],
                "num_thin": curve.num_thin,
                "repaired_points": curve.repaired[0],
                "repaired_by_at_most": curve.repaired[1],
                "jump": None if curve.jump is None else asdict(curve.jump),
                "medians_unlike_samples": [list(item) for item in curve.differing],
            },
            "linear": {
                "terms": [_finite(asdict(term)) for term in self.linear.terms],
                "not_fitted": dict(self.linear.dropped),
                "num_downweighted": self.linear.num_downweighted,
                "downweighted_sizes": self.linear.downweighted_sizes,
            },
            "held_out": {
                "unit": blocking.unit,
                "num_blocks": blocking.num_blocks,
                "num_folds": blocking.num_folds,
                "autocorrelation_time_steps": blocking.tau,
                "errors_pct": {form: [asdict(item) for item in found] for form, found in self.errors.items()},
                "closer": None if self.closer is None else {"form": self.closer.word} | asdict(self.closer),
            },
        }


@dataclass(frozen=True, eq=False)
class CostFit:
    """A fitted cost model with what is known about its errors."""

    model: CostModel
    verify: PartFit
    draft: PartFit


def fit_costs(verify: Samples, draft: Samples, options: FitOptions, card: CostCard) -> CostFit:
    """Fit a cost model to timings of the target and of the drafter.

    The curve is the median of each size; the linear model is fitted to all samples but outliers. Both are judged on
    held-out blocks, so that the forms can be compared; `options.kind` is built. The card gets its kind here.

    Raises:
        InputError: too few timings, or no curve or linear model that `avsim.costs` accepts comes out.
    """
    for samples in (verify, draft):
        _check_enough(samples)
    options = replace(options, rule=_resolved(options.rule, verify))
    parts = {samples.label: _fit_part(samples, options) for samples in (verify, draft)}
    of_steps = verify.ordered or draft.ordered
    raw = options.kind == "curve" and options.rule.monotone == "running-max"
    if card.kind != "synthetic":
        card = replace(card, kind="measured" if raw and not of_steps else "fitted")
    model = _build(parts, options, card)
    return CostFit(model, parts["verify"], parts["draft"])


def _check_enough(samples: Samples) -> None:
    what = "forward" if samples.label == "verify" else "drafter"
    left = ", ".join(f"{count} {reason}" for reason, count in samples.left_out.items())
    left = f" (left out: {left})" if left else ""
    if not len(samples):
        raise InputError(f"no {what} times to fit{left}; a cost model needs the times of target and drafter")
    if samples.ordered and int(samples.decode.sum()) < MIN_STEPS:
        raise InputError(
            f"only {int(samples.decode.sum())} decode steps with {what} times{left}; at least {MIN_STEPS} are needed"
        )
    sizes = np.unique(samples.size[samples.decode])
    if samples.label == "verify" and len(sizes) < 2:
        raise InputError(
            f"every step has {sizes[0]} tokens: how the cost grows with tokens cannot be seen; record several loads"
        )


def _resolved(rule: CurveRule, verify: Samples) -> CurveRule:
    nothing_padded = set(verify.steps.graph.tolist()) == {"none"}
    if rule.capture_limit is None and not rule.capture_sizes and nothing_padded:
        return replace(rule, capture_limit=1)
    return replace(rule, capture_limit=rule.limit)


def _fit_part(samples: Samples, options: FitOptions) -> PartFit:
    decode = samples.decode
    rule = options.rule if samples.ordered else replace(options.rule, min_samples=1)
    plain = samples.take(decode)
    pools = pool_sizes(plain.size, rule)
    outlier = np.zeros(len(samples), dtype=bool)
    ratio = np.ones(len(samples))
    outlier[decode], ratio[decode] = find_outliers(plain.ms, pools)
    curve = fit_curve(plain.size, plain.ms, rule, plain.medians)
    blocking = make_blocks(samples, ratio, options.holdout, options.seed)
    draws = resample(blocking, options.seed)
    design = design_of(samples)
    linear = fit_linear(design, samples.ms, samples.size, ~outlier, draws)

    def by_curve(rows: BoolArray) -> F64Array | None:
        kept = rows & decode
        made = fit_curve(samples.size[kept], samples.ms[kept], rule)
        return None if made is None else made.predict(samples.size, rule.limit)

    def by_line(rows: BoolArray) -> F64Array | None:
        kept = rows & ~outlier
        if not kept.any():
            return None
        return design.columns @ coefficients_of(design.columns[kept], samples.ms[kept])

    predicted = {
        form: cross_predict(blocking, decode, predict) for form, predict in (("curve", by_curve), ("linear", by_line))
    }
    return PartFit(
        samples, _list_outliers(samples, outlier, ratio), curve, linear, blocking,
        _errors(samples, predicted, options.by, draws),
        compare_forms(predicted["curve"], predicted["linear"], samples.ms, draws),
    )  # fmt: skip


def _errors(
    samples: Samples, predicted: dict[str, F64Array], by: str, draws: Resamples
) -> dict[str, tuple[Errors, ...]]:
    split = [("all", np.ones(len(samples), dtype=bool)), *groups(samples, by)]
    found = {
        form: [summarise(name, made, samples.ms, rows, draws) for name, rows in split]
        for form, made in predicted.items()
    }
    return {form: tuple(item for item in items if item is not None) for form, items in found.items()}


def _list_outliers(samples: Samples, outlier: BoolArray, ratio: F64Array) -> OutlierList:
    rows = np.flatnonzero(outlier)
    rows = rows[np.argsort(-np.abs(np.log(ratio[rows])), kind="stable")]
    listed = tuple(
        (
            int(samples.steps.series[i]),
            int(samples.steps.row[i]),
            int(samples.size[i]),
            float(samples.ms[i]),
            float(ratio[i]),
        )
        for i in rows[:_LISTED]
    )
    share = float(samples.ms[outlier].sum() / samples.ms.sum())
    return OutlierList(len(rows), len(rows) / len(samples), share, listed)


def _build(parts: dict[str, PartFit], options: FitOptions, card: CostCard) -> CostModel:
    if options.kind == "linear":
        verify, draft = parts["verify"].linear, parts["draft"].linear
        return LinearCost(
            fixed_ms=verify.value("fixed_ms"),
            per_token_us=verify.value("per_token_us"),
            per_kv_token_ns=verify.value("per_kv_token_ns"),
            draft_fixed_ms=draft.value("draft_fixed_ms"),
            draft_per_kv_token_ns=draft.value("draft_per_kv_token_ns"),
            draft_per_request_us=draft.value("draft_per_request_us"),
            draft_per_request_token_us=draft.value("draft_per_request_token_us"),
            card=card,
        )
    curves = {}
    for label, part in parts.items():
        if part.curve is None:
            raise InputError(
                f"no size has {options.rule.min_samples} {label} samples, also with its neighbours; lower "
                f"--min-samples, record longer, or take --kind linear"
            )
        curves[label] = part.curve.points
    return CurveCost(verify=curves["verify"], draft=curves["draft"], capture_limit=options.rule.limit, card=card)


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and not np.isfinite(value) else value for key, value in data.items()}
