"""Measured curves, and the published one of DeepSeek-V4-Flash on four B300."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from avsim.costs import CostCard, CurveCost, load, staircase
from avsim.errors import InputError

CARD = CostCard("made-up", model="none", hardware="none", kind="synthetic", source="this test")
POINTS = ((1, 1.0), (2, 3.0), (4, 2.0), (8, 10.0), (16, 14.0))


def medians(path: Path) -> list[tuple[int, float]]:
    with path.open(encoding="utf-8") as lines:
        rows = [list(row.values()) for row in csv.DictReader(lines)]
    return [(int(size), float(ms)) for size, ms, kind in rows if kind == "median"]


def test_the_published_verify_curve(reference: Path) -> None:
    points = medians(reference / "reference/cost_verify_v4flash_tp4_b300.csv")
    captured = [size for size, _ in points if size <= 1024]
    assert len(captured) == 83
    table = staircase(4096, points, 1024)
    assert len(np.unique(table[captured])) == 49
    assert table[1024] == 20.634
    assert np.unique(table[1025:2049]).tolist() == [104.489]
    assert (np.diff(table) >= 0).all()


def test_the_preset_is_the_published_curve(reference: Path) -> None:
    preset = load("deepseek-v4-flash-tp4-b300")
    assert isinstance(preset, CurveCost)
    assert list(preset.verify) == medians(reference / "reference/cost_verify_v4flash_tp4_b300.csv")
    assert list(preset.draft) == medians(reference / "reference/cost_draft_v4flash_tp4_b300.csv")
    tables = preset.tables(256, 2048)
    assert (tables.verify[1024], tables.verify[1025]) == (20.634, 104.489)


def test_a_curve_is_padded_below_the_limit_and_interpolated_above() -> None:
    assert staircase(20, POINTS, 4).tolist() == pytest.approx(
        [1, 1, 3, 3, 3, 10, 10, 10, 10, 10.5, 11, 11.5, 12, 12.5, 13, 13.5, 14, 14.5, 15, 15.5, 16]
    )


def test_without_a_limit_the_staircase_goes_to_the_last_point() -> None:
    assert staircase(17, POINTS).tolist() == [1, 1, 3, 3, 3, *[10] * 4, *[14] * 8, 14.5]


def test_a_limit_beyond_the_last_point_is_no_limit() -> None:
    assert staircase(17, POINTS, 100).tolist() == staircase(17, POINTS).tolist()


def test_a_single_point_holds_everywhere() -> None:
    assert staircase(9, [(4, 2.5)]).tolist() == [2.5] * 10


def test_the_cached_table_grows_with_the_question() -> None:
    model = CurveCost(verify=POINTS, draft=((1, 1.0), (4, 2.0)), capture_limit=4, card=CARD)
    small = model.tables(2, 10)
    large = model.tables(40, 300)
    assert large.verify[:11].tolist() == small.verify.tolist()
    assert large.verify[300] == pytest.approx(14 + 0.5 * 284)
    assert model == CurveCost(verify=POINTS, draft=((1, 1.0), (4, 2.0)), capture_limit=4, card=CARD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verify": ()}, "the verify curve has no points"),
        ({"draft": ()}, "the draft curve has no points"),
        ({"verify": ((2, 1.0), (2, 2.0))}, "verify sizes must rise strictly from at least 1"),
        ({"verify": ((0, 1.0), (2, 2.0))}, "verify sizes must rise strictly from at least 1"),
        ({"draft": ((1, 0.0),)}, "every draft time must be finite and > 0 ms"),
        ({"verify": ((1, float("nan")),)}, "every verify time must be finite and > 0 ms"),
        ({"capture_limit": -1}, "capture_limit must be at least 0, not -1"),
        ({"overhead_ms": -0.1}, "overhead_ms must be finite and ≥ 0"),
        ({"overhead_ms": float("inf")}, "overhead_ms must be finite and ≥ 0"),
    ],
)
def test_bad_curves_are_refused(change: dict[str, object], message: str) -> None:
    good = {"verify": POINTS, "draft": ((1, 1.0),), "capture_limit": 4, "card": CARD}
    with pytest.raises(InputError, match=f"cost made-up: .*{message}"):
        CurveCost(**good | change)  # type: ignore[arg-type]


def test_it_says_how_a_step_leaves_the_measured_range() -> None:
    model = CurveCost(verify=POINTS, draft=((1, 1.0), (4, 2.0)), card=CARD)
    assert model.outside(4, 16) is None
    assert "17 tokens, beyond the last measured size 16" in (model.outside(4, 17) or "")
    assert "5 requests, beyond the last measured count 4" in (model.outside(5, 16) or "")
