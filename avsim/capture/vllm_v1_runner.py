"""One V1 model runner's steps, turned into the recorder's calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avsim.capture.recorder import Recorder
from avsim.capture.reduce import feature_names, reduce_logits
from avsim.capture.vllm_facts import DRAFTERS_WITH_LOGITS, drafter_kind
from avsim.capture.vllm_stop import num_emitted
from avsim.types import F32Array

__all__ = ["CATEGORY", "RunnerCapture"]

CATEGORY = "avsim_category"
"""Key in `SamplingParams.extra_args` under which a request may carry its category."""


@dataclass(slots=True)
class _Step:
    keys: list[str]
    outputs: list[int]  # tokens each request had emitted before this step
    scheduled: dict[str, list[int]]
    num_target_tokens: int
    num_prefill_tokens: int
    kv_tokens: int
    forward_ms: float


@dataclass(slots=True)
class _Draft:
    keys: list[str]
    logits: list[dict[str, Any]] = field(default_factory=list)
    ids: list[list[int]] | None = None
    features: dict[str, F32Array] = field(default_factory=dict)
    drafter_ms: float = 0.0
    hook_ms: float = 0.0


class RunnerCapture:
    """Follows a runner step by step.

    Args:
        runner: vLLM's `GPUModelRunner`, or its subclass for the CPU.
        recorder: where everything goes.
        num_top: largest drafter logits to record.
    """

    def __init__(self, runner: Any, recorder: Recorder, num_top: int) -> None:
        self.runner = runner
        self.recorder = recorder
        self.num_top = num_top
        self.num_slots = int(runner.num_spec_tokens)
        self.names = feature_names(num_top) if self._watch_logits() else []
        self._live: dict[str, int] = {}  # output length by request
        self._step: _Step | None = None
        self._draft: _Draft | None = None

    def close(self) -> None:
        self.recorder.close()

    def begin_step(self, scheduler_output: Any) -> None:
        """Requests that left without a stop of their own were aborted, or stopped by something the runner can't see."""
        self._step = self._draft = None
        for key in scheduler_output.finished_req_ids:
            length = self._live.pop(key, None)
            if length is not None:
                self.recorder.finish_request(key, length, True)

    def after_forward(self, scheduler_output: Any, output: Any, forward_ms: float) -> None:
        """Note what the step runs, before sampling changes it. An output already here means that nothing is sampled."""
        if output is not None:
            return
        batch, requests = self.runner.input_batch, self.runner.requests
        keys = list(batch.req_ids)
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        outputs = [len(requests[key].output_token_ids) for key in keys]
        tokens = [scheduler_output.num_scheduled_tokens[key] for key in keys]
        prefill = [
            count if not before or count > 1 + len(scheduled.get(key, ())) else 0
            for key, count, before in zip(keys, tokens, outputs, strict=True)
        ]
        self._step = _Step(
            keys=keys,
            outputs=outputs,
            scheduled={key: list(ids) for key, ids in scheduled.items()},
            num_target_tokens=int(scheduler_output.total_num_scheduled_tokens),
            num_prefill_tokens=sum(prefill),
            kv_tokens=int(batch.num_computed_tokens_cpu[: len(keys)].sum()),
            forward_ms=forward_ms,
        )
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id not in self._live:
                self._start_request(new.req_id, requests[new.req_id])

    def begin_draft(self) -> None:
        self._draft = _Draft(keys=list(self.runner.input_batch.req_ids))

    def after_draft(self, drafted: Any, drafter_ms: float) -> None:
        draft = self._draft
        if draft is None:
            return
        draft.drafter_ms = drafter_ms - draft.hook_ms
        draft.ids = drafted.tolist() if hasattr(drafted, "tolist") else [list(ids) for ids in drafted]
        draft.features = self._features(draft, len(draft.ids)) if self.names else {}

    def end_step(self, output: Any) -> None:
        """Report the step: verdicts on the drafts it verified, the drafts it made, its sizes, and who finished."""
        step, draft = self._step, self._draft
        self._step = self._draft = None
        if step is None:
            return
        emitted = dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
        graded = [
            (key, before, len(emitted[key]), step.scheduled.get(key, []))
            for key, before in zip(step.keys, step.outputs, strict=True)
            if before > 0 and emitted.get(key) and key in self._live
        ]
        if graded:
            self.recorder.verify(
                [key for key, *_ in graded],
                [before - 1 for _, before, _, _ in graded],
                [len(ids) for *_, ids in graded],
                [count - 1 for _, _, count, _ in graded],
                self._padded([ids for *_, ids in graded]),
            )
        finished = self._advance(step, emitted)
        going_on = [key for key in step.keys if emitted.get(key) and key in self._live and key not in finished]
        if going_on:
            self._propose(going_on, draft)
        for key in finished:
            self.recorder.finish_request(key, self._live.pop(key), False)
        self.recorder.end_step(
            num_reqs=len(step.keys),
            num_target_tokens=step.num_target_tokens,
            num_prefill_tokens=step.num_prefill_tokens,
            kv_tokens=step.kv_tokens,
            forward_ms=step.forward_ms,
            drafter_ms=0.0 if draft is None else draft.drafter_ms,
            graph_mode="none" if self.runner.device.type == "cpu" else None,
        )

    def _start_request(self, key: str, request: Any) -> None:
        params = request.sampling_params
        self.recorder.start_request(
            key,
            prompt_len=request.num_prompt_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            category=(params.extra_args or {}).get(CATEGORY),
        )
        self._live[key] = 0

    def _advance(self, step: _Step, emitted: dict[str, list[int]]) -> set[str]:
        finished = set()
        for key, before in zip(step.keys, step.outputs, strict=True):
            if key in self._live:
                request = self.runner.requests[key]
                room = self.runner.max_model_len - request.num_prompt_tokens
                count, stopped = num_emitted(emitted.get(key, []), before, request.sampling_params, room)
                self._live[key] = before + count
                if stopped:
                    finished.add(key)
        return finished

    def _propose(self, keys: list[str], draft: _Draft | None) -> None:
        """Every request that goes on gets a proposal, of no slots where the drafter made none."""
        rows = {} if draft is None or draft.ids is None else {key: row for row, key in enumerate(draft.keys)}
        ids = [draft.ids[rows[key]] if draft is not None and draft.ids and key in rows else [] for key in keys]
        empty = np.full((len(keys), self.num_slots), np.nan, dtype=np.float32)
        features = {name: empty for name in self.names}
        if draft is not None and draft.features:
            features = {name: values[[rows[key] for key in keys]] for name, values in draft.features.items()}
        positions = [self._live[key] - 1 for key in keys]
        self.recorder.propose(keys, [len(row) for row in ids], features, self._padded(ids), positions)

    def _padded(self, ids: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        padded = np.full((len(ids), self.num_slots), -1, dtype=np.int64)
        for row, values in enumerate(ids):
            padded[row, : len(values)] = values
        return padded

    def _watch_logits(self) -> bool:
        """See the logits as the drafter's model returns them: sampling a draft divides them in place."""
        model = getattr(self.runner.drafter, "model", None)
        if drafter_kind(self.runner.speculative_config.method) not in DRAFTERS_WITH_LOGITS or model is None:
            return False
        if getattr(self.runner.drafter, "use_local_argmax_reduction", False):
            return False
        original = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = original(*args, **kwargs)
            attachment = getattr(self.runner, "_avsim_attachment", None)
            if attachment is not None and self._draft is not None:
                attachment.call("see_logits", logits)
            return logits

        model.compute_logits = compute_logits
        return True

    def see_logits(self, logits: Any) -> None:
        draft = self._draft
        if draft is None or draft.ids is not None:
            return
        start = time.perf_counter()
        temperature = self.runner.input_batch.sampling_metadata.temperature
        if temperature is not None:
            temperature = temperature.repeat_interleave(logits.shape[0] // temperature.shape[0])
        draft.logits.append(reduce_logits(logits, temperature, self.num_top))
        draft.hook_ms += (time.perf_counter() - start) * 1e3

    def _features(self, draft: _Draft, num_reqs: int) -> dict[str, F32Array]:
        """Bring the reduced logits, one call per slot or one call for all, to `[requests, K]` on the host."""
        if not draft.logits:
            return {}
        import torch

        features = {}
        for name in self.names:
            values = torch.stack([reduced[name] for reduced in draft.logits])
            values = values.view(num_reqs, -1) if len(values) == 1 else values.T
            features[name] = np.full((num_reqs, self.num_slots), np.nan, dtype=np.float32)
            features[name][:, : values.shape[1]] = values.numpy(force=True)
        probs = self.runner._draft_probs
        if probs is not None:
            drawn = torch.tensor(draft.ids, device=probs.device)[..., None]
            # What the drafter really drew from: it divides its logits in their own, coarser type.
            features["draft_logprob"] = probs.gather(2, drawn)[..., 0].log().numpy(force=True)
        return features
