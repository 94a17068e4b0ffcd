"""From prompts to a dense trace on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from avsim.capture.dense.drafters import load_drafter, split_spec
from avsim.capture.dense.generate import Output, generate
from avsim.capture.dense.model import Model, require
from avsim.capture.dense.outputs import KeptOutputs
from avsim.capture.dense.parts import Parts
from avsim.capture.dense.prompts import Prompt, read_prompts
from avsim.capture.dense.tracer import Sampling, trace_request
from avsim.errors import InputError
from avsim.sources import Trace, TraceCard, write_trace

__all__ = ["DenseSettings", "run_dense"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class DenseSettings:
    """What to trace.

    Attributes:
        target: a model folder.
        drafter: `KIND:ARGUMENT`, see `avsim.capture.dense.drafters`.
        prompts: JSONL files, see `read_prompts`.
        num_slots: K.
        temperature: of target and drafter; 0 for greedy.
        draft_sampling: `greedy` or `probabilistic`; the latter needs a temperature above 0.
        max_tokens: outputs are cut there.
        batch: requests generated, and kept for a resumed run, at once.
        num_top: how many of the largest draft logits to record.
        raw: leave the tokenizer's chat template out.
        limit, categories: which prompts.
        name, target_name, drafter_name, prompts_name, licence, hardware, notes: for the card; None to infer.
    """

    target: str
    drafter: str
    prompts: tuple[str, ...]
    num_slots: int = 5
    temperature: float = 0.0
    draft_sampling: Literal["greedy", "probabilistic"] = "greedy"
    max_tokens: int = 160
    batch: int = 8
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    num_top: int = 8
    raw: bool = False
    limit: int | None = None
    categories: tuple[str, ...] = ()
    name: str | None = None
    target_name: str | None = None
    drafter_name: str | None = None
    prompts_name: str | None = None
    licence: str = "unknown"
    hardware: str | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.temperature < float("inf")):
            raise InputError(f"temperature is {self.temperature}; it must be finite and ≥ 0")
        if self.draft_sampling not in ("greedy", "probabilistic"):
            raise InputError(f"draft sampling is {self.draft_sampling!r}; it is greedy or probabilistic")
        if self.draft_sampling == "probabilistic" and self.temperature == 0:
            raise InputError("probabilistic drafts need a temperature above 0")
        for name, low, high in (
            ("num_slots", 1, 255), ("max_tokens", 2, 1 << 20), ("batch", 1, 1 << 16), ("num_top", 0, 16),
            ("seed", 0, (1 << 63) - 1),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} is {getattr(self, name)}; it must be {low} to {high}")
        split_spec(self.drafter)


def run_dense(
    settings: DenseSettings,
    out: str | Path,
    *,
    date: str | None = None,
    outputs: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = lambda done, total, what: None,
) -> Trace:
    """Trace all prompts and write the trace folder; finished groups wait in `OUT.partial` until all are done.

    Args:
        date: for the card; a resumed run keeps the first one's.
        outputs: a folder that keeps generated outputs, for another run with the same target, prompts and sampling.
        resume: go on where a killed run of the same settings stopped; the trace is the same as without the kill.
        overwrite: replace a trace that is already there.
        progress: called with (requests done, of how many, what).

    Raises:
        InputError: bad settings, prompts, models or a folder in the way.
    """
    out = Path(out)
    if out.exists() and not (overwrite and (out / "trace.json").is_file()):
        raise InputError(f"{out}: exists; choose another folder" + ("" if overwrite else ", or pass --overwrite"))
    prompts, dropped = read_prompts([Path(path) for path in settings.prompts], settings.categories, settings.limit)
    torch = require("torch")
    _check_device(torch, settings.device)
    target = Model.load(settings.target, settings.device, settings.dtype)
    tokenized = _tokenize(settings, prompts, target)
    drafter = load_drafter(settings.drafter, target)
    num_slots = getattr(drafter, "num_slots", None)
    if num_slots is not None and settings.num_slots > num_slots:
        raise InputError(f"{settings.drafter}: drafts {num_slots} tokens at most; K is {settings.num_slots}")
    parts = Parts(out)
    about = parts.begin({"asked": _asked(settings, tokenized), "date": date}, resume)
    kept = KeptOutputs(None if outputs is None else Path(outputs), _made_from(settings))
    starts = range(0, len(prompts), settings.batch)
    with torch.inference_mode():
        for group, start in enumerate(starts):
            progress(start, len(prompts), "requests")
            if not parts.done(group):
                members = range(start, min(start + settings.batch, len(prompts)))
                parts.add(group, *_group(settings, target, drafter, prompts, tokenized, members, kept))
    progress(len(prompts), len(prompts), "requests")
    groups = range(len(starts))
    requests = parts.requests(groups)
    card = _card(settings, out, target, drafter, requests, dropped, about["date"])
    trace = write_trace(out, card, requests, parts.blocks(groups), overwrite=overwrite)
    parts.remove()
    return trace


def _group(
    settings: DenseSettings,
    target: Model,
    drafter: Any,
    prompts: list[Prompt],
    tokenized: list[list[int]],
    rows: range,
    kept: KeptOutputs,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    outputs = kept.get(
        rows,
        [tokenized[row] for row in rows],
        lambda requests, texts: generate(
            target,
            texts,
            requests,
            max_tokens=settings.max_tokens,
            past_end=settings.num_slots,
            temperature=settings.temperature,
            seed=settings.seed,
            ends=_end_tokens(target),
        ),
    )
    how = Sampling(
        settings.num_slots,
        settings.temperature,
        settings.draft_sampling == "probabilistic",
        settings.seed,
        settings.num_top,
    )
    frames = [trace_request(target, drafter, tokenized[output.request], output, how) for output in outputs]
    frames = [frame for frame in frames if frame.height]
    return _requests(settings, prompts, tokenized, outputs), pl.concat(frames) if frames else pl.DataFrame()


def _requests(
    settings: DenseSettings, prompts: list[Prompt], tokenized: list[list[int]], outputs: list[Output]
) -> pl.DataFrame:
    ids = [output.request for output in outputs]
    return pl.DataFrame(
        {
            "request": ids,
            "source": ids,  # repeated texts are dropped, so each request is its own source
            "prompt_len": [len(tokenized[row]) for row in ids],
            "output_len": [output.length for output in outputs],
            "temperature": [float(settings.temperature)] * len(ids),
            "top_p": [1.0] * len(ids),
            "category": [prompts[row].category for row in ids],
        }
    )


def _tokenize(settings: DenseSettings, prompts: list[Prompt], target: Model) -> list[list[int]]:
    try:
        tokenizer = require("transformers").AutoTokenizer.from_pretrained(settings.target, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{settings.target}: no tokenizer can be loaded ({str(error).splitlines()[0]})") from None
    if not settings.raw and not tokenizer.chat_template:
        raise InputError(f"{settings.target}: the tokenizer has no chat template; pass --raw to do without")
    room = getattr(target.body.config, "max_position_embeddings", None)
    room = (room or 1 << 62) - settings.max_tokens - settings.num_slots
    found = []
    for prompt in prompts:
        text = prompt.text
        if not settings.raw:
            chat = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = [int(token) for token in tokenizer(text, add_special_tokens=settings.raw)["input_ids"]]
        if not 1 <= len(ids) <= room:
            raise InputError(f"{prompt.where}: {len(ids)} tokens; the target takes 1 to {room} before the output")
        found.append(ids)
    return found


def _end_tokens(target: Model) -> frozenset[int]:
    ends = getattr(getattr(target.lm, "generation_config", None), "eos_token_id", None)
    ends = target.body.config.eos_token_id if ends is None else ends
    return frozenset(() if ends is None else [ends] if isinstance(ends, int) else ends)


def _check_device(torch: Any, device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]})") from None


def _asked(settings: DenseSettings, tokenized: list[list[int]]) -> dict[str, Any]:
    asked = dataclasses.asdict(settings)
    asked = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    digest = hashlib.sha256(repr(tokenized).encode()).hexdigest()
    models = {path: _stamp(Path(path)) for path in (settings.target, split_spec(settings.drafter)[1])}
    made_on = {"hardware found": _hardware(settings), "prompt tokens": digest, "model files": models}
    return asked | _versions() | made_on


def _made_from(settings: DenseSettings) -> dict[str, Any]:
    names = ("num_slots", "temperature", "max_tokens", "seed", "dtype")
    values = {name: getattr(settings, name) for name in names} | {"hardware": _hardware(settings)}
    return values | _versions() | {"target": _stamp(Path(settings.target))}


def _versions() -> dict[str, str]:
    return {name: str(require(name).__version__) for name in ("torch", "transformers")}


def _hardware(settings: DenseSettings) -> str:
    torch = require("torch")
    if settings.device.startswith("cuda"):
        return str(torch.cuda.get_device_name(settings.device))
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} threads)"


def _stamp(folder: Path) -> list[list[Any]]:
    """Return names, sizes and times of a model's files; hashing gigabytes would take longer than it is worth."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def _card(
    settings: DenseSettings,
    out: Path,
    target: Model,
    drafter: Any,
    requests: pl.DataFrame,
    dropped: int,
    date: str | None,
) -> TraceCard:
    cut = int((requests["output_len"] == settings.max_tokens).sum())
    notes = [
        settings.notes,
        f"Computed in {settings.dtype}; {cut} of {len(requests)} outputs are {settings.max_tokens} tokens long, where "
        "longer ones were cut.",
        f"{dropped} repeated prompts were dropped." if dropped else "",
        "Rejection sampling is exact only up to that rounding."
        if settings.dtype != "float32" and settings.temperature > 0
        else "",
        "Slots past the end of an output are graded against the target's own continuation.",
    ]
    kind, argument = split_spec(settings.drafter)
    # The folder's own name: where it lies is nobody else's business.
    drafter_name = settings.drafter_name or f"{kind}: {Path(argument).name}"
    greedy = settings.draft_sampling == "greedy" and settings.temperature == 0
    return TraceCard(
        name=settings.name or out.name,
        kind="dense",
        target=settings.target_name or Path(settings.target).resolve().name,
        drafter=drafter_name,
        drafter_kind=drafter.kind,
        num_speculative_tokens=settings.num_slots,
        draft_sampling=settings.draft_sampling,
        acceptance_rule="greedy-match" if greedy else "standard",
        temperature=float(settings.temperature),
        engine="transformers",
        engine_version=require("transformers").__version__,
        hardware=settings.hardware or _hardware(settings),
        vocab_size=target.vocab_size,
        prompts=settings.prompts_name or ", ".join(Path(path).name for path in settings.prompts),
        licence=settings.licence,
        seed=settings.seed,
        date=date,
        complete_blocks=True,
        notes=" ".join(filter(None, notes)),
    )
