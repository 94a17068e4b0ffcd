from __future__ import annotations

import json
from typing import Any

import pytest

from avsim.errors import InputError
from avsim.sources import TraceCard

CARD = TraceCard(
    name="a-trace",
    kind="dense",
    target="T",
    drafter="D",
    drafter_kind="eagle",
    num_speculative_tokens=4,
    draft_sampling="greedy",
    acceptance_rule="standard",
    temperature=1.0,
    recorded=("log_odds", "entropy"),
    seed=3,
)


def test_round_trips_through_json() -> None:
    assert TraceCard.from_text(json.dumps(CARD.to_json()), "card") == CARD


def test_ignores_keys_it_does_not_know() -> None:
    assert TraceCard.from_json(CARD.to_json() | {"mood": "good"}) == CARD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version is 2.*update avsim"),
        ({"schema_version": 0}, "schema_version is 0"),
        ({"schema_version": "1"}, "schema_version is '1'; it must be int"),
        ({"kind": "sparse"}, "kind is 'sparse'"),
        ({"drafter_kind": "eagel"}, "drafter_kind is 'eagel'; did you mean 'eagle'"),
        ({"name": "/home/me/trace"}, "use letters, digits"),
        ({"name": 7}, "name is 7"),
        ({"synthetic": True}, "starts with 'synthetic-'"),
        ({"synthetic": 1}, "synthetic is 1; it must be bool"),
        ({"num_speculative_tokens": 0}, "must be 1 to 255"),
        ({"num_speculative_tokens": 4.5}, "num_speculative_tokens is 4.5"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"recorded": ["log_ods"]}, "unknown feature 'log_ods'; did you mean 'log_odds'"),
        ({"recorded": [1]}, "recorded is"),
        ({"recorded": 5}, "recorded is"),
    ],
)
def test_refuses_bad_values(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^where: .*{message}"):
        TraceCard.from_text(json.dumps(CARD.to_json() | change), "where")


@pytest.mark.parametrize("key", ["schema_version", "name", "target", "num_speculative_tokens"])
def test_names_the_missing_key(key: str) -> None:
    data = CARD.to_json()
    del data[key]
    with pytest.raises(InputError, match=f"'{key}' is missing"):
        TraceCard.from_json(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000], ids=["empty", "cut", "list", "null", "deep"])
def test_refuses_what_is_no_card(text: str) -> None:
    with pytest.raises(InputError, match=r"^where: (not valid JSON|a trace card is)"):
        TraceCard.from_text(text, "where")
