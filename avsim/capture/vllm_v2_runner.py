"""One V2 model runner's steps, turned into the recorder's calls once they have arrived on the host."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avsim.capture.recorder import Recorder
from avsim.capture.reduce import feature_names
from avsim.capture.vllm_stop import num_emitted
from avsim.capture.vllm_v1_runner import CATEGORY
from avsim.capture.vllm_v2_device import DeviceTables, HostStep
from avsim.capture.vllm_v2_facts import feature_source, graph_mode, has_confidence

__all__ = ["RunnerCapture"]

MAX_BEHIND = 16
"""Steps that may wait for the device; a healthy engine has two in flight."""

_WARM_UP = ("_warmup_", "_v2_mixed_warmup")


@dataclass(slots=True)
class _Request:
    prompt_len: int
    params: Any
    num_outputs: int


@dataclass(slots=True)
class _Step:
    """A step from its scheduling until it is reported; marks are what `DeviceTables.now` returns."""

    left: list[str]
    started: list[tuple[str, _Request]]
    batch: Any = None
    scheduled: Any = None
    full_cudagraph: bool | None = None
    has_features: bool = False
    marks: dict[str, Any] = field(default_factory=dict)
    copy: HostStep | None = None


class RunnerCapture:
    """Follows a runner step by step; the step before the newest is reported while the newest one runs.

    Args:
        runner: vLLM's V2 `GPUModelRunner`, or its subclass for the CPU.
        recorder: where everything goes.
        num_top: largest drafter logits to record.
    """

    def __init__(self, runner: Any, recorder: Recorder, num_top: int) -> None:
        self.runner = runner
        self.recorder = recorder
        self.num_slots = int(runner.num_speculative_steps)
        names = feature_names(num_top) if feature_source(runner) else []
        self.has_confidence = has_confidence(runner)
        self.tables = DeviceTables(
            int(runner.max_num_reqs),
            self.num_slots,
            names,
            num_top,
            runner.device,
            with_confidence=self.has_confidence,
        )
        self._live: dict[str, _Request] = {}
        self._step: _Step | None = None
        self._waiting: deque[_Step] = deque()

    def finish(self) -> None:
        """Wait for what is still on its way, report it and end the recording; for when the engine has ended."""
        if self.recorder.active:
            for step in self._waiting:
                if step.copy is not None:
                    step.copy.wait()
        self.close()

    def close(self) -> None:
        """Report what has arrived, then end the recording."""
        try:
            if self.recorder.active:
                self._report_ready(0)
        finally:
            self.recorder.close()

    def see_logits(self, logits: Any, slots: Any, draft_step: Any) -> None:
        self.tables.write(logits, slots, draft_step, self.runner.speculator.temperature)

    def begin_step(self, scheduler_output: Any) -> None:
        new = scheduler_output.scheduled_new_reqs
        keys = (*scheduler_output.finished_req_ids, *scheduler_output.num_scheduled_tokens)
        self._step = None
        if any(key.startswith(_WARM_UP) for key in keys):
            return  # made up by the engine
        started = []
        for data in new:
            # A request that was preempted comes back with the tokens that it had emitted.
            num_outputs = len(data.prefill_token_ids) - data.prompt_len
            started.append((data.req_id, _Request(data.prompt_len, data.sampling_params, num_outputs)))
        step = _Step(sorted(scheduler_output.finished_req_ids), started)
        if scheduler_output.total_num_scheduled_tokens:
            self._step = step
        else:
            self._waiting.append(step)
            self._report_ready(0)

    def begin_forward(self, full_cudagraph: bool) -> None:
        if self._step is not None:
            self._step.full_cudagraph = bool(full_cudagraph)
            self._mark("forward")

    def after_forward(self) -> None:
        self._mark("forward_end")

    def begin_draft(self) -> None:
        self._mark("draft")

    def end_draft(self) -> None:
        self._mark("draft_end")

    def before_sampling(self) -> None:
        """Take the drafts that are about to be verified: drafting writes over them."""
        step, state = self._step, self.runner.execute_model_state
        if step is not None and state is not None:
            step.batch = state.input_batch
            step.scheduled = self.runner.req_states.draft_tokens[step.batch.idx_mapping]

    def end_step(self, output: Any) -> None:
        """Send the step on its way to the host, and report what has arrived of earlier ones."""
        step, self._step = self._step, None
        if step is None or step.batch is None:
            return
        slots, sampled = step.batch.idx_mapping, output.sampler_output
        speculator = self.runner.speculator
        drafted = self.runner.req_states.draft_tokens[slots]
        draft_logits = getattr(speculator, "draft_logits", None)
        drawn = None if draft_logits is None else (draft_logits, drafted, speculator.temperature)
        numbers = (sampled.sampled_token_ids, sampled.num_sampled, sampled.num_rejected, step.scheduled, drafted)
        step.has_features = self.tables.seen
        # By row of the batch, not by slot.
        confidence = speculator.draft_token_confidence_probs[: len(slots)] if self.has_confidence else None
        step.copy = self.tables.copy(slots, numbers, drawn, confidence)
        step.scheduled = None
        self._waiting.append(step)
        self._report_ready(1)
        if len(self._waiting) > MAX_BEHIND:
            raise RuntimeError(f"the device is more than {MAX_BEHIND} steps behind")

    def _mark(self, name: str) -> None:
        if self._step is not None:
            self._step.marks[name] = self.tables.now()

    def _report_ready(self, num_kept: int) -> None:
        while len(self._waiting) > num_kept:
            copy = self._waiting[0].copy
            if copy is not None and not copy.ready():
                return
            self._report(self._waiting.popleft())

    def _report(self, step: _Step) -> None:
        """Requests that left without a stop of their own were aborted, or stopped by what the runner can't see."""
        for key in step.left:
            request = self._live.pop(key, None)
            if request is not None:
                self.recorder.finish_request(key, request.num_outputs, True)
        for key, request in step.started:
            params = request.params
            self.recorder.start_request(
                key,
                prompt_len=request.prompt_len,
                temperature=params.temperature,
                top_p=params.top_p,
                category=(params.extra_args or {}).get(CATEGORY),
            )
            self._live[key] = request
        if step.copy is None:
            return
        batch = step.batch
        sampled, num_sampled, num_rejected, scheduled, drafted = step.copy.columns()
        # Requests that ended in an earlier step may be in this one: the engine schedules ahead.
        live = [self._live.get(key) for key in batch.req_ids]
        before = np.array([-1 if request is None else request.num_outputs for request in live])
        kv_tokens = self._kv_tokens(batch, live)
        emitting = (num_sampled[:, 0] > 0) & (before >= 0)
        graded = np.flatnonzero(emitting & ~batch.is_prefilling_np)
        if len(graded):
            accepted = num_sampled[graded, 0] - 1
            self.recorder.verify(
                [batch.req_ids[row] for row in graded],
                before[graded] - 1,
                accepted + num_rejected[graded, 0],
                accepted,
                scheduled[graded],
            )
        finished, going_on = [], []
        for row in np.flatnonzero(emitting).tolist():
            key, request = batch.req_ids[row], live[row]
            assert request is not None
            tokens = sampled[row, : num_sampled[row, 0]].tolist()
            room = self.runner.max_model_len - request.prompt_len
            count, stopped = num_emitted(tokens, request.num_outputs, request.params, room)
            request.num_outputs += count
            if stopped:
                finished.append(key)
            else:
                going_on.append(row)
        if going_on:
            self._propose(step, going_on, drafted)
        for key in finished:
            self.recorder.finish_request(key, self._live.pop(key).num_outputs, False)
        self._end(step, kv_tokens)
        self.tables.release(step.copy)

    def _propose(self, step: _Step, rows: list[int], drafted: Any) -> None:
        assert step.copy is not None
        keys = [step.batch.req_ids[row] for row in rows]
        ids = drafted[rows]
        # Drafts that the engine did not ask for are −1, behind the others.
        num_drafted = np.cumprod(ids >= 0, axis=1).sum(axis=1)
        names = self.tables.names if step.has_features else []
        features = {name: step.copy.feature(at)[rows] for at, name in enumerate(names)}
        positions = np.array([self._live[key].num_outputs - 1 for key in keys])
        self.recorder.propose(keys, num_drafted, features, ids, positions)

    def _kv_tokens(self, batch: Any, live: list[_Request | None]) -> int:
        """Tokens in the cache before the step; the engine's own count on the host is only an upper bound."""
        total = 0
        for row, request in enumerate(live):
            if batch.is_prefilling_np[row]:
                total += int(batch.num_computed_prefill_tokens_np[row])
            elif request is None:
                total += int(batch.num_computed_tokens_np[row])
            else:
                total += request.prompt_len + request.num_outputs - 1
        return total

    def _end(self, step: _Step, kv_tokens: int) -> None:
        batch, marks = step.batch, step.marks
        tokens = batch.num_scheduled_tokens
        if batch.num_draft_tokens_per_req is not None:
            tokens = tokens - batch.num_draft_tokens_per_req
        self.recorder.end_step(
            num_reqs=int(batch.num_reqs),
            num_target_tokens=int(batch.num_tokens),
            num_prefill_tokens=int(tokens[batch.is_prefilling_np].sum()),
            kv_tokens=kv_tokens,
            forward_ms=self.tables.ms(marks.get("forward"), marks.get("forward_end")),
            drafter_ms=self.tables.ms(marks.get("draft"), marks.get("draft_end")),
            graph_mode=graph_mode(self.runner, step.full_cudagraph),
        )
