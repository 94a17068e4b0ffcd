"""What a user must know about a fit beyond its numbers, in sentences."""

from __future__ import annotations

import numpy as np

from avsim.costs.curve import CurveCost
from avsim.costs.fit import CostFit, FitOptions, PartFit

__all__ = ["card_notes", "fit_notes"]


def card_notes(fit: CostFit, options: FitOptions) -> list[str]:
    """Return how far the written form is off on held-out timings, one sentence each for target and drafter."""
    return [_error_note(label, part, options.kind) for label, part in _parts(fit)]


def fit_notes(fit: CostFit, options: FitOptions) -> list[str]:
    """Return what the timings do not say, what was left out of the fit, and what to do about it."""
    notes = []
    for label, part in _parts(fit):
        found = [*_note_blocks(part), *_note_outliers(part)]
        found += _note_curve(part, options) if options.kind == "curve" else _note_linear(part)
        notes += [f"{label}: {text}." for text in found]
    verify = fit.verify
    jump = verify.curve.jump if verify.curve is not None else None
    if jump is not None and not options.rule.limit:
        notes.append(
            f"verify: jumps by a factor of {jump.ratio:.2f} from {jump.below} to {jump.above} tokens; if {jump.below} "
            f"is the engine's largest captured size, fit again with --capture-limit {jump.below}."
        )
    if isinstance(fit.model, CurveCost) and options.rule.capture_limit is None and fit.model.capture_limit == 1:
        notes.append("No step ran in a CUDA graph, so no size is padded: the curve is interpolated (capture_limit 1).")
    if verify.samples.ordered and np.isnan(verify.samples.steps.prefill).any():
        notes.append("Prompt tokens are not recorded in every step, so mixed steps cannot be told apart.")
    notes.append("Times are of forward pass and drafter alone; overhead_ms, what lies between, is 0 for want of data.")
    return notes


def _parts(fit: CostFit) -> tuple[tuple[str, PartFit], ...]:
    return (("verify", fit.verify), ("draft", fit.draft))


def _error_note(label: str, part: PartFit, kind: str) -> str:
    if not part.errors[kind]:
        return f"{label}: {len(part.samples)} samples, nothing could be held out, so its error is not known."
    overall = part.errors[kind][0]
    low, high = overall.median_abs.low, overall.median_abs.high
    interval = "" if low is None or high is None else f" ({low:.1f} … {high:.1f})"
    return (
        f"{label}: {len(part.samples)} samples; held-out error ({part.blocking.unit}): median "
        f"{overall.median_abs.value:.1f} %{interval}, p95 {overall.p95_abs.value:.1f} %, total time "
        f"{overall.total.value:+.1f} %."
    )


def _note_blocks(part: PartFit) -> list[str]:
    if part.blocking.too_short:
        return ["timings hang together for longer than a block can be, so intervals are too narrow"]
    return []


def _note_outliers(part: PartFit) -> list[str]:
    outliers = part.outliers
    if not outliers.count:
        return []
    return [
        f"{outliers.count} outliers ({outliers.share_of_samples:.1%} of samples, {outliers.share_of_time:.1%} of the "
        f"time), which the cost model does not hold"
    ]


def _note_curve(part: PartFit, options: FitOptions) -> list[str]:
    curve = part.curve
    if curve is None:
        return []
    notes = []
    if len(curve.points) == 1:
        notes.append(f"only {curve.points[0][0]} is known, so the cost is flat beyond it")
    if curve.num_thin:
        notes.append(f"{curve.num_thin} samples at sizes too thin for a point")
    if curve.repaired[0]:
        raw = options.rule.monotone == "running-max"
        how = "the running maximum that the table takes lifts" if raw else "isotonic regression moved"
        advice = "; if that is noise, take a larger --min-samples or --monotone isotonic"
        notes.append(
            f"{how} {curve.repaired[0]} of {len(curve.points)} points, by {curve.repaired[1]:.1%} at most"
            f"{advice if raw and curve.repaired[1] > 0.1 else ''}"
        )
    if curve.differing:
        size, given, found = max(curve.differing, key=lambda item: abs(item[1] / item[2] - 1))
        notes.append(
            f"{len(curve.differing)} of the source's own medians, which are taken, are not those of its samples; at "
            f"most at {size}: {given:g} and {found:g} ms"
        )
    return notes


def _note_linear(part: PartFit) -> list[str]:
    notes = [f"{name} is not fitted: {reason}" for name, reason in part.linear.dropped]
    for term in part.linear.terms:
        if term.inflation > 10:
            notes.append(f"{term.name} moves much with the other terms (variance inflation {term.inflation:.0f})")
        if term.value == 0:
            notes.append(f"{term.name} came out at its bound 0")
    prompt = next((term for term in part.linear.terms if term.name == "per_prefill_token_us"), None)
    if prompt is not None:
        charged = part.linear.value("per_token_us")
        notes.append(
            f"a prompt token took {prompt.value:,.1f} µs, and the linear form charges every token {charged:,.1f} µs"
        )
    span = part.linear.downweighted_sizes
    if span is not None:
        share = part.linear.num_downweighted / len(part.samples)
        notes.append(f"{share:.1%} of samples fit badly and count for less than half (sizes {span[0]} to {span[1]})")
    return notes
