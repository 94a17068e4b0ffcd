"""Before an engine serves with an estimator's kernels: they run once on its device, and agree with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from avsim.estimators.base import MEMORY, Estimator, EstimatorState
from avsim.kernels.reference.logits import features as reference_features

__all__ = ["clear", "try_out"]

_FEATURE_GAP = 1e-2
"""Differences that rounding explains are below 1e-3 on logits like these; a wrong kernel is off by tenths."""
_CONFIDENCE_GAP = 1e-3


def try_out(device_estimator: Any, estimator: Estimator, state: EstimatorState, vocab_size: int, dtype: Any) -> None:
    """Predict from one row of logits, learn from one verdict and refit, then leave no trace of it.

    It also compiles what would otherwise be compiled while serving or while a graph is captured.

    Args:
        device_estimator: of `avsim.kernels`; its state is `state` afterwards.
        vocab_size: of the drafter.
        dtype: of its logits.

    Raises:
        RuntimeError: features or confidence are not those of NumPy.
    """
    import torch

    device = device_estimator.device
    num_reqs, num_slots = device_estimator.predictions.shape
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 2, (1, vocab_size)).astype(np.float32))
    logits[0, vocab_size // 2] = 12.0
    logits = logits.to(device=device, dtype=dtype)
    device_estimator.load(state)
    confidence = torch.zeros((num_reqs, num_slots), dtype=torch.float32, device=device)
    temperature = torch.zeros(num_reqs, dtype=torch.float32, device=device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    device_estimator.predict(logits, first, torch.zeros((), dtype=torch.int64, device=device), confidence, temperature)
    found = device_estimator.features[:, 0, 0].cpu().numpy()
    expected = reference_features(logits.float().cpu().numpy(), np.zeros(1, dtype=np.float32), estimator.features)
    for name, value in zip(estimator.features, found, strict=True):
        _compare(name, float(value), float(expected[name][0]), _FEATURE_GAP)
    held = {name: np.full((num_slots, 1), value) for name, value in zip(estimator.features, found, strict=True)}
    held[MEMORY] = np.zeros((estimator.memory_size, 1), dtype=np.float32)
    own = estimator.predict(state.params, held, (num_slots, 1))[0, 0]
    _compare("confidence", float(confidence[0, 0]), float(own), _CONFIDENCE_GAP)
    due = EstimatorState(state.params, state.stats, estimator.refit_interval - 1, state.refits)
    device_estimator.load(due)
    sampled = torch.ones(1, dtype=torch.int32, device=device)
    device_estimator.step(first, sampled, sampled)
    _run_other_shapes(device_estimator, logits, confidence, temperature)
    clear(device_estimator, state)


def _run_other_shapes(device_estimator: Any, logits: Any, confidence: Any, temperature: Any) -> None:
    """Predict for rows that pad a graph, in all shapes that an engine of this size can come to; it changes nothing."""
    import torch

    from avsim.kernels.ops.predict import shapes

    device, vocab = logits.device, logits.shape[1]
    num_reqs, num_slots = confidence.shape
    row_bytes = vocab * logits.element_size()
    # Rows that overlap in memory, each beginning where one of the engine's could: nothing is read of them.
    between = 0 if row_bytes % 16 == 0 else 1
    held = logits.new_zeros(vocab + num_reqs * num_slots)
    # Autoregressive drafters have a row per request and one step for all, block drafters K rows and steps of their own.
    for most, per_row in ((num_reqs, False), (num_reqs * num_slots, True)):
        for rows in shapes(most, vocab):
            steps = torch.zeros(rows if per_row else (), dtype=torch.int32 if per_row else torch.int64, device=device)
            nobody = torch.full((rows,), -1, dtype=torch.int64, device=device)
            overlapping = held.as_strided((rows, vocab), (between, 1))
            device_estimator.predict(overlapping, nobody, steps, confidence, temperature)


def clear(device_estimator: Any, state: EstimatorState) -> None:
    """Set an estimator back to a state, with nothing drafted and nothing kept of any request."""
    device_estimator.load(state)
    for table in (device_estimator.features, device_estimator.predictions, device_estimator.memory):
        if table is not None:
            table.zero_()


def _compare(what: str, ours: float, theirs: float, gap: float) -> None:
    if not abs(ours - theirs) <= gap:
        raise RuntimeError(f"on this device the kernels give {what} {ours:.6g}, NumPy gives {theirs:.6g}")
