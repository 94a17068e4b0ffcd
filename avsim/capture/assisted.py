"""Record Transformers' assisted generation: the same traces, for users without vLLM.

from avsim.capture.assisted import record_assisted

with record_assisted("capture", target, num_speculative_tokens=5):
    target.generate(**inputs, assistant_model=assistant)
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder
from avsim.capture.reduce import feature_names, reduce_logits
from avsim.capture.vllm_facts import hardware
from avsim.errors import InputError

__all__ = ["AssistedCapture", "record_assisted"]

_log = logging.getLogger("avsim.capture")


@contextmanager
def record_assisted(
    directory: str | Path, model: Any, *, num_speculative_tokens: int, category: str | None = None, **options: Any
) -> Iterator[AssistedCapture]:
    """Record every assisted or prompt-lookup `generate` call of a model until the block is left.

    Drafting is set to a constant `num_speculative_tokens` (Transformers' own schedule changes it as it goes); the
    assistant's confidence threshold is left as it is, so blocks may be shorter. Features are of the scores that drafts
    are chosen from, after temperature, top-k and top-p: call `generate` with `top_k=0` for the plain distribution.
    Transformers drafts before the first token has been emitted; that block has no position in a trace and is left out.

    Args:
        directory: for `avsim trace import capture`.
        model: the target, a Transformers model that can generate.
        num_speculative_tokens: K.
        category: of the requests recorded here.
        options: as in `CaptureConfig`.

    Raises:
        InputError: the model cannot be recorded, or an option is wrong.
    """
    if not hasattr(model, "_get_candidate_generator"):
        raise InputError(f"{type(model).__name__} has no assisted generation that could be recorded")
    if num_speculative_tokens < 1:
        raise InputError(f"num_speculative_tokens is {num_speculative_tokens}; it must be at least 1")
    capture = AssistedCapture(CaptureConfig(directory=Path(directory), **options), num_speculative_tokens, category)
    make = model._get_candidate_generator

    def get_candidate_generator(*args: Any, **kwargs: Any) -> Any:
        generator = make(*args, **kwargs)
        try:
            capture.watch(model, generator, **kwargs)
        except Exception as error:
            _log.warning("avsim: capture off: %s: %s", type(error).__name__, error)
        return generator

    model._get_candidate_generator = get_candidate_generator
    try:
        yield capture
    finally:
        del model._get_candidate_generator
        capture.close()


class AssistedCapture:
    """Follows the `generate` calls of one model; each is a request, each round of drafting a step."""

    def __init__(self, config: CaptureConfig, num_slots: int, category: str | None) -> None:
        self.recorder: Recorder | None = None
        self._config = config
        self._num_slots = num_slots
        self._category = category
        self._facts: dict[str, Any] = {}
        self._names = itertools.count()
        self._open: _Request | None = None

    def close(self) -> None:
        """End the last request and the log."""
        self._finish()
        if self.recorder is not None:
            self.recorder.close()

    def watch(
        self,
        model: Any,
        generator: Any,
        *,
        input_ids: Any,
        generation_config: Any,
        assistant_model: Any = None,
        **_: Any,
    ) -> None:
        """Begin a request, and record it by way of its candidate generator."""
        self._finish()
        samples = bool(generation_config.do_sample)
        facts = _facts(model, generator, assistant_model, self._num_slots, samples)
        if self.recorder is None or facts != self._facts:
            if self.recorder is not None:
                self.recorder.close()
            self.recorder, self._facts = Recorder(self._config, facts), facts
        for name in ("num_assistant_tokens", "num_output_tokens"):
            if hasattr(generator, name):
                setattr(generator, name, self._num_slots)
        if hasattr(generator, "assistant_generation_config"):
            generator.assistant_generation_config.num_assistant_tokens_schedule = "constant"
        key = str(next(self._names))
        self.recorder.start_request(
            key,
            prompt_len=int(input_ids.shape[1]),
            temperature=float(generation_config.temperature or 1.0) if samples else 0.0,
            top_p=generation_config.top_p if samples else None,
            category=self._category,
        )
        self._open = _Request(self.recorder, key, int(input_ids.shape[1]), self._config.top_m)
        self._open.hook(generator)

    def _finish(self) -> None:
        request, self._open = self._open, None
        if request is not None:
            request.finish()


class _Request:
    """One `generate` call. A step verifies the drafts of a round and then makes those of the next."""

    def __init__(self, recorder: Recorder, key: str, prompt_len: int, num_top: int) -> None:
        self.recorder = recorder
        self.keys = [key]
        self.prompt_len = prompt_len
        self.num_top = num_top
        self.emitted = 0
        self.drafted: Any = None
        self.drafted_at = 0.0
        self.step: dict[str, Any] = {}

    def hook(self, generator: Any) -> None:
        """Wrap the two calls that a candidate generator gets in every round."""
        draft, update = generator.get_candidates, generator.update_candidate_strategy

        def get_candidates(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            candidates, scores = draft(input_ids, *args, **kwargs)
            drafter_ms = (time.perf_counter() - start) * 1e3
            self._guard(self._propose, candidates[:, input_ids.shape[1] :], scores, drafter_ms)
            self.drafted_at = time.perf_counter()
            return candidates, scores

        def update_candidate_strategy(input_ids: Any, scores: Any, num_matches: Any) -> Any:
            self._guard(self._verify, input_ids, (time.perf_counter() - self.drafted_at) * 1e3)
            return update(input_ids, scores, num_matches)

        generator.get_candidates, generator.update_candidate_strategy = get_candidates, update_candidate_strategy

    def finish(self) -> None:
        self._end_step(0.0)
        self.recorder.finish_request(self.keys[0], self.emitted, False)

    def _guard(self, method: Any, *args: Any) -> None:
        if not self.recorder.active:
            return
        try:
            method(*args)
        except Exception as error:
            _log.warning("avsim: capture off: %s: %s", type(error).__name__, error)
            self.recorder.close()

    def _propose(self, drafted: Any, scores: Any, drafter_ms: float) -> None:
        self.drafted = drafted.cpu()
        if self.emitted:
            ids = self.drafted.numpy()
            self.recorder.propose(self.keys, [ids.shape[1]], self._features(scores), ids, [self.emitted - 1])
        self._end_step(drafter_ms)

    def _features(self, scores: Any) -> dict[str, Any]:
        if scores is None or not self.drafted.shape[1]:
            return {}
        reduced = reduce_logits(scores[0], None, self.num_top)
        features = {name: reduced[name].numpy(force=True)[None] for name in feature_names(self.num_top)}
        chosen = scores[0].float().log_softmax(-1).gather(1, self.drafted[0, :, None].to(scores.device))
        return features | {"draft_logprob": chosen.numpy(force=True).T}

    def _verify(self, input_ids: Any, forward_ms: float) -> None:
        """Tell the accepted drafts from the emitted tokens: Transformers' own count leaves out what an end cuts off."""
        emitted = input_ids[0, self.prompt_len + self.emitted :].tolist()
        drafted = self.drafted[0].tolist()
        differs = [one != other for one, other in zip(emitted, drafted, strict=False)]
        accepted = differs.index(True) if True in differs else len(differs)
        # Every emitted token was a draft: the output ended among them, so no verdict on the others is known.
        admitted = accepted if accepted == len(emitted) else len(drafted)
        if self.emitted:
            ids = self.drafted.numpy()
            self.recorder.verify(self.keys, [self.emitted - 1], [admitted], [accepted], ids)
        self.step = {
            "num_reqs": 1,
            "num_target_tokens": 1 + len(drafted) if self.emitted else self.prompt_len + len(drafted),
            "num_prefill_tokens": 0 if self.emitted else self.prompt_len,
            "kv_tokens": self.prompt_len + self.emitted - 1 if self.emitted else 0,
            "forward_ms": forward_ms,
            "graph_mode": None,
        }
        self.emitted += len(emitted)

    def _end_step(self, drafter_ms: float) -> None:
        step, self.step = self.step, {}
        if step:
            self.recorder.end_step(**step, drafter_ms=drafter_ms)


def _facts(model: Any, generator: Any, assistant: Any | None, num_slots: int, samples: bool) -> dict[str, Any]:
    drafts_have_scores = type(generator).__name__ != "PromptLookupCandidateGenerator"
    return {
        "target": Path(str(model.config.name_or_path)).name or type(model).__name__,
        "drafter": _drafter(generator, assistant),
        "drafter_kind": _KINDS.get(type(generator).__name__, "unknown"),
        "num_speculative_tokens": num_slots,
        "draft_sampling": "probabilistic" if samples and drafts_have_scores else "greedy",
        "acceptance_rule": "standard" if samples else "greedy-match",
        "engine": "transformers",
        "engine_version": version("transformers"),
        "hardware": hardware(model.device),
        "adaptive_verification": False,
        "vocab_size": int(model.config.get_text_config().vocab_size),
        "complete_blocks": False,
    }


_KINDS = {
    "AssistedCandidateGenerator": "draft-model",
    "EarlyExitCandidateGenerator": "draft-model",
    "PromptLookupCandidateGenerator": "ngram",
    "MTPCandidateGenerator": "mtp",
    "DFlashTokenCandidateGenerator": "dflash",
}


def _drafter(generator: Any, assistant: Any | None) -> str:
    if assistant is None:
        return type(generator).__name__.removesuffix("CandidateGenerator")
    return Path(str(assistant.config.name_or_path)).name or type(assistant).__name__
