"""Prompts, draws, prompt lookup and log lines of the dense tracer: what needs no torch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from avsim.capture.dense.drafters import MODULES, load_drafter, split_spec
from avsim.capture.dense.drafters.ngram import Lookup
from avsim.capture.dense.model import require
from avsim.capture.dense.progress import LogLines
from avsim.capture.dense.prompts import read_prompts
from avsim.capture.dense.run import DenseSettings
from avsim.capture.dense.verify import draft_uniforms, target_uniforms
from avsim.errors import InputError


def write(path, *rows):
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def test_every_kind_of_row_is_read(tmp_path):
    mixed = write(
        tmp_path / "mixed.jsonl",
        {"prompt": "a\u2028b", "category": "x"},
        {"question": "b"},
        "",
        {"turns": ["c", "d"], "category": "y"},
        {"task_id": "HumanEval/0", "prompt": "e"},
        {"prompt": "b"},
    )
    more = write(tmp_path / "more.jsonl", {"question": "c"}, {"question": "f"})
    prompts, dropped = read_prompts([mixed, more])
    assert [(prompt.text, prompt.category) for prompt in prompts] == [
        ("a\u2028b", "x"), ("b", "mixed"), ("c", "y"), ("e", "mixed"), ("f", "more"),
    ]  # fmt: skip
    assert dropped == 2
    assert prompts[3].where == f"{mixed} row 5"
    chosen, dropped = read_prompts([mixed, more], categories=("more", "mixed"), limit=3)
    assert [prompt.text for prompt in chosen] == ["b", "e", "c"]
    assert dropped == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("3", "not a JSON object"),
        ({"text": "a"}, "none of prompt, question, turns"),
        ({"prompt": " "}, "prompt holds no text"),
        ({"prompt": ["a"]}, "prompt holds no text"),
        ({"turns": []}, "turns holds no text"),
        ({"prompt": "a", "category": 3}, "category is 3"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    path = write(tmp_path / "bad.jsonl", {"prompt": "good"}, row)
    with pytest.raises(InputError, match=f"bad.jsonl row 2: .*{message}"):
        read_prompts([path])


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none.jsonl: cannot be read \(No such file"):
        read_prompts([tmp_path / "none.jsonl"])
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(InputError, match=r"latin.jsonl: not UTF-8"):
        read_prompts([tmp_path / "latin.jsonl"])
    with pytest.raises(InputError, match=r"empty.jsonl: no prompts"):
        read_prompts([write(tmp_path / "empty.jsonl")])
    with pytest.raises(InputError, match="category 'z'; there are good"):
        read_prompts([write(tmp_path / "good.jsonl", {"prompt": "a"})], categories=("z",))


def test_uniforms_are_keyed_by_request_position_and_slot():
    longer, shorter = draft_uniforms(1, 2, 50, 4), draft_uniforms(1, 2, 20, 4)
    np.testing.assert_array_equal(longer[:20], shorter)
    np.testing.assert_array_equal(target_uniforms(1, 2, 90)[:30], target_uniforms(1, 2, 30))
    several = [draft_uniforms(seed, request, 5, 2).ravel() for seed in (1, 2) for request in (0, 1)]
    several += [target_uniforms(seed, request, 20) for seed in (1, 2) for request in (0, 1)]
    assert len(np.unique(np.concatenate(several))) == 8 * 20


@pytest.mark.parametrize(
    ("tokens", "drafted"),
    [
        ([1, 2, 3], []),
        ([1], []),
        ([7, 7], [7]),
        ([7, 7, 7, 7], [7]),  # the longest suffix (three) first occurs one token earlier, with one token behind it
        ([1, 2, 9, 1, 2, 8, 1, 2], [9, 1, 2]),  # the earliest occurrence
        ([2, 9, 1, 2, 8, 1, 2], [8, 1, 2]),  # two tokens rather than one
    ],
)
def test_lookup(tokens, drafted):
    assert Lookup().propose(tokens, [len(tokens) - 1], 3) == [drafted]


def test_lookup_does_not_see_what_comes_later():
    tokens = [4, 5, 6, 4, 5, 7, 4, 5, 6, 4, 4]
    blocks = Lookup().propose(tokens, range(len(tokens)), 4)
    for end, block in enumerate(blocks):
        assert block == Lookup().propose(tokens[: end + 1], [end], 4)[0]


@pytest.mark.parametrize("argument", ["min=0", "min=2,max=1", "max=a", "size=3", "3"])
def test_bad_lookup_options(argument):
    with pytest.raises(InputError, match=f"ngram:{argument}"):
        load_drafter(f"ngram:{argument}", None)


def test_unknown_drafters_and_missing_packages():
    with pytest.raises(InputError, match="did you mean 'eagle'"):
        split_spec("eagel:x")
    assert split_spec("eagle:a:b") == ("eagle", "a:b")
    assert {"draft-model", "eagle", "ngram"} <= set(MODULES)
    with pytest.raises(InputError, match=r"needs no_such_package .*pip install torch transformers"):
        require("no_such_package.part")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"draft_sampling": "probabilistic"}, "temperature above 0"),
        ({"num_slots": 0}, "num_slots"),
        ({"num_top": 17}, "num_top"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings(given, message):
    with pytest.raises(InputError, match=message):
        DenseSettings(**({"target": "t", "drafter": "ngram", "prompts": ("p",)} | given))


def test_log_lines_come_now_and_then():
    lines, now = [], [0.0]
    log = LogLines(lines.append, lambda: now[0], every_s=60)
    for done, at in ((8, 0.0), (10, 30.0), (12, 120.0), (14, 150.0), (20, 170.0)):
        now[0] = at
        log(done, 20, "requests")
    assert lines == ["12 of 20 requests, about 4 min left", "20 of 20 requests"]
