"""vLLM's responses: finding the per-request counts of speculative decoding in JSON, JSON lines and event streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avsim.errors import InputError
from avsim.sources.parquet import reading

__all__ = ["READS", "Response", "read_responses"]

READS = "a .json or .jsonl file of vLLM responses (--per-request-spec-decode-metrics detailed)"


@dataclass(frozen=True, slots=True)
class Response:
    """The counts of one response; None where it does not say.

    Attributes:
        where: file and line or item, for messages.
        accepted, drafted: counts by step.
        num_slots: K.
        prompt: token ids, where the client asked for them.
    """

    where: str
    accepted: list[int]
    drafted: list[int]
    num_slots: int | None
    prompt_len: int | None
    output_len: int | None
    model: str | None
    fingerprint: str | None
    prompt: tuple[int, ...] | None

    @property
    def emitted(self) -> int:
        """Tokens that the recorded steps account for: the prefill's, and A + 1 of each step."""
        return 1 + sum(self.accepted) + len(self.accepted)


def read_responses(source: Path) -> tuple[list[Response], int]:
    """Parse every response that has metrics, and count those without.

    Raises:
        InputError: not JSON, no responses, no counts by step, counts that contradict each other, or a response twice.
    """
    found: dict[str, Response] = {}
    seen: set[str] = set()
    for where, document in _documents(source):
        inner = _unwrapped(document)
        if not isinstance(inner, Mapping):
            raise InputError(f"{where}: not a response; this importer reads {READS}")
        name = inner.get("id")
        key = name if isinstance(name, str) else where
        seen.add(key)
        metrics = inner.get("metrics")
        counts = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if not isinstance(counts, Mapping):
            continue
        if key in found:
            raise InputError(f"{where}: response {key!r} is there twice, first in {found[key].where}; drop one")
        found[key] = _parse(inner, counts, where)
        _check_length(found[key])
    return list(found.values()), len(seen) - len(found)


def _documents(source: Path) -> Iterator[tuple[str, Any]]:
    with reading(source):
        text = source.read_text(encoding="utf-8-sig")
    try:
        whole = json.loads(text)
    except RecursionError:
        raise InputError(f"{source}: not valid JSON (nested too deeply)") from None
    except json.JSONDecodeError:
        yield from _lines(source, text)
        return
    many = whole if isinstance(whole, list) else [whole]
    for number, document in enumerate(many):
        yield (f"{source} item {number}" if len(many) > 1 else str(source)), document


def _lines(source: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        where, content = f"{source} line {number}", line.strip().removeprefix("data:").strip()
        if not content or content == "[DONE]" or content.startswith((":", "event:", "id:")):
            continue
        try:
            yield where, json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise InputError(f"{where}: not valid JSON ({reason}); this importer reads {READS}") from None


def _unwrapped(document: Any) -> Any:
    """Take a response out of a line of `vllm run-batch`, where it is `response.body`."""
    if isinstance(document, Mapping) and isinstance(response := document.get("response"), Mapping):
        return response.get("body") or {}
    return document


def _parse(response: Mapping[str, Any], counts: Mapping[str, Any], where: str) -> Response:
    accepted, drafted = (counts.get(name) for name in ("per_step_accepted", "per_step_drafted"))
    if accepted is None and drafted is None and counts.get("num_spec_steps") == 0:
        accepted, drafted = [], []  # vLLM leaves empty lists out
    if accepted is None or drafted is None:
        raise InputError(
            f"{where}: no per_step_accepted and per_step_drafted; serve with --per-request-spec-decode-metrics detailed"
        )
    for name, values in (("per_step_accepted", accepted), ("per_step_drafted", drafted)):
        if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
            raise InputError(f"{where}: {name} must be a list of whole numbers ≥ 0")
    if len(accepted) != len(drafted):
        raise InputError(f"{where}: {len(accepted)} entries of per_step_accepted, {len(drafted)} of per_step_drafted")
    for step, (taken, given) in enumerate(zip(accepted, drafted, strict=True)):
        if taken > given:
            raise InputError(f"{where}: step {step} accepted {taken} of {given} drafted tokens")
    for name, found in (("num_accepted_draft_tokens", sum(accepted)), ("num_draft_tokens", sum(drafted))):
        if counts.get(name, found) != found:
            raise InputError(f"{where}: {name} is {counts[name]}, but the steps add up to {found}")
    usage = response.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    model, fingerprint = response.get("model"), response.get("system_fingerprint")
    return Response(
        where=where,
        accepted=accepted,
        drafted=drafted,
        num_slots=_count(counts, "num_spec_tokens", where),
        prompt_len=_count(usage, "prompt_tokens", where),
        output_len=_count(usage, "completion_tokens", where),
        model=model if isinstance(model, str) else None,
        fingerprint=fingerprint if isinstance(fingerprint, str) else None,
        prompt=_prompt(response),
    )


def _count(data: Mapping[str, Any], name: str, where: str) -> int | None:
    value = data.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise InputError(f"{where}: {name} is {value!r}; it must be a whole number ≥ 0")
    return value


def _prompt(response: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the prompt's token ids where the client asked for them (`return_token_ids`), to see which are equal."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    for holder in (response, first):
        ids = holder.get("prompt_token_ids") if isinstance(holder, Mapping) else None
        if isinstance(ids, list) and ids and all(type(value) is int for value in ids):
            return tuple(ids)
    return None


def _check_length(response: Response) -> None:
    """Check that the last block starts inside the output: at most the tokens after it may have been cut."""
    if response.output_len is None or not response.accepted:
        return
    last = response.emitted - response.accepted[-1] - 2
    if last > response.output_len - 2:
        raise InputError(
            f"{response.where}: the steps before the last emit {last + 1} tokens, but usage.completion_tokens is "
            f"{response.output_len}; these are not the metrics of one output"
        )
