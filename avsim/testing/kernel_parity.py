"""Run an estimator's kernels beside its NumPy form on one stream, step by step, and say how far apart they are.

Every operation starts from the device's own state and inputs, so a difference is that of one operation and does not
build up. It is measured against what float32 rounding alone can do:

* features: bounds counted from the roundings of the reduction, `feature_slack`;
* everything else: the NumPy operation is repeated with its inputs moved by a few units of rounding at random
  (Monte Carlo arithmetic), and the largest change, times `SAFETY`, is allowed. An operation that is ill-conditioned
  at this point of the stream thus gets the room that it needs, and a well-conditioned one gets none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.estimators.base import MEMORY, Estimator, EstimatorState
from avsim.kernels import device_estimator
from avsim.kernels.reference.logits import features as reference_features
from avsim.testing.kernel_slack import feature_slack, rounding_slack
from avsim.testing.kernel_stream import FreeRun, KernelStream, graded
from avsim.types import F32Array, IntArray

__all__ = ["Parity", "check_kernel_parity"]


@dataclass(slots=True)
class Parity:
    """How far kernels and NumPy were apart.

    Attributes:
        worst: by operation, the largest difference as a share of what rounding allows; above 1 is a failure.
        difference: by operation, the largest absolute difference.
        failures: what, where and by how much, at most the first of each operation.
        steps, refits, requests: how long the stream was.
        drift: largest |p| difference between the device and a NumPy run that goes its own way from the same start.
    """

    worst: dict[str, float] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    steps: int = 0
    refits: int = 0
    requests: int = 0
    drift: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every difference is explained by rounding."""
        return not self.failures

    def compare(self, what: str, ours: NDArray[Any], theirs: NDArray[Any], slack: NDArray[Any] | float) -> None:
        """Note one comparison; NaN and infinities must be in the same places."""
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.where(same, 0.0, np.abs(ours - theirs))
            share = np.where(same, 0.0, gap / np.asarray(slack, dtype=np.float64))
        gap, share = np.nan_to_num(gap, nan=np.inf), np.nan_to_num(share, nan=np.inf)
        worst = float(share.max(initial=0.0))
        self.difference[what] = max(self.difference.get(what, 0.0), float(gap.max(initial=0.0)))
        if worst > 1 and self.worst.get(what, 0.0) <= 1:
            place = np.unravel_index(int(share.argmax()), share.shape)
            at = ", ".join(str(int(index)) for index in place)
            self.failures.append(
                f"{what}[{at}] in step {self.steps}: kernel {theirs[place]:.9g}, NumPy {ours[place]:.9g}, "
                f"{worst:.3g} times what rounding allows"
            )
        self.worst[what] = max(self.worst.get(what, 0.0), worst)


def check_kernel_parity(
    estimator: Estimator,
    *,
    device: Any = "cpu",
    num_slots: int = 4,
    max_num_reqs: int = 8,
    vocab: int = 1_000,
    num_steps: int = 40,
    dtype: str = "float32",
    one_pass: bool = False,
    state: EstimatorState | None = None,
    seed: int = 0,
) -> Parity:
    """Run kernels and NumPy side by side on made-up logits and verdicts, in batches that come and go.

    Args:
        estimator: one of `avsim.kernels.ON_DEVICE`.
        device: of the kernels, as torch names it; `cpu` needs Triton's interpreter.
        num_slots: K.
        max_num_reqs: persistent slots; the batch is drawn anew in every step.
        vocab: of the drafter.
        num_steps: to run; the first refit comes after `estimator.refit_interval`.
        dtype: of the logits, float32, float16 or bfloat16.
        one_pass: whether all K slots are drafted at once, as block drafters do.
        state: to start from; None for a cold start.
        seed: of the stream.

    Raises:
        InputError: the estimator has no kernels.
    """
    import torch

    where = torch.device(device)
    kernels = device_estimator(estimator, max_num_reqs, num_slots, where)
    start = state or estimator.start(num_slots)
    kernels.load(start)
    engine = KernelStream(np.random.default_rng(seed), max_num_reqs, num_slots)
    confidence = torch.full((max_num_reqs, num_slots), torch.nan, device=where)
    temperature = torch.zeros(max_num_reqs, device=where)
    parity, own = Parity(), FreeRun(estimator, start, max_num_reqs, num_slots)
    rng = np.random.default_rng([seed, 1])
    for _ in range(num_steps):
        sampled, rejected = engine.verdicts(kernels.predictions.cpu().numpy())
        _compare_step(parity, estimator, kernels, engine, sampled, rejected, rng)
        own.step(engine.batch, sampled, rejected)
        for slot in engine.next_batch():
            kernels.reset(slot)
            own.memory[:, slot] = 0
            temperature[slot] = float(engine.temperature[slot])
        logits = torch.from_numpy(engine.logits(vocab)).to(where).to(getattr(torch, dtype))
        with np.errstate(all="ignore"):
            _predict(kernels, logits, engine, confidence, temperature, one_pass)
        given = logits.float().cpu().numpy()
        _compare_prediction(parity, estimator, kernels, engine, given, confidence.cpu().numpy(), rng)
        own.predict(engine.batch, kernels.features.cpu().numpy())
        live = kernels.predictions.cpu().numpy()[engine.batch]
        parity.drift = max(parity.drift, float(np.abs(live - own.confidence[engine.batch]).max(initial=0.0)))
        parity.steps += 1
    parity.refits, parity.requests = kernels.state().refits - start.refits, engine.requests
    return parity


