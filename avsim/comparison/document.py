"""The result of a comparison on one trace, as a JSON-ready document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from avsim import estimators, policies
from avsim.comparison.config import CompareConfig
from avsim.comparison.scoring import BUCKET_STEPS, Scores
from avsim.comparison.stage import Stage
from avsim.estimators.base import Estimator
from avsim.lossless import classify
from avsim.metrics.calibration import ECE_BINS
from avsim.metrics.confidence_set import confidence_set, paired_change, unit_draws
from avsim.types import F64Array, IntArray

__all__ = ["document"]


def document(
    item: Stage, config: CompareConfig, names: Sequence[str], scores: Sequence[Scores], given: Sequence[str] = ()
) -> dict[str, Any]:
    """Return scores, differences and standings of all estimators on one trace; `given` names those with a state."""
    trace = item.trace
    readers = [estimators.make(spec) for spec in names]
    units = np.unique(item.table.unit)
    losses = np.stack([result.unit_loss[:, units] for result in scores], axis=1)
    draws = unit_draws(len(units), config.bootstrap, config.seed)
    admitted_by = None if config.admission == "full" else policies.make(config.admission)
    reads = admitted_by is not None and admitted_by.uses_confidence
    # A policy that reads no confidence says nothing of what serving with them would do.
    policy = admitted_by if admitted_by is not None and reads else policies.Adaptive()
    exact = [classify(policy, reader, 1, trace.card.draft_sampling) for reader in readers]
    ranked = [n for n, reader in enumerate(readers) if not reader.uses_truth and exact[n].exact]
    groups = [_groups(losses[kind][ranked], draws) for kind in range(2)]
    rows = []
    for number, (spec, reader, result) in enumerate(zip(names, readers, scores, strict=True)):
        place = ranked.index(number) if number in ranked else None
        rows.append(
            {
                "estimator": spec,
                "attainable": not reader.uses_truth,
                "exact": exact[number].exact,
                "why": exact[number].reason,
                "offline": reader.offline,
                "start": _start(spec, reader, config, given),
                "refits": result.refits,
                **_change(losses[0], number, draws, "log_loss"),
                **_change(losses[1], number, draws, "cumulative_log_loss"),
                "group": None if place is None else groups[0][place],
                "cumulative_group": None if place is None else groups[1][place],
                "conditional": result.conditional.summary(),
                "cumulative": result.cumulative.summary(),
                "beside_the_cut": result.band.summary() if config.admission != "full" else None,
                "categories": {
                    name: calibration.summary()
                    for name, calibration in zip(item.table.categories, result.by_category, strict=True)
                },
                "reliability": {
                    "all": result.conditional.reliability(),
                    "cumulative": result.cumulative.reliability(),
                    "slots": [result.conditional.reliability(slot) for slot in range(item.table.num_slots)],
                },
                "over_time": _over_time(result.loss_over_time),
            }
        )
    card = trace.card
    return {
        "trace": card.name,
        "content_hash": card.content_hash,
        "synthetic": card.synthetic,
        "kind": card.kind,
        "draft_sampling": card.draft_sampling,
        "num_speculative_tokens": item.table.num_slots,
        "concurrency": config.concurrency if card.kind == "dense" else None,
        "admission": "as recorded" if card.kind == "on-policy" else config.admission,
        "admission_estimator": config.admission_estimator if reads else None,
        "cost": item.cost.card.name if item.cost else None,
        "what_if": item.foreign,
        "walks": len(item.walks),
        "steps": item.walks[0].num_steps,
        "bucket_steps": BUCKET_STEPS,
        "num_sources": len(units),
        "masked_share": float(item.table.unfit.mean()),
        "masked": config.masked,
        "ece_bins": ECE_BINS,
        "reference": names[0],
        "labelled": _labelled(item),
        "rows": rows,
        "states": {
            spec: result.state.to_json()
            for spec, reader, result in zip(names, readers, scores, strict=True)
            if result.state is not None and not reader.offline
        },
    }


def _start(spec: str, reader: Estimator, config: CompareConfig, given: Sequence[str]) -> str:
    if spec in given:
        return "given"
    if config.prior:
        return "prior"
    return "cross-fitted" if reader.offline else "cold"


def _groups(losses: F64Array, draws: IntArray) -> list[str]:
    return list(confidence_set(losses, draws).standings) if len(losses) else []


def _change(losses: F64Array, number: int, draws: IntArray, name: str) -> dict[str, float | None]:
    keys = (f"{name}_change_pct", f"{name}_change_low_pct", f"{name}_change_high_pct")
    if number == 0:
        return dict.fromkeys(keys)
    change = paired_change(losses[number], losses[0], draws)
    return dict(zip(keys, (change.change_pct, change.low_pct, change.high_pct), strict=True))


def _over_time(found: F64Array) -> list[dict[str, float | int]]:
    lines = []
    for number in range(found.shape[2]):
        (loss, count), (survival_loss, survival_count) = found[:, :, number]
        if count:
            lines.append(
                {
                    "step": number * BUCKET_STEPS,
                    "slots": int(count),
                    "log_loss": float(loss / count),
                    "cumulative_log_loss": float(survival_loss / survival_count) if survival_count else None,
                }
            )
    return lines  # type: ignore[return-value]


def _labelled(item: Stage) -> list[dict[str, float | int]]:
    """Say how often each slot got a label, and the longest stretch of steps in which it got none: starvation."""
    walk, table = item.walks[0], item.table
    known = np.minimum(walk.num_admitted, table.num_known[walk.rows])
    taken = np.minimum(table.num_accepted[walk.rows], known)
    step_of = walk.step_of()
    lines = []
    for slot in range(table.num_slots):
        seen = (slot < known) & (slot <= taken)
        steps = np.concatenate(([-1], np.unique(step_of[seen]), [walk.num_steps]))
        lines.append(
            {
                "slot": slot,
                "labels": int(seen.sum()),
                "share_of_blocks": float(seen.mean()),
                "longest_gap_steps": int(np.diff(steps).max()) - 1,
            }
        )
    return lines
