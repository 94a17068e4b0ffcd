"""Outputs that are kept for the next drafter."""

from __future__ import annotations

import pytest

from avsim.capture.dense.generate import Output
from avsim.capture.dense.outputs import KeptOutputs
from avsim.errors import InputError

PROMPTS = [[1, 2], [3], [4, 5]]


class Generator:
    """Makes outputs that tell their request and prompt, and notes what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, requests, prompts):
        self.asked.append(list(requests))
        return [Output(request, [request, *prompt], 2) for request, prompt in zip(requests, prompts, strict=True)]


def test_only_new_outputs_are_generated_and_the_order_is_kept(tmp_path):
    make = Generator()
    first = KeptOutputs(tmp_path / "kept", {"seed": 1}).get([1, 2], PROMPTS[1:], make)
    again = KeptOutputs(tmp_path / "kept", {"seed": 1}).get([0, 1, 2], PROMPTS, make)
    assert make.asked == [[1, 2], [0]]
    assert again == [Output(0, [0, 1, 2], 2), *first]


@pytest.mark.parametrize("change", ["made_from", "request", "prompt"])
def test_what_an_output_follows_from_decides(tmp_path, change):
    make = Generator()
    KeptOutputs(tmp_path, {"seed": 1}).get([0], [[1, 2]], make)
    made_from = {"seed": 2 if change == "made_from" else 1}
    request, prompt = (1 if change == "request" else 0), ([1, 3] if change == "prompt" else [1, 2])
    KeptOutputs(tmp_path, made_from).get([request], [prompt], make)
    assert len(make.asked) == 2


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = Generator()
    for _ in range(2):
        KeptOutputs(None, {}).get([0], [[1]], make)
    assert make.asked == [[0], [0]]
    assert list(tmp_path.iterdir()) == []


def test_a_broken_file_is_named(tmp_path):
    KeptOutputs(tmp_path, {}).get([0], [[1]], Generator())
    (file,) = tmp_path.iterdir()
    file.write_text("[]")
    with pytest.raises(InputError, match=rf"{file.name}: not a kept output"):
        KeptOutputs(tmp_path, {}).get([0], [[1]], Generator())
