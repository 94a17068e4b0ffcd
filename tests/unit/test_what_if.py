"""Which step costs are foreign to a trace."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from avsim.costs import CostModel, load
from avsim.costs.draft import DraftParts
from avsim.errors import InputError
from avsim.sources import Trace
from avsim.what_if import check_match


def trace(target: str, k: int = 5) -> Trace:
    return cast(
        Trace, SimpleNamespace(path="some-trace", card=SimpleNamespace(target=target, num_speculative_tokens=k))
    )


def measured(model: CostModel, k: int | None, **more: Any) -> CostModel:
    return replace(model, card=replace(model.card, num_speculative_tokens=k), **more)


def test_another_model_is_refused_and_named(b300: CostModel) -> None:
    with pytest.raises(
        InputError, match=r"was measured for DeepSeek-V4-Flash-0731, .* recorded with Llama; pass --what-if"
    ):
        check_match(trace("Llama"), b300, False)
    assert check_match(trace("Llama"), b300, True)
    assert not check_match(trace("org/deepseek_v4-flash-0731"), b300, False)


def test_draft_costs_of_a_smaller_k_are_refused(b300: CostModel) -> None:
    here = trace("DeepSeek-V4-Flash-0731", 5)
    with pytest.raises(InputError, match=r"drafting K = 3 slots costs, but K = 5 are drafted here; use --k 3"):
        check_match(here, measured(b300, 3), False)
    assert check_match(here, measured(b300, 3), True)
    assert not check_match(here, measured(b300, 3), False, num_slots=3)
    assert not check_match(here, measured(b300, 5), False)
    assert not check_match(here, measured(b300, 7), False)  # charges too much: noted, see cost_notes
    assert not check_match(here, measured(b300, None), False)
    by_depth = measured(b300, 3, draft=(), draft_parts=DraftParts("block", 3, next_ms=1.0))
    assert not check_match(here, by_depth, False)


@pytest.mark.parametrize(
    ("model", "target", "foreign"),
    [
        ("llama-3.1-8b,gpu=h100", "meta-llama/Llama-3.1-8B-Instruct", False),
        ("llama-3.1-8b,gpu=h100", "Llama-3.1-70B", True),
        ("glm-4.5,gpu=b200,tp=8", "zai-org/GLM-4.5-Air", True),
        ("glm-4.5-air,gpu=b200,tp=8", "zai-org/GLM-4.5-Air-FP8", False),
        ("deepseek-v4-flash,gpu=b200,tp=8", "DeepSeek-V4-Flash-0731", False),
    ],
)
def test_a_shape_fits_fine_tunes_of_its_model_and_no_sibling(model: str, target: str, foreign: bool) -> None:
    assert check_match(trace(target), load(f"roofline:{model}"), True) is foreign
    if foreign:
        with pytest.raises(InputError, match="is an estimate for"):
            check_match(trace(target), load(f"roofline:{model}"), False)
