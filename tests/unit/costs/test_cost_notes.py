"""Where a cost model is used outside what it was made for, the output says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from avsim.costs import CostModel, load
from avsim.costs.notes import context_warning, cost_notes


@pytest.mark.parametrize(
    ("mean", "warned"),
    [(8192.0, ""), (4096.0, ""), (16_384.0, ""), (16_500.0, "too little"), (4000.0, "too much"), (0.0, "")],
)
def test_a_table_warns_beyond_a_factor_of_two(mean: float, warned: str, b300: CostModel) -> None:
    warning = context_warning(b300, mean)
    assert (warning is None) if not warned else (warning is not None and warned in warning and "8,192" in warning)


def test_a_model_with_a_kv_term_needs_no_warning() -> None:
    assert context_warning(load("llama-3.1-8b-h100-eagle"), 30_000.0) is None
    assert context_warning(load("roofline:llama-3.1-8b,gpu=h100"), 30_000.0) is None
    assert context_warning(load("roofline:llama-3.1-8b,gpu=h100,context=4000"), 30_000.0) is not None


def test_what_a_run_is_told(b300: CostModel) -> None:
    assert cost_notes(b300, num_slots=5) == []
    eagle = load("roofline:llama-3.1-8b,gpu=h100,drafter=eagle")
    deep = replace(b300, card=replace(b300.card, num_speculative_tokens=7))
    for notes, words in (
        (cost_notes(b300, num_slots=5, mean_context_tokens=100.0), ("CONTEXT", "81.9 times fewer")),
        (cost_notes(deep, num_slots=5), ("Draft costs are those of K = 7, and this run drafts 5",)),
        (cost_notes(b300, num_slots=5, skips=True), ("UNKNOWN", "upper bounds")),
        (cost_notes(eagle, num_slots=5), ("ROOFLINE ESTIMATE",)),
        (cost_notes(eagle, num_slots=5, drafter_kind="dspark"), ("of drafter kind eagle", "the trace's is dspark")),
        (cost_notes(eagle, num_slots=5, knows_kv=False), ("KV reads are NOT charged",)),
    ):
        assert all(any(word in note for note in notes) for word in words), notes
    assert not any("UNKNOWN" in note for note in cost_notes(eagle, num_slots=5, skips=True))
    assert cost_notes(replace(b300, skip_ms=0.1), num_slots=5, skips=True) == []
