"""Cost tables of a profile: the curve, its provenance card, and the samples that it is made from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from avsim import costs
from avsim.costs.base import CostCard
from avsim.costs.curve import CurveCost, Points
from avsim.costs.draft import DraftParts
from avsim.costs.fit_curve import repair
from avsim.costs.profile.draft_table import changing_draft, draft_points, fit_parts
from avsim.costs.profile.measure import Measured
from avsim.costs.profile.notes import context_note, general_notes, spread_notes
from avsim.costs.profile.plan import ProfilePlan, Spread
from avsim.costs.profile.summary import Drift, KvTerm, fit_kv, summarise
from avsim.errors import InputError
from avsim.types import BoolArray

__all__ = ["ProfileCard", "Table", "make_tables", "possible_suffixes"]

_PARTS_POOR = 0.15


@dataclass(frozen=True, slots=True)
class ProfileCard:
    """What the user says of the profile; None: what the runner says.

    Attributes:
        no_drafter: nothing is drafted and drafting is charged as 0.
        draft_form: `points`: draft times by requests, at K. `parts`: by depth and cache too.
    """

    name: str
    model: str | None = None
    hardware: str | None = None
    drafter_kind: str | None = None
    vocab_size: int | None = None
    no_drafter: bool = False
    draft_form: str = "points"

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("--name is empty; a cost model needs a name")
        if self.draft_form not in ("points", "parts"):
            raise InputError(f"--draft-form is {self.draft_form!r}; it is points or parts")

    def filled(self, described: dict[str, str]) -> ProfileCard:
        """Fill what is missing with what a runner says."""
        vocab = described.get("vocab_size")
        found = replace(
            self,
            model=self.model or described.get("model"),
            hardware=self.hardware or described.get("hardware"),
            drafter_kind=self.drafter_kind or described.get("drafter_kind"),
            vocab_size=self.vocab_size or (int(vocab) if vocab else None),
        )
        for name, option in (("model", "--model-name"), ("hardware", "--hardware")):
            if not getattr(found, name):
                raise InputError(f"the runner does not say its {name}; a cost table holds for one, so pass {option}")
        return found


@dataclass(frozen=True, eq=False)
class Table:
    """One cost table: `suffix` of its file's name, JSON document, and samples as CSV."""

    suffix: str
    model: CurveCost
    document: dict[str, Any]
    csv: str


def make_tables(
    measured: Measured,
    outliers: BoolArray,
    drift: Drift,
    plan: ProfilePlan,
    card: ProfileCard,
    about: dict[str, str],
    capture_limit: int,
) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    """Return a table per spread, the main one first, and notes.

    Several contexts become a KV term where it describes every step; otherwise each context gets a table.
    """
    notes = general_notes(measured, outliers, drift, plan)
    whole = {spread: fit_kv(measured, _rows(measured, spread, plan.contexts), plan.seed) for spread in plan.spreads}
    changing = None
    if not card.no_drafter and card.draft_form == "points" and len(plan.contexts) > 1:
        changing = changing_draft(measured, plan.num_slots)
    for spread, term in whole.items():
        if not term.fits and len(plan.contexts) > 1:
            misfit, cell = term.worst
            notes.append(
                f"CONTEXT: one KV term does not describe {spread} steps (off by {misfit:.0%} at {cell}): each context "
                f"has a table of its own"
            )
    if changing is not None:
        notes.append(
            f"CONTEXT: drafting for {changing[1]} requests takes {changing[0]:.2f} times as long at one context as at "
            f"another, and draft points know none: each context has a table of its own; --draft-form parts knows it"
        )
    if "block" in whole and "single" in whole and all(term.fits for term in whole.values()):
        notes += spread_notes(whole["block"], whole["single"], len(plan.contexts) > 1)
    tables = []
    for spread in plan.spreads:
        split = changing is not None or not whole[spread].fits
        for contexts in [(context,) for context in plan.contexts] if split else [plan.contexts]:
            term = fit_kv(measured, _rows(measured, spread, contexts), plan.seed) if split else whole[spread]
            tables.append(
                _table(measured, outliers, plan, card, about, capture_limit, spread, contexts, term, tuple(notes))
            )
    notes += [note for note in tables[0].document["profile"]["table_notes"] if note not in notes]
    return tuple(tables), tuple(notes)


