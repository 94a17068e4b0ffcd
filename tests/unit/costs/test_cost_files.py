"""Loading cost models, and the one line that each mistake in a file gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from avsim import costs
from avsim.errors import InputError


def good() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(costs.dump(costs.load("llama-3.1-8b-h100-eagle"))))
    return data


def test_every_preset_names_its_source_and_loads_from_a_path_too(tmp_path: Path) -> None:
    for name in costs.presets():
        model = costs.load(name)
        assert model.card.name == name
        assert model.card.source.strip()
        path = tmp_path / "cost.json"
        path.write_text(json.dumps(costs.dump(model)), encoding="utf-8")
        assert costs.load(path) == model


def test_an_unknown_preset_is_corrected() -> None:
    with pytest.raises(InputError, match=r"no cost preset or file 'llama-3\.1-8b-h100'; did you mean"):
        costs.load("llama-3.1-8b-h100")


def test_unknown_keys_of_a_card_are_ignored() -> None:
    data = good()
    data["card"]["colour"] = "blue"
    assert costs.parse(json.dumps(data), "x.json") == costs.load("llama-3.1-8b-h100-eagle")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "linaer"}, "x.json: kind is 'linaer'; did you mean 'linear'?"),
        ({"kind": None}, "x.json: kind is None"),
        ({"card": {"name": "x"}}, "x.json: malformed cost model"),
        ({"fixed_ms": "much"}, "x.json: malformed cost model"),
        ({"fixed_ms": -1.0}, "fixed_ms must be finite and ≥ 0"),
        ({"fixed_ms": float("nan")}, "fixed_ms must be finite and ≥ 0"),
    ],
)
def test_mistakes_in_a_file(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        costs.parse(json.dumps(good() | change), "x.json")
    assert message in str(caught.value)


def test_a_missing_key_is_named() -> None:
    data = good()
    del data["card"]
    with pytest.raises(InputError, match="the key 'card' is missing"):
        costs.parse(json.dumps(data), "x.json")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"x\.json"):
        costs.parse(text, "x.json")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not a text file"):
        costs.load(path)
