"""From files of timings to the JSON file of a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from avsim.costs import dump
from avsim.costs.base import CostCard
from avsim.costs.fit import CostFit, FitOptions, fit_costs
from avsim.costs.fit_csv import read_profile, read_steps_csv
from avsim.costs.fit_notes import card_notes, fit_notes
from avsim.costs.fit_samples import Origin, Samples, Steps, draft_samples, join_steps, read_trace, verify_samples
from avsim.errors import InputError
from avsim.manifest import check_writable, json_text, make_manifest, write_file
from avsim.registry import suggest
from avsim.sources import TraceCard

__all__ = ["CardOptions", "FitRun", "check_target", "run_fit", "write_fit"]


@dataclass(frozen=True, slots=True)
class CardOptions:
    """What the user says about the engine; None: what the traces' cards say.

    Raises:
        InputError: a count below 1, an empty name, or an unknown kind of drafter.
    """

    name: str
    model: str | None = None
    hardware: str | None = None
    context_tokens: int | None = None
    num_speculative_tokens: int | None = None
    vocab_size: int | None = None
    drafter_kind: str | None = None

    def __post_init__(self) -> None:
        for option, value in (
            ("--context", self.context_tokens),
            ("--k", self.num_speculative_tokens),
            ("--vocab-size", self.vocab_size),
        ):
            if value is not None and value < 1:
                raise InputError(f"{option} must be at least 1, not {value}")
        kinds = get_args(get_type_hints(TraceCard)["drafter_kind"])
        if self.drafter_kind is not None and self.drafter_kind not in kinds:
            raise InputError(f"--drafter-kind is {self.drafter_kind!r}{suggest(self.drafter_kind, kinds)}")
        if not self.name.strip():
            raise InputError("--name is empty; a cost model needs a name")


@dataclass(frozen=True, eq=False)
class FitRun:
    """A fit with where it came from, in the form that is written."""

    fit: CostFit
    options: FitOptions
    origins: tuple[Origin, ...]
    notes: tuple[str, ...]
    document: dict[str, Any]


def run_fit(
    sources: Sequence[Path],
    *,
    verify: Path | None = None,
    draft: Path | None = None,
    card: CardOptions,
    options: FitOptions,
    prefill: str = "leave-out",
) -> FitRun:
    """Read timings, fit a cost model, and return it with its document.

    Args:
        sources: trace folders, or CSVs with a row per engine step.
        verify, draft: start-up profiles, which take the place of what the sources say of target or drafter.
        prefill: `own` fits steps that hold prompt tokens too, these with a term of their own (linear only).

    Raises:
        InputError: nothing to read, bad files, sources of different engines, or too little to fit.
    """
    if prefill not in ("leave-out", "own"):
        raise InputError(f"--prefill is {prefill!r}; it is leave-out or own")
    if prefill == "own" and options.kind != "linear":
        raise InputError("--prefill own: a curve has no term for prompt tokens; add --kind linear, or leave it out")
    samples, origins, notes = _read(sources, verify, draft, with_prefill=prefill == "own")
    made = _card(card, origins, samples)
    fit = fit_costs(samples["verify"], samples["draft"], options, made)
    notes += fit_notes(fit, options)
    full = " ".join([*card_notes(fit, options), *notes, *_foreign_notes(origins)])
    model = replace(fit.model, card=replace(fit.model.card, notes=full))
    fit = replace(fit, model=model)
    config = {
        "sources": [path.name for path in sources], "verify": verify and verify.name, "draft": draft and draft.name,
        "card": asdict(card), "options": asdict(options), "prefill": prefill,
    }  # fmt: skip
    document = dump(model) | {
        "fit": {
            "verify": fit.verify.to_json(),
            "draft": fit.draft.to_json(),
            "manifest": make_manifest("cost fit", config, {origin.name: origin.content_hash for origin in origins}),
        }
    }
    return FitRun(fit, options, tuple(origins), tuple(notes), document)


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that could not be written, before the work is done.

    Raises:
        InputError: it exists and may not be replaced, or its folder cannot be written to.
    """
    check_writable(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another file or pass --overwrite")


def write_fit(run: FitRun, path: Path, *, overwrite: bool = False) -> None:
    """Write the cost model, with its fit beside it, as the JSON that `avsim.costs.load` reads.

    Raises:
        InputError: the file exists and `overwrite` is off, or it cannot be written.
    """
    check_target(path, overwrite=overwrite)
    write_file(path, json_text(run.document))


def _read(
    sources: Sequence[Path], verify: Path | None, draft: Path | None, *, with_prefill: bool
) -> tuple[dict[str, Samples], list[Origin], list[str]]:
    if not sources and (verify is None or draft is None):
        raise InputError(
            "nothing to fit: name trace folders or CSVs of step timings, or --verify FILE and --draft FILE"
        )
    origins: list[Origin] = []
    notes: list[str] = []
    tables: list[Steps] = []
    for path in sources:
        if path.is_dir():
            steps, origin = read_trace(path)
        else:
            steps, origin, unread = read_steps_csv(path)
            notes += [f"{path.name}: columns not read: {', '.join(unread)}."] if unread else []
        tables.append(steps)
        origins.append(origin)
    samples: dict[str, Samples] = {}
    if tables:
        joined = join_steps(tables)
        samples["verify"] = verify_samples(joined, with_prefill=with_prefill)
        samples["draft"] = draft_samples(joined)
    for label, file in (("verify", verify), ("draft", draft)):
        if file is not None:
            samples[label], origin, unread = read_profile(file, "verify" if label == "verify" else "draft")
            notes += [f"{file.name}: columns not read: {', '.join(unread)}."] if unread else []
            origins.append(origin)
    hashes = [origin.content_hash for origin in origins]
    for index, origin in enumerate(origins):
        if origin.content_hash in hashes[:index]:
            first = origins[hashes.index(origin.content_hash)]
            raise InputError(f"{origin.name} has the same content as {first.name}; name each source once")
    return samples, origins, notes


def _card(given: CardOptions, origins: Sequence[Origin], samples: dict[str, Samples]) -> CostCard:
    def agreed(name: str, option: str, value: Any, *, needed: bool = False) -> Any:
        said = {getattr(origin, name) for origin in origins} - {None, "unknown"}
        if value is not None:
            return value
        if len(said) > 1:
            raise InputError(
                f"the sources name different values of {name} ({', '.join(sorted(map(str, said)))}); fit them one by "
                f"one, or say which holds with {option}"
            )
        if needed and not said:
            raise InputError(f"the sources do not say the {name}; a cost model holds for one, so say it with {option}")
        return said.pop() if said else None

    timed = samples["verify"]
    context = given.context_tokens
    if context is None and timed.ordered:
        per_request = timed.steps.kv / timed.steps.reqs
        context = int(np.rint(np.nanmedian(per_request))) if np.isfinite(per_request).any() else None
    return CostCard(
        name=given.name,
        model=agreed("model", "--model", given.model, needed=True),
        hardware=agreed("hardware", "--hardware", given.hardware, needed=True),
        kind="synthetic" if any(origin.synthetic for origin in origins) else "fitted",
        source="; ".join(f"{origin.name}, {origin.num_rows} rows ({origin.content_hash})" for origin in origins),
        context_tokens=context,
        num_speculative_tokens=agreed("num_speculative_tokens", "--k", given.num_speculative_tokens),
        vocab_size=agreed("vocab_size", "--vocab-size", given.vocab_size),
        drafter_kind=agreed("drafter_kind", "--drafter-kind", given.drafter_kind),
    )


def _foreign_notes(origins: Sequence[Origin]) -> list[str]:
    return [f"Notes of {origin.name}: {origin.notes}" for origin in origins if origin.notes]