def _compare_step(
    parity: Parity,
    estimator: Estimator,
    kernels: Any,
    engine: KernelStream,
    sampled: IntArray,
    rejected: IntArray,
    rng: np.random.Generator,
) -> None:
    """Let the device learn from one step, and compare with NumPy from the same state, features and predictions."""
    import torch

    batch, before = engine.batch, kernels.state()
    inputs = _held(kernels, estimator, batch)
    memory = {} if kernels.memory is None else {MEMORY: inputs[MEMORY]}
    as_int = [torch.from_numpy(array.astype(np.int32)).to(kernels.device) for array in (batch, sampled, rejected)]
    with np.errstate(all="ignore"):  # a kernel divides by zero without a word; Triton's interpreter, in NumPy, warns
        kernels.step(*as_int)
    after = kernels.state()

    def accumulate(moved: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return dict(estimator.accumulate(before.stats, graded(estimator, moved, sampled, rejected)))

    def refit(moved: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        params = {name: moved["p:" + name] for name in before.params}
        new, left = estimator.refit(params, {name: moved["s:" + name] for name in before.stats})
        return {f"params.{name}": value for name, value in new.items()} | {
            f"kept.{name}": value for name, value in left.items()
        }

    summed, room = accumulate(inputs), rounding_slack(accumulate, inputs, rng)
    if after.refits == before.refits:
        for name, value in summed.items():
            parity.compare(f"stats.{name}", value, after.stats[name], room[name])
    else:
        given = {"p:" + name: value for name, value in before.params.items()}
        given |= {"s:" + name: value for name, value in summed.items()}
        # What the last step's sums may be off by goes into the refit.
        slack = rounding_slack(refit, given, rng, 64, {"s:" + name: value for name, value in room.items()})
        found = {f"params.{name}": value for name, value in after.params.items()}
        found |= {f"kept.{name}": value for name, value in after.stats.items()}
        for name, value in refit(given).items():
            parity.compare(name, value, found[name], slack[name])
    if memory:

        def remember(moved: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return {MEMORY: estimator.remember(before.params, graded(estimator, moved, sampled, rejected))}

        slack = rounding_slack(remember, inputs, rng)
        parity.compare(MEMORY, remember(inputs)[MEMORY], kernels.memory.cpu().numpy()[batch].T, slack[MEMORY])


def _compare_prediction(
    parity: Parity,
    estimator: Estimator,
    kernels: Any,
    engine: KernelStream,
    logits: F32Array,
    confidence: F32Array,
    rng: np.random.Generator,
) -> None:
    """Compare features with those of the logits `[B, K, vocab]`, and p with NumPy's at the device's features."""
    batch, state = engine.batch, kernels.state()
    for slot in range(logits.shape[1]):
        rows, temperature = logits[:, slot], engine.temperature[batch]
        expected = reference_features(rows, temperature, estimator.features)
        for place, name in enumerate(estimator.features):
            found = kernels.features[place].cpu().numpy()[batch, slot]
            parity.compare(f"feature.{name}", expected[name], found, feature_slack(name, rows, temperature))
    inputs = _held(kernels, estimator, batch)
    inputs.pop("confidence")

    def predict(moved: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        read = {name: value for name, value in moved.items() if name in (*estimator.features, MEMORY)}
        return {"confidence": estimator.predict(state.params, read, (logits.shape[1], len(batch)))}

    slack = rounding_slack(predict, inputs, rng)["confidence"]
    held = kernels.predictions.cpu().numpy()[batch].T
    parity.compare("confidence", predict(inputs)["confidence"], held, slack)
    parity.compare("confidence handed on", held, confidence[: len(batch)].T, 0.0)


def _predict(
    kernels: Any, logits: Any, engine: KernelStream, confidence: Any, temperature: Any, one_pass: bool
) -> None:
    import torch

    rows, slots, vocab = logits.shape
    batch = torch.from_numpy(engine.batch.astype(np.int32)).to(logits.device)
    steps = torch.arange(slots, device=logits.device)
    if one_pass:
        flat = logits.reshape(rows * slots, vocab)
        kernels.predict(flat, batch.repeat_interleave(slots), steps.repeat(rows), confidence, temperature)
        return
    for slot in range(slots):
        kernels.predict(logits[:, slot], batch, steps[slot], confidence, temperature)


def _held(kernels: Any, estimator: Estimator, batch: IntArray) -> dict[str, NDArray[Any]]:
    """Return what the device holds of a batch, as NumPy has it: features and confidence `[K, B]`, memory `[D, B]`."""
    held = kernels.features.cpu().numpy()[:, batch].transpose(0, 2, 1)
    found: dict[str, NDArray[Any]] = dict(zip(estimator.features, held, strict=True))
    found["confidence"] = kernels.predictions.cpu().numpy()[batch].T
    if kernels.memory is not None:
        found[MEMORY] = kernels.memory.cpu().numpy()[batch].T
    return found