def _table(
    measured: Measured, outliers: BoolArray, plan: ProfilePlan, card: ProfileCard, about: dict[str, str],
    capture_limit: int, spread: Spread, contexts: tuple[int, ...], term: KvTerm, notes: tuple[str, ...],
) -> Table:  # fmt: skip
    suffix = _suffix(plan, spread, contexts)
    points: Points = tuple(zip(term.sizes, term.base_ms.tolist(), strict=True))
    padded = max((size for size in term.sizes if size <= capture_limit), default=1)
    draft, parts, draft_notes = _draft(measured, plan, card, contexts)
    lifted = repair(term.base_ms, np.ones(len(points), dtype=np.int64), "running-max") / term.base_ms - 1
    found = [*draft_notes]
    if (lifted > 1e-12).any():
        found.append(
            f"Noise: the running maximum that the table takes lifts {int((lifted > 1e-12).sum())} of {len(points)} "
            f"verify points, by {lifted.max():.1%} at most"
        )
    found.append(context_note(term, contexts))
    how = f"up to {plan.num_slots + 1} tokens a request, as verification brings them"
    if spread == "single":
        most = f", {plan.max_num_reqs} requests at most" if plan.max_num_reqs else ""
        how = f"one token a request, as vLLM profiles{most}"
    includes = " ".join(
        f"{label}: {about[key]}." for key, label in (("weights", "Weights"), ("includes", "Included"),
        ("excludes", "Not included"), ("padding", "Padding"), ("experts", "Experts")) if about.get(key)
    )  # fmt: skip
    sentences = " ".join(f"{note}." for note in (*found, *notes))
    assert card.model is not None
    assert card.hardware is not None
    model = CurveCost(
        verify=points,
        draft=draft,
        draft_parts=parts,
        capture_limit=padded,
        per_kv_token_ns=term.per_kv_token_ns,
        card=CostCard(
            name=f"{card.name}{suffix}",
            model=card.model,
            hardware=card.hardware,
            kind="measured",
            source=f"avsim cost profile, {about['date']}: {about['runner']}; medians of {measured.num_rounds} timings",
            context_tokens=None if term.per_kv_token_ns > 0 else max(contexts),
            num_speculative_tokens=plan.num_slots,
            vocab_size=card.vocab_size,
            notes=f"Steps of {how}. {includes} {sentences}".replace("  ", " "),
            drafter_kind=None if card.no_drafter else card.drafter_kind,
        ),
    )
    rows = [*_rows(measured, spread, contexts), *_draft_rows(measured, contexts)]
    csv = _csv(measured, outliers, rows, plan.num_slots)
    stats = summarise(measured, outliers)
    profile = {
        "spread": spread,
        "contexts": list(contexts),
        "kv_term": {
            "per_kv_token_ns": term.per_kv_token_ns, "low": term.low_ns, "high": term.high_ns,
            "worst_misfit_pct": 100 * term.worst[0],
        },
        "verify_intervals_ms": [
            [size, low, high] for size, low, high in
            zip(term.sizes, term.low_ms.tolist(), term.high_ms.tolist(), strict=True)
        ],
        "cells": [stats[row].to_json() for row in rows],
        "samples_sha256": hashlib.sha256(csv.encode()).hexdigest(),
        "table_notes": found,
    }  # fmt: skip
    return Table(suffix, model, costs.dump(model) | {"profile": profile}, csv)


def possible_suffixes(plan: ProfilePlan) -> list[str]:
    """Return the suffixes of every file that a plan may come to, whatever its timings say."""
    groups = [plan.contexts, *((context,) for context in plan.contexts)]
    return sorted({_suffix(plan, spread, contexts) for spread in plan.spreads for contexts in groups})


def _suffix(plan: ProfilePlan, spread: Spread, contexts: tuple[int, ...]) -> str:
    """Return what a table's file name has behind its stem; nothing for the main one."""
    first, main = contexts[0], spread == plan.spreads[0]
    whole = len(contexts) > 1 or len(plan.contexts) == 1
    if main and (whole or first == plan.contexts[0]):
        return ""
    return ("" if main else f"-{spread}") + ("" if whole else f"-context-{first}")


def _draft(
    measured: Measured, plan: ProfilePlan, card: ProfileCard, contexts: tuple[int, ...]
) -> tuple[Points, DraftParts | None, list[str]]:
    if card.no_drafter:
        note = "NO DRAFTER was measured: drafting is charged as 0 ms, so gains of drafting are upper bounds"
        return (), DraftParts("ngram", plan.num_slots), [note]
    if card.draft_form == "points":
        points = draft_points(measured, plan.num_slots, contexts)
        return points, None, [f"Draft times are of {plan.num_slots} slots, by requests"]
    fit = fit_parts(measured, plan.num_slots)
    note = (
        f"Draft times in two parts, off by {fit.median_misfit:.1%} (median) and {fit.worst_misfit:.1%} (worst) at the "
        f"steps measured; the first pass ran one row a request, with its LM head, and is charged so for every token"
    )
    poor = ["The two parts describe drafting POORLY"] if fit.worst_misfit > _PARTS_POOR else []
    return (), fit.parts, [note, *poor]


def _rows(measured: Measured, spread: Spread, contexts: tuple[int, ...]) -> list[int]:
    return [
        index for index, cell in enumerate(measured.cells) if spread in cell.spreads and cell.context in contexts
    ]  # fmt: skip


def _draft_rows(measured: Measured, contexts: tuple[int, ...]) -> list[int]:
    return [index for index, cell in enumerate(measured.cells) if cell.depth and cell.context in contexts]


def _csv(measured: Measured, outliers: BoolArray, rows: list[int], num_slots: int) -> str:
    """Return one line per timing, in the order they were taken, with the columns that `avsim cost fit` reads.

    Draft timings of another depth than K stand in a column that it does not read.
    """
    lines = []
    for row in rows:
        cell, mode = measured.cells[row], measured.modes[row]
        for index in range(measured.num_rounds):
            ms = repr(float(measured.ms[row, index]))
            target = ms if not cell.depth else ""
            drafter = ms if cell.depth == num_slots else ""
            other = ms if cell.depth not in (0, num_slots) else ""
            fields = (
                measured.order[row, index], cell.num_tokens, cell.num_reqs, cell.kv_tokens, 0, target, drafter, mode,
                cell.depth or "", other, index, int(outliers[row, index]),
            )  # fmt: skip
            lines.append((int(measured.order[row, index]), ",".join(map(str, fields))))
    head = (
        "step,num_target_tokens,num_reqs,kv_tokens,num_prefill_tokens,forward_ms,drafter_ms,graph_mode,slots,"
        "other_depth_ms,round,outlier"
    )
    return "\n".join([head, *(line for _, line in sorted(lines))]) + "\n"
