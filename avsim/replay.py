"""The open loop: the steps of an on-policy trace, judged one by one under another policy.

    blocks → features → estimator → survival → policy → observe → accumulate … refit every R steps

All steps between two refits are one array operation. The batches stay as recorded, so a policy's own effect on
later batches is missing: the result is an approximation and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.epochs import Epoch, epochs
from avsim.errors import InputError
from avsim.estimators.base import MEMORY, Arrays, EstimatorState, advance
from avsim.metrics.calibration import Calibration
from avsim.policies.base import NO_LOGIT_LIMIT, StepBatch
from avsim.simulate import Arm, Totals
from avsim.sources.base import Trace
from avsim.types import F32Array, F64Array, IntArray, Observations
from avsim.workload import keyed_uniform

__all__ = ["OpenLoopResult", "replay"]

_PLAIN_EPOCH = 100


@dataclass(frozen=True, slots=True)
class OpenLoopResult:
    """One arm over a whole trace.

    Attributes:
        sums: steps, blocks, drafted, admitted, accepted, emitted, ms of each source unit, float64 `[7, units]`: each
            request carries its own tokens and an equal share of the time of its steps.
        calibration: scores of the confidences on all reached slots; None for a policy that reads none.
        state: the estimator's final state.
    """

    sums: F64Array
    calibration: Calibration | None
    state: EstimatorState | None

    def totals(self, weights: F64Array) -> Totals:
        """Return totals with source units weighted, `[runs]` for weights `[runs, units]`."""
        sums = weights @ self.sums.T
        counts = np.rint(sums[:, :6]).astype(np.int64).T
        steps, blocks, drafted, admitted, accepted, emitted = counts
        return Totals(steps, blocks, drafted, admitted, accepted, emitted, np.zeros_like(steps), sums[:, 6])


def replay(
    trace: Trace,
    arms: Sequence[Arm],
    truth: CostModel,
    *,
    belief: CostModel | None = None,
    num_slots: int | None = None,
    max_total_logits: int = NO_LOGIT_LIMIT,
    warm_refits: int = 0,
    min_rows: int = 1 << 16,
) -> list[OpenLoopResult]:
    """Replay an on-policy trace under several arms, streaming it once per refit interval in use.

    Args:
        trace: an on-policy trace.
        arms: what to compare.
        truth, belief, max_total_logits: as in `simulate`.
        num_slots: truncate the recorded K.
        warm_refits: leave the steps before this many refits out of the sums; the estimators learn from them.

    Raises:
        InputError: the trace is dense, or lacks a feature that an arm reads.
    """
    if trace.card.kind != "on-policy":
        raise InputError(f"{trace.path}: a dense trace has no steps; replay it in a closed loop (--loop closed)")
    if any(arm.lag > 1 for arm in arms):
        raise InputError("an open loop knows lag 0 and 1 only")
    for arm in arms:
        if arm.policy.plans or arm.policy.memory_size(1):
            raise InputError(
                f"policy {arm.policy.name} decides from step to step, and the steps of an on-policy trace are given; "
                "replay a dense trace"
            )
    slots = num_slots or trace.card.num_speculative_tokens
    _, unit = np.unique(trace.requests["source"].to_numpy(), return_inverse=True)
    output_len = trace.requests["output_len"].to_numpy().astype(np.int64)
    recorded = _recorded_steps(trace)
    players = [_Player(arm, truth, belief, slots, unit, output_len, recorded, max_total_logits) for arm in arms]
    warm_steps = warm_refits * max(player.refit_interval for player in players)
    wanted = sorted({name for arm in arms if arm.estimator for name in arm.estimator.features} - {"label"})
    for interval in sorted({player.interval for player in players}):
        due = [player for player in players if player.interval == interval]
        first = None
        for epoch in epochs(trace.iter_blocks(wanted, num_slots=num_slots, min_rows=min_rows), interval):
            batch = Epoch(epoch, interval, slots, trace.card.complete_blocks)
            first = batch.first_step if first is None else first
            for player in due:
                player.play(batch, counted=batch.first_step >= first + warm_steps)
    if not players[0].sums[1].any():
        raise InputError(
            f"{trace.path}: the trace ends within its first {warm_steps} steps, which warm the estimators up; "
            "record more, or pass --warm-refits 0"
        )
    return [OpenLoopResult(player.sums, player.calibration, player.state) for player in players]


def _recorded_steps(trace: Trace) -> tuple[IntArray, IntArray, IntArray] | None:
    """Return `(step, num_reqs, num_target_tokens)` as recorded, sorted by step, where the trace has them."""
    frame = trace.steps()
    if frame is None or not {"step", "num_reqs", "num_target_tokens"} <= set(frame.columns):
        return None
    frame = frame.sort("step")
    step, reqs, tokens = (frame[name].to_numpy().astype(np.int64) for name in ("step", "num_reqs", "num_target_tokens"))
    return step, reqs, tokens


class _Player:
    """One arm, with what it carries from epoch to epoch."""

    def __init__(
        self,
        arm: Arm,
        truth: CostModel,
        belief: CostModel | None,
        num_slots: int,
        unit: IntArray,
        output_len: IntArray,
        recorded: tuple[IntArray, IntArray, IntArray] | None,
        max_total_logits: int,
    ):
        self.arm, self.truth, self.unit, self.output_len, self.recorded = arm, truth, unit, output_len, recorded
        self.reader = truth if belief is None or arm.policy.uses_truth else belief
        self.num_slots = num_slots
        self.depth = arm.policy.depth(num_slots)
        self.max_total_logits = max_total_logits
        self.estimator = arm.estimator if arm.policy.uses_confidence else None
        self.refit_interval = self.estimator.refit_interval if self.estimator else _PLAIN_EPOCH
        # What an estimator keeps of each request changes with every step, so its epochs are single steps.
        self.interval = 1 if self.estimator and self.estimator.memory_size else self.refit_interval
        self.state = self.estimator.start(num_slots) if self.estimator else None
        self.calibration = Calibration(num_slots) if self.estimator else None
        size = self.estimator.memory_size if self.estimator else 0
        self.memory = np.zeros((size, len(output_len)), dtype=np.float32)
        self.params: dict[int, Arrays] = {}
        self.first_step: int | None = None
        self.tables = CostTables(np.zeros(0), np.zeros(0))
        self.next_epoch: int | None = None
        self.seen_step = np.full(len(output_len), -1)
        self.seen = np.ones((num_slots, len(output_len)), dtype=np.float32) if self.estimator else None
        units = int(unit.max()) + 1
        self.sums = np.zeros((7, units))

    def play(self, epoch: Epoch, *, counted: bool) -> None:
        blocks = epoch.blocks
        confidence, sizing = self._confidences(epoch)
        available = np.minimum(epoch.charged, self.depth)
        num_reqs, target_tokens = self._batch_sizes(epoch)
        self._grow_tables(int(num_reqs.max()), int(target_tokens.max()) + self.depth * epoch.width)
        remaining = self.output_len[blocks.request] - 1 - blocks.position
        step = StepBatch(
            epoch.grid(confidence),
            epoch.grid(sizing),
            epoch.grid(available),
            num_reqs,
            epoch.counts,
            target_tokens,
            self.tables,
            epoch.grid(blocks.num_accepted) if self.arm.policy.uses_truth else None,
            epoch.grid(remaining) if self.arm.policy.uses_truth else None,
            self.max_total_logits,
            epoch.grid(keyed_uniform(blocks.request, blocks.position)) if self.arm.policy.explores else None,
        )
        admitted = epoch.rows(self.arm.policy.admit(step))
        accepted = np.minimum(blocks.num_accepted, admitted)
        self._learn(epoch, confidence, admitted, accepted, counted)
        if not counted:
            return
        verified = np.add.reduceat(admitted, epoch.starts[:-1])
        shape = StepShape(num_reqs, target_tokens + verified, np.zeros(len(num_reqs)), target_tokens - epoch.counts)
        share = 1.0 / epoch.counts
        ms = self.truth.step_ms(shape, drafting=self.arm.policy.drafts) * share
        emitted = np.minimum(accepted + 1, remaining)
        unit = self.unit[blocks.request]
        first = unit.min()
        unit -= first
        columns = (
            np.repeat(share, epoch.counts), np.ones(len(blocks)), available, admitted, accepted, emitted,
            np.repeat(ms, epoch.counts),
        )  # fmt: skip
        for total, column in zip(self.sums, columns, strict=True):
            added = np.bincount(unit, column)
            total[first : first + len(added)] += added

    def _confidences(self, epoch: Epoch) -> tuple[F32Array, F32Array]:
        blocks = epoch.blocks
        if self.estimator is None or self.state is None or self.seen is None or blocks.step is None:
            unread = np.broadcast_to(np.float32(1), (self.num_slots, len(blocks)))
            return unread, unread
        if self.first_step is None:
            self.first_step = epoch.first_step
        self._catch_up(epoch)
        self.params[self._refit_of(epoch.first_step)] = self.state.params
        features = self._features(epoch)
        confidence = self.estimator.predict(self.state.params, features, (self.num_slots, len(blocks)))
        here = epoch.previous >= 0
        previous_step = np.where(here, blocks.step[epoch.previous], self.seen_step[blocks.request])
        gap = blocks.step - previous_step
        # A request left out of the steps before was drafted under older parameters.
        stale = np.flatnonzero((previous_step >= 0) & (previous_step < epoch.first_step - 1))
        if len(stale):
            confidence = confidence.copy()
            drafted_in = self._refit_of(previous_step[stale] + 1)
            for index in np.unique(drafted_in):
                rows = stale[drafted_in == index]
                old = {name: array[:, rows] for name, array in features.items()}
                params = self.params.get(int(index), self.state.params)
                confidence[:, rows] = self.estimator.predict(params, old, (self.num_slots, len(rows)))
        if self.arm.lag == 0:
            sizing = confidence
        else:
            sizing = confidence.take(epoch.previous, axis=1)
            for rows, source in (
                (np.flatnonzero(~here), self.seen[:, blocks.request[~here]]),
                (np.flatnonzero(gap >= 2), confidence[:, gap >= 2]),
            ):
                sizing[:, rows] = source
            sizing[:, np.flatnonzero(previous_step < 0)] = 1.0
        last = blocks.request[epoch.last]
        self.seen[:, last] = confidence[:, epoch.last]
        self.seen_step[last] = blocks.step[epoch.last]
        return confidence, sizing

    def _features(self, epoch: Epoch) -> dict[str, F32Array]:
        assert self.estimator is not None
        label = epoch.accepted.astype(np.float32)
        columns = {name: label if name == "label" else epoch.features[name] for name in self.estimator.features}
        if self.estimator.memory_size:
            columns[MEMORY] = self.memory[:, epoch.blocks.request]
        return columns

    def _refit_of(self, step: Any) -> Any:
        """Return how many refits came before a step was drafted for."""
        assert self.first_step is not None
        return (step - self.first_step) // self.refit_interval

    def _catch_up(self, epoch: Epoch) -> None:
        """Steps without any draft count towards the next refit as well."""
        while self.estimator and self.state and self.next_epoch is not None and self.next_epoch < epoch.index:
            self.state = advance(self.estimator, self.state, None, self.interval)
            self.next_epoch += 1

    def _learn(self, epoch: Epoch, confidence: F32Array, admitted: IntArray, accepted: IntArray, counted: bool) -> None:
        if self.estimator is None or self.state is None or self.calibration is None:
            return
        if counted:
            self.calibration.add(confidence, epoch.accepted, epoch.reached)
        graded = np.minimum(admitted, epoch.blocks.num_admitted)
        seen = Observations.grade(self._features(epoch), confidence, graded, accepted, epoch.starts, epoch.blocks.unfit)
        if self.estimator.memory_size:
            self.memory[:, epoch.blocks.request] = self.estimator.remember(self.state.params, seen)
        self.state = advance(self.estimator, self.state, seen, self.interval)
        self.next_epoch = epoch.index + 1

    def _batch_sizes(self, epoch: Epoch) -> tuple[IntArray, IntArray]:
        if self.recorded is None:
            return epoch.counts, epoch.counts
        step, reqs, tokens = self.recorded
        at = np.minimum(np.searchsorted(step, epoch.steps), len(step) - 1)
        known = step[at] == epoch.steps
        # A verified draft is a target token to the engine; what the budget adds to is the rest.
        drafts = np.add.reduceat(epoch.blocks.num_admitted, epoch.starts[:-1])
        rest = np.maximum(tokens[at] - drafts, epoch.counts)
        return np.where(known, np.maximum(reqs[at], epoch.counts), epoch.counts), np.where(known, rest, epoch.counts)

    def _grow_tables(self, num_reqs: int, num_tokens: int) -> None:
        if num_reqs >= len(self.tables.draft) or num_tokens >= len(self.tables.verify):
            self.tables = self.reader.tables(num_reqs, num_tokens)
