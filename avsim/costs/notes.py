"""What to say beside numbers that rest on a cost model: where it is used outside what it was made for."""

from __future__ import annotations

from avsim.costs.base import CostModel

__all__ = ["context_warning", "cost_notes"]

_FAR = 2.0


def context_warning(model: CostModel, mean_context_tokens: float) -> str | None:
    """Return a warning where step costs of one context length are used at another by more than a factor of 2.

    Models with a KV term follow each step's cache and need none.

    >>> from avsim.costs import load
    >>> context_warning(load("deepseek-v4-flash-tp4-b300"), 6000.0) is None
    True
    >>> print(context_warning(load("deepseek-v4-flash-tp4-b300"), 30_000.0))
    CONTEXT: step costs of deepseek-v4-flash-tp4-b300 were taken at 8,192 tokens of context, and requests here hold
    30,000 on average (3.7 times as many): KV reads are charged too little.
    """
    held = model.card.context_tokens
    if not held or model.uses_kv or not mean_context_tokens > 0:
        return None
    ratio = mean_context_tokens / held
    if 1 / _FAR <= ratio <= _FAR:
        return None
    times, way = (f"{ratio:.1f} times as many", "little") if ratio > 1 else (f"{1 / ratio:.1f} times fewer", "much")
    return (
        f"CONTEXT: step costs of {model.card.name} were taken at {held:,} tokens of context, and requests here hold "
        f"{mean_context_tokens:,.0f} on average ({times}): KV reads are charged too {way}."
    )


def cost_notes(
    model: CostModel,
    *,
    num_slots: int,
    drafter_kind: str = "unknown",
    mean_context_tokens: float = 0.0,
    skips: bool = False,
    knows_kv: bool = True,
) -> list[str]:
    """Return notes for a run.

    Args:
        model: the clock.
        num_slots: K of the run.
        drafter_kind: of the trace's card.
        mean_context_tokens: cached tokens per request; 0 where nobody knows.
        skips: whether a policy may skip drafting with a loaded drafter.
        knows_kv: whether the run tells the model how much is cached.
    """
    card, notes = model.card, []
    if warning := context_warning(model, mean_context_tokens):
        notes.append(warning)
    if model.uses_kv and not knows_kv:
        notes.append(f"KV reads are NOT charged: {card.name} has a KV term, and this run does not know its cache.")
    if card.kind == "roofline":
        notes.append("Step costs are a ROOFLINE ESTIMATE from data sheets: nothing about them was measured.")
    own = card.num_speculative_tokens
    if own is not None and own > num_slots and not model.draft_depends_on_depth:
        notes.append(
            f"Draft costs are those of K = {own}, and this run drafts {num_slots}: drafting is charged too much."
        )
    if card.drafter_kind is not None and drafter_kind not in ("unknown", card.drafter_kind):
        notes.append(f"Draft costs are of drafter kind {card.drafter_kind}, and the trace's is {drafter_kind}.")
    if skips and not model.skip_is_known:
        notes.append(
            f"What a loaded drafter costs in a step that it skips is UNKNOWN for {card.name} and charged as 0 ms: "
            "gains of skipping are upper bounds (an EAGLE or MTP drafter still runs its first pass; `skip_ms` in the "
            "file sets the cost)."
        )
    return notes
