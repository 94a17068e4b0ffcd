"""The linear model on the published constants of SpecDecode-Bench."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.costs import CostCard, LinearCost, StepShape, load
from avsim.errors import InputError

CARD = CostCard("made-up", model="none", hardware="none", kind="synthetic", source="this test")
SHAPE = StepShape(np.array([8]), np.array([32]), np.array([10_000.0]), np.array([0]))


def test_the_h100_preset_is_the_published_fit() -> None:
    model = load("llama-3.1-8b-h100-eagle")
    verify = 5.88590713 + 21.0103129e-3 * 32 + 39.2645679e-6 * 10_000
    draft = 2.13526175 + 2.37768493e-6 * 10_000 + 0.841429603e-3 * 4
    assert model.verify_ms(SHAPE) == pytest.approx([verify], rel=1e-12)
    assert model.draft_ms(SHAPE) == pytest.approx([draft], rel=1e-12)
    assert model.overhead_ms == pytest.approx(1.20683946)
    assert model.step_ms(SHAPE, drafting=True) == pytest.approx([verify + draft + 1.20683946], rel=1e-12)
    assert model.step_ms(SHAPE, drafting=False) == pytest.approx([verify + 1.20683946], rel=1e-12)


def test_the_draft_table_takes_the_cache_at_the_stated_length() -> None:
    model = LinearCost(fixed_ms=1.0, per_token_us=0.0, draft_fixed_ms=2.0, draft_per_kv_token_ns=1e6, card=CARD)
    assert model.tables(3, 4, kv_tokens_per_req=5.0).draft.tolist() == [2.0, 7.0, 12.0, 17.0]
    assert model.tables(3, 4).draft.tolist() == [2.0] * 4


def test_what_the_model_depends_on() -> None:
    plain = LinearCost(fixed_ms=1.0, per_token_us=1.0, card=CARD)
    assert not plain.draft_depends_on_depth
    assert not plain.uses_kv
    assert LinearCost(fixed_ms=1.0, per_token_us=1.0, draft_per_request_token_us=1.0, card=CARD).draft_depends_on_depth
    assert LinearCost(fixed_ms=1.0, per_token_us=1.0, per_kv_token_ns=1.0, card=CARD).uses_kv


@pytest.mark.parametrize(
    "terms",
    [
        {"fixed_ms": -1.0, "per_token_us": 1.0},
        {"fixed_ms": 1.0, "per_token_us": float("nan")},
        {"fixed_ms": 1.0, "per_token_us": 1.0, "draft_fixed_ms": float("inf")},
        {"fixed_ms": 0.0, "per_token_us": 0.0},
    ],
)
def test_bad_terms_are_refused(terms: dict[str, float]) -> None:
    with pytest.raises(InputError, match="cost made-up"):
        LinearCost(**terms, card=CARD)
