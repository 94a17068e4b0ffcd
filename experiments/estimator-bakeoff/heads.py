"""Sequential temperature scaling on DSpark's confidence head: cumulative ECE before and after, slot by slot (V12).

Cumulative: S_k = ∏ p_j against "slot k was emitted", on every verified slot of the walks; ECE over 15 equal-mass bins,
debiased (Kumar et al. 2019); intervals from resampled source requests. STS is fitted to each half of the requests and
applied to the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from avsim import estimators
from avsim.comparison import CompareConfig
from avsim.comparison.scoring import fit_halves, predict_walk
from avsim.comparison.stage import stage
from avsim.metrics.calibration import Calibration
from avsim.metrics.confidence_set import unit_draws
from avsim.policies.budget import survival
from avsim.sources import open_trace

__all__ = ["SPECS", "head_rows"]

SPECS = {
    "head, raw": "confidence-head",
    "head, STS (offline, cross-fitted)": "temperature-offline:feature=confidence",
    "head, temperatures online": "temperature:feature=confidence",
    "head, recalibrated online": "confidence-head:recalibrate=true",
    "log-odds, raw": "raw-confidence",
    "log-odds, STS (offline, cross-fitted)": "temperature-offline",
    "log-odds, online-logistic": "online-logistic",
    "multi-logistic (no head)": "multi-logistic",
}
REPLICATES = 200


def head_rows(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return ECE with its interval, the change against the raw score of the same kind, and AUC, per score and slot."""
    config = CompareConfig(tuple(SPECS.values()), seed=seed)
    readers = {name: estimators.make(spec) for name, spec in SPECS.items()}
    ready = stage(open_trace(folder), config, {feature for reader in readers.values() for feature in reader.features})
    table = ready.table
    units = np.unique(table.unit)
    draws = unit_draws(len(units), REPLICATES, seed)
    found: dict[str, np.ndarray] = {}
    lines = []
    for name, reader in readers.items():
        halves = fit_halves(reader, table, ready.walks[0], ready.second_half) if reader.offline else None
        per_unit = [Calibration(table.num_slots) for _ in units]
        for walk in ready.walks:
            confidence, _ = predict_walk(reader, table, walk, halves=halves)
            product = survival(confidence[:, None], np.full((1, len(walk.rows)), table.num_slots))[:, 0]
            slot = np.arange(table.num_slots)[:, None]
            accepted = slot < table.num_accepted[walk.rows]
            verified = slot < np.minimum(table.num_known[walk.rows], walk.num_admitted)
            for number, unit in enumerate(units):
                mine = table.unit[walk.rows] == unit
                per_unit[number].add(product[:, mine], accepted[:, mine], verified[:, mine])
        counts = np.stack([calibration.counts for calibration in per_unit])
        ece = np.array([_ece(counts[line].sum(axis=0)) for line in (np.arange(len(units)), *draws)])
        found[name] = ece
        raw = "head, raw" if name.startswith("head") else "log-odds, raw"
        change = ece - found.get(raw, ece)
        scores = _summary(counts.sum(axis=0))
        for k in range(table.num_slots):
            low, high = np.percentile(ece[1:, k], [2.5, 97.5])
            change_low, change_high = np.percentile(change[1:, k], [2.5, 97.5])
            lines.append(
                {
                    "trace": folder.name, "score": name, "slot": k, "ece_pct": 100 * ece[0, k], "low_pct": 100 * low,
                    "high_pct": 100 * high, "change_points": 100 * change[0, k], "change_low": 100 * change_low,
                    "change_high": 100 * change_high, "auc": scores[k],
                }
            )  # fmt: skip
    return lines


def _filled(counts: np.ndarray) -> Calibration:
    calibration = Calibration(len(counts))
    calibration._counts += counts
    return calibration


def _ece(counts: np.ndarray) -> list[float]:
    return [slot["ece"] for slot in _filled(counts).summary()["slots"]]


def _summary(counts: np.ndarray) -> list[float]:
    return [slot["auc"] for slot in _filled(counts).summary()["slots"]]
