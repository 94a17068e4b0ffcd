"""Two-part draft costs against their closed forms."""

from __future__ import annotations

import json

import numpy as np
import pytest

from avsim import costs
from avsim.costs import CostCard, CurveCost, DraftParts, LinearCost, StepShape
from avsim.errors import InputError

CARD = CostCard("made-up", model="none", hardware="none", kind="synthetic", source="this test")
EAGLE = DraftParts("autoregressive", 4, 0.5, 10.0, 2.0, 0.25, 5.0, 3.0)


def steps(depth: list[int] | None) -> StepShape:
    size = 3 if depth is None else len(depth)
    reqs, tokens, kv = np.full(size, 8), np.full(size, 30), np.full(size, 5000.0)
    return StepShape(reqs, tokens, kv, np.zeros(size, dtype=np.int64), None if depth is None else np.array(depth))


def test_an_autoregressive_drafter_runs_its_first_pass_over_all_rows_even_when_it_skips() -> None:
    first, following = 0.5 + 30 * 10e-3 + 5000 * 2e-6, 0.25 + 8 * 5e-3 + 5000 * 3e-6
    expected = [first, first, first + following, first + 4 * following]
    assert EAGLE.ms(steps([0, 1, 2, 5])) == pytest.approx(expected)
    assert EAGLE.ms(steps(None)) == pytest.approx([first + 3 * following] * 3)


def test_a_block_drafter_sees_all_its_slots_at_once() -> None:
    parts = DraftParts("block", 7, first_per_token_us=1.0, next_ms=0.4, next_per_token_us=2.0)
    context = 30 * 1e-3
    expected = [context, context + 0.4 + 8 * 2e-3, context + 0.4 + 8 * 7 * 2e-3]
    assert parts.ms(steps([0, 1, 7])) == pytest.approx(expected)


def test_a_look_up_does_not_grow_with_depth() -> None:
    assert DraftParts("ngram", 5, next_ms=0.1).ms(steps([0, 1, 5])) == pytest.approx([0.0, 0.1, 0.1])


@pytest.mark.parametrize("kind", ["linear", "curve"])
def test_trimming_saves_a_part_of_the_first_pass_in_the_tables(kind: str) -> None:
    """One token less is worth its place in the target and in the drafter's first pass; next passes stay in draft."""
    if kind == "linear":
        model: costs.CostModel = LinearCost(fixed_ms=4.0, per_token_us=50.0, draft_parts=EAGLE, card=CARD)
    else:
        points = tuple((size, 4.0 + 50e-3 * size) for size in range(1, 400))
        model = CurveCost(verify=points, draft=(), draft_parts=EAGLE, card=CARD)
    tables = model.tables(8, 100, depth=4)
    assert np.diff(tables.verify[9:]) == pytest.approx([60e-3] * 91)
    assert tables.draft[8] == pytest.approx(0.5 + 8 * 10e-3 + 3 * (0.25 + 8 * 5e-3))
    assert tables.by_depth is not None
    assert tables.by_depth[0, 8] == pytest.approx(0.5 + 8 * 10e-3)
    assert model.draft_depends_on_depth
    assert model.skip_is_known


def test_a_skipped_step_costs_what_the_file_says_and_nothing_where_it_says_nothing() -> None:
    points = {"verify": ((1, 1.0), (8, 2.0)), "draft": ((1, 0.5), (8, 0.9)), "card": CARD}
    for model, skip, known in (
        (CurveCost(**points), 0.0, False),  # type: ignore[arg-type]
        (CurveCost(**points, skip_ms=0.3), 0.3, True),  # type: ignore[arg-type]
        (LinearCost(fixed_ms=1.0, per_token_us=1.0, draft_fixed_ms=0.5, card=CARD), 0.0, False),
        (LinearCost(fixed_ms=1.0, per_token_us=1.0, draft_fixed_ms=0.5, skip_ms=0.2, card=CARD), 0.2, True),
    ):
        assert model.draft_ms(steps([0])).tolist() == [skip]
        assert model.skip_is_known is known
        assert costs.parse(json.dumps(costs.dump(model)), "x") == model


def test_a_kv_term_adds_to_the_points() -> None:
    model = CurveCost(verify=((32, 2.0),), draft=((32, 0.5),), per_kv_token_ns=40.0, card=CARD)
    assert model.verify_ms(steps([1])) == pytest.approx([2.0 + 5000 * 40e-6])
    assert model.uses_kv


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "tree"}, "form is 'tree'; known: autoregressive, block, ngram"),
        ({"num_slots": 0}, "num_slots must be at least 1"),
        ({"next_ms": -1.0}, "next_ms must be finite and ≥ 0"),
        ({"first_per_token_us": float("nan")}, "first_per_token_us must be finite"),
        ({"first_per_tokens_us": 1.0}, "unknown key 'first_per_tokens_us'; did you mean 'first_per_token_us'"),
    ],
)
def test_bad_parts_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DraftParts.from_json(EAGLE.to_json() | change)


def test_parts_stand_in_the_place_of_points_and_terms() -> None:
    with pytest.raises(InputError, match="draft_parts stand in the place of draft points"):
        CurveCost(verify=((1, 1.0),), draft=((1, 1.0),), draft_parts=EAGLE, card=CARD)
    with pytest.raises(InputError, match="draft_parts stand in the place of draft_fixed_ms"):
        LinearCost(fixed_ms=1.0, per_token_us=1.0, draft_fixed_ms=1.0, draft_parts=EAGLE, card=CARD)
    with pytest.raises(InputError, match="draft_parts stand in the place of skip_ms"):
        LinearCost(fixed_ms=1.0, per_token_us=1.0, skip_ms=0.0, draft_parts=EAGLE, card=CARD)
    with pytest.raises(InputError, match="the draft curve has no points"):
        CurveCost(verify=((1, 1.0),), draft=(), card=CARD)
    with pytest.raises(InputError, match="is more than drafting costs"):
        CurveCost(verify=((1, 1.0),), draft=((1, 1.0),), skip_ms=2.0, card=CARD)
    with pytest.raises(InputError, match="is more than draft_fixed_ms"):
        LinearCost(fixed_ms=1.0, per_token_us=1.0, draft_fixed_ms=1.0, skip_ms=2.0, card=CARD)
    with pytest.raises(InputError, match="per_kv_token_ns must be finite"):
        CurveCost(verify=((1, 1.0),), draft=((1, 1.0),), per_kv_token_ns=-1.0, card=CARD)
