"""vLLM's `--per-request-spec-decode-metrics detailed`: counts of drafted and accepted tokens by step, per response."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl

from avsim.errors import InputError
from avsim.sources.card import TraceCard
from avsim.sources.importers.base import Imported, Importer
from avsim.sources.importers.vllm_responses import READS, Response, read_responses

__all__ = ["VllmMetrics"]


@dataclass(frozen=True)
class VllmMetrics(Importer):
    """Imports completion and chat responses as vLLM served them, each with `metrics.speculative_decoding`.

    Reads JSON (one response, or a list) and JSON lines: responses, streamed events (`data: …`; the last chunk holds
    the metrics), or the output of `vllm run-batch`. A request's i-th entry of `per_step_drafted` and
    `per_step_accepted` is its i-th block; it starts where the accepted and bonus tokens of the entries before end.

    There are no features and no batches: vLLM does not say which requests shared a step, so requests follow each
    other, one block a step. vLLM counts the drafts that were *scheduled*, as its scheduler sees them. Adaptive
    verification trims later, on the GPU, so with it on the trimmed slots read as rejected: such files are refused.

    Attributes:
        temperature: of all requests; a response does not say it.
        num_speculative_tokens: K; by default the `num_spec_tokens` of the responses.
        adaptive_verification: whether it was on; a response does not say that either.
        acceptance_rule: by default `greedy-match` at temperature 0, else `standard`.
        title: name of the trace; by default made of the target and the kind of drafter.
    """

    name: ClassVar[str] = "vllm-metrics"
    reads: ClassVar[str] = READS
    positional: ClassVar[str] = "temperature"

    temperature: float
    num_speculative_tokens: int | None = None
    adaptive_verification: bool = False
    target: str | None = None
    drafter: str = "unknown"
    drafter_kind: Literal["eagle", "mtp", "dflash", "dspark", "draft-model", "ngram", "medusa", "unknown"] = "unknown"
    draft_sampling: Literal["greedy", "probabilistic"] = "greedy"
    acceptance_rule: Literal["standard", "block", "greedy-match"] | None = None
    hardware: str = "unknown"
    prompts: str = "unknown"
    licence: str = "unknown"
    title: str | None = None

    def read(self, source: Path) -> Imported:
        if self.adaptive_verification:
            raise InputError(
                f"{source}: with adaptive verification on, vLLM counts trimmed drafts as rejected, so its counts are "
                "no labels; record with the capture hooks (importer 'capture'), or with adaptive verification off"
            )
        responses, without = read_responses(source)
        if not any(response.accepted for response in responses):
            told = f"{without} responses have no metrics.speculative_decoding" if without else "no responses"
            raise InputError(f"{source}: no steps ({told}); this importer reads {self.reads}")
        card = self._card(source, responses, without)
        lengths = [response.output_len or response.emitted for response in responses]
        requests = pl.DataFrame(
            {
                "request": range(len(responses)),
                "source": _sources(responses),
                "prompt_len": [response.prompt_len or 0 for response in responses],
                "output_len": lengths,
                "temperature": [float(self.temperature)] * len(responses),
            }
        )
        return Imported(card, requests, [_blocks(responses)])

    def _card(self, source: Path, responses: list[Response], without: int) -> TraceCard:
        stated = {response.num_slots for response in responses if response.num_slots is not None}
        most = max(max(response.drafted, default=0) for response in responses)
        if len(stated) > 1 and self.num_speculative_tokens is None:
            raise InputError(
                f"{source}: num_spec_tokens differs ({_listed(stated)}); import each engine's responses apart"
            )
        num_slots = self.num_speculative_tokens or next(iter(stated), most)
        if most > num_slots:
            where = next(response.where for response in responses if most in response.drafted)
            raise InputError(f"{where}: a step drafted {most} tokens, but K is {num_slots}")
        models = {response.model for response in responses if response.model is not None}
        if len(models) > 1 and self.target is None:
            raise InputError(f"{source}: responses of several models ({_listed(models)}); import each model's apart")
        target = self.target or next(iter(models), "unknown")
        versions = {response.fingerprint for response in responses}
        version = re.match(r"vllm-([^-]+)", versions.pop() or "") if len(versions) == 1 else None
        title = self.title or "-".join([target.rsplit("/", 1)[-1], self.drafter_kind, "vllm-metrics"])
        greedy = self.temperature == 0
        return TraceCard(
            name=re.sub(r"[^A-Za-z0-9._-]+", "-", title).lstrip("._-") or "vllm-metrics",
            kind="on-policy",
            target=target,
            drafter=self.drafter,
            drafter_kind=self.drafter_kind,
            num_speculative_tokens=num_slots,
            draft_sampling=self.draft_sampling,
            acceptance_rule=self.acceptance_rule or ("greedy-match" if greedy else "standard"),
            temperature=float(self.temperature),
            engine="vLLM",
            engine_version=version[1] if version else None,
            hardware=self.hardware,
            prompts=self.prompts,
            licence=self.licence,
            complete_blocks=True,
            notes=_notes(responses, without, bool(stated), self.num_speculative_tokens),
        )


def _sources(responses: list[Response]) -> list[int]:
    first: dict[tuple[int, ...], int] = {}
    return [
        number if response.prompt is None else first.setdefault(response.prompt, number)
        for number, response in enumerate(responses)
    ]


def _blocks(responses: list[Response]) -> pl.DataFrame:
    accepted = np.array([count for response in responses for count in response.accepted], dtype=np.int64)
    drafted = np.array([count for response in responses for count in response.drafted], dtype=np.int64)
    request = np.repeat(np.arange(len(responses)), [len(response.accepted) for response in responses])
    before = np.cumsum(accepted + 1) - (accepted + 1)
    start = before[np.searchsorted(request, request)]
    return pl.DataFrame(
        {
            "step": np.arange(len(request)),
            "request": request,
            "position": before - start,
            "num_drafted": drafted,
            "num_admitted": drafted,
            "num_accepted": accepted,
        }
    )


def _notes(responses: list[Response], without: int, stated: bool, chosen: int | None) -> str:
    silent = [max(r.output_len - r.emitted, 0) for r in responses if r.output_len is not None]
    no_prompt = sum(response.prompt_len is None for response in responses)
    no_output = sum(response.output_len is None for response in responses)
    idle = sum(not response.accepted for response in responses)
    parts = {
        "Counts of vLLM's scheduler, no features": True,
        "vLLM does not say which requests shared a step: here they follow each other, one block a step, so batches are "
        "not those of the engine": True,
        "drafted are the tokens scheduled for verification, less those that a grammar made invalid, and all are taken "
        "as admitted: adaptive verification is taken to have been off, as trimmed slots would read as rejected": True,
        "K is the largest per_step_drafted, since no response states num_spec_tokens": not stated and chosen is None,
        f"{without} responses without metrics were left out": without,
        f"{idle} requests have no step": idle,
        f"{sum(silent)} output tokens of {sum(count > 0 for count in silent)} requests come from steps without a "
        "draft, of which vLLM keeps no entry: positions after such a step are too low": sum(silent),
        f"prompt_len is unknown, and 0 here, for {no_prompt} requests without usage": no_prompt,
        f"output_len of {no_output} requests without usage is what their steps emitted, past the end too": no_output,
    }
    return "; ".join(text for text, present in parts.items() if present) + "."


def _listed(values: set[Any]) -> str:
    return ", ".join(str(value) for value in sorted(values))
