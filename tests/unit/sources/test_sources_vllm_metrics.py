"""Importing vLLM's per-request counts, against a plain walk through the two lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, import_trace, validate_trace
from avsim.sources.summary import summarise

SPEC = "vllm-metrics:0,drafter=a-head,drafter_kind=eagle"


def response(
    accepted: list[int], drafted: list[int], name: str = "cmpl-1", counts: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A completion as vLLM 0.33 serves it."""
    summed = {
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": 3,
    }
    steps = {"per_step_accepted": accepted, "per_step_drafted": drafted} if accepted else {}
    return {
        "id": name,
        "object": "text_completion",
        "model": "org/target-8b",
        "system_fingerprint": "vllm-0.33.0-tp2-0a1b2c3d",
        "choices": [{"index": 0, "text": "…"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1 + sum(accepted) + len(accepted)},
        "metrics": {"time_to_first_token_ms": 1.0, "speculative_decoding": summed | steps | (counts or {})},
    } | more


def imported(tmp_path: Path, text: str, spec: str = SPEC) -> Trace:
    (tmp_path / "responses.jsonl").write_text(text, encoding="utf-8")
    trace = import_trace(spec, tmp_path / "responses.jsonl", tmp_path / "trace", overwrite=True)
    validate_trace(trace.path)
    return trace


def lines(*responses: dict[str, Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in responses)


def test_by_hand(tmp_path: Path) -> None:
    trace = imported(tmp_path, lines(response([2, 0, 3], [3, 3, 3], "a"), response([1, 1], [3, 1], "b")))
    blocks = trace.blocks()
    assert blocks.request.tolist() == [0, 0, 0, 1, 1]
    assert blocks.position.tolist() == [0, 3, 4, 0, 2]
    assert blocks.num_drafted.tolist() == blocks.num_admitted.tolist() == [3, 3, 3, 3, 1]
    assert blocks.num_accepted.tolist() == [2, 0, 3, 1, 1]
    assert blocks.step is not None
    assert blocks.step.tolist() == [0, 1, 2, 3, 4]
    assert trace.requests["output_len"].to_list() == [9, 5]
    assert trace.requests["prompt_len"].to_list() == [7, 7]
    assert trace.requests["source"].to_list() == [0, 1]
    assert trace.steps() is None
    card = trace.card
    assert (card.kind, card.target, card.engine, card.engine_version) == (
        "on-policy", "org/target-8b", "vLLM", "0.33.0",
    )  # fmt: skip
    assert (card.name, card.drafter, card.drafter_kind) == ("target-8b-eagle-vllm-metrics", "a-head", "eagle")
    assert (card.num_speculative_tokens, card.temperature, card.acceptance_rule) == (3, 0.0, "greedy-match")
    assert card.recorded == ()
    assert card.complete_blocks
    assert "all are taken as admitted" in card.notes
    assert "which requests shared a step" in card.notes
    assert summarise(trace).rows.accepted.tolist() == [4, 2, 1]


def test_what_the_counts_of_the_response_say_is_what_the_trace_says(tmp_path: Path) -> None:
    served = response([0, 3, 1, 2, 3, 0], [3, 3, 2, 3, 3, 0])
    counts = served["metrics"]["speculative_decoding"]
    rows = summarise(imported(tmp_path, lines(served))).rows
    assert int(rows.drafted.sum()) == counts["num_draft_tokens"]
    assert int(rows.accepted.sum()) == counts["num_accepted_draft_tokens"]
    assert rows.acceptance_length == 1 + counts["num_accepted_draft_tokens"] / counts["num_spec_steps"]


@pytest.mark.parametrize("layout", ["lines", "list", "one", "stream", "batch"])
def test_every_layout_gives_the_same_trace(layout: str, tmp_path: Path) -> None:
    one, two = response([2, 0], [3, 3], "a"), response([1], [3], "b")
    served = [one] if layout == "one" else [one, two]
    if layout == "lines":
        text = "\ufeff" + lines(*served).replace("\n", "\n\n")
    elif layout == "stream":
        chunk = {"id": "a", "object": "text_completion", "choices": [{"text": "x"}], "metrics": None}
        events = [chunk, one, {**chunk, "id": "b"}, two]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ": ping\n\ndata: [DONE]\n"
    elif layout == "batch":
        wrapped = [{"id": "vllm-x", "custom_id": "1", "response": {"status_code": 200, "body": r}} for r in served]
        text = lines(*wrapped)
    else:
        text = json.dumps(served if layout == "list" else one, indent=2)
    trace = imported(tmp_path, text)
    assert trace.blocks().num_accepted.tolist() == ([2, 0] if layout == "one" else [2, 0, 1])
    assert "without metrics" not in trace.card.notes


def test_the_tail_may_be_cut_and_steps_without_a_draft_are_counted(tmp_path: Path) -> None:
    cut = response([1, 3], [3, 3], "cut", usage={"prompt_tokens": 1, "completion_tokens": 4})
    silent = response([1, 3], [3, 3], "silent", usage={"prompt_tokens": 1, "completion_tokens": 12})
    trace = imported(tmp_path, lines(cut, silent))
    assert trace.requests["output_len"].to_list() == [4, 12]
    assert "5 output tokens of 1 requests come from steps without a draft" in trace.card.notes
    impossible = response([1, 3], [3, 3], usage={"prompt_tokens": 1, "completion_tokens": 3})
    with pytest.raises(InputError, match=r"steps before the last emit 3 tokens, but usage.completion_tokens is 3"):
        imported(tmp_path, lines(impossible))


def test_what_is_unknown_is_said(tmp_path: Path) -> None:
    bare = response([1, 2], [3, 2], counts={"num_spec_tokens": None}, model=None, usage=None, system_fingerprint=None)
    trace = imported(tmp_path, lines(bare, response([], [], "idle"), {"id": "n2", "metrics": None}), "vllm-metrics:0.7")
    assert trace.requests["prompt_len"].to_list() == [0, 7]
    assert trace.requests["output_len"].to_list() == [6, 1]
    assert trace.card.engine_version is None
    assert (trace.card.temperature, trace.card.acceptance_rule, trace.card.draft_sampling) == (
        0.7,
        "standard",
        "greedy",
    )
    for said in (
        "1 responses without metrics were left out",
        "1 requests have no step",
        "prompt_len is unknown, and 0 here, for 1 requests",
        "output_len of 1 requests without usage",
    ):
        assert said in trace.card.notes


def test_k_is_stated_or_chosen_or_the_largest(tmp_path: Path) -> None:
    unstated = response([1, 2], [4, 2], counts={"num_spec_tokens": None})
    trace = imported(tmp_path, lines(unstated))
    assert trace.card.num_speculative_tokens == 4
    assert "K is the largest per_step_drafted" in trace.card.notes
    chosen = imported(tmp_path, lines(unstated), f"{SPEC},num_speculative_tokens=6")
    assert chosen.card.num_speculative_tokens == 6
    assert "K is the largest" not in chosen.card.notes
    assert imported(tmp_path, lines(response([1], [1]))).card.num_speculative_tokens == 3


def test_equal_prompts_are_one_source_where_the_client_asked_for_them(tmp_path: Path) -> None:
    served = [
        response([1], [3], "a", prompt_token_ids=[1, 2]),
        response([1], [3], "b", choices=[{"prompt_token_ids": [1, 3]}]),
        response([1], [3], "c", choices=[{"prompt_token_ids": [1, 2]}]),
        response([1], [3], "d"),
    ]
    assert imported(tmp_path, lines(*served)).requests["source"].to_list() == [0, 1, 0, 3]


COUNTS = "metrics.speculative_decoding"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no steps .no responses."),
        ("{\n", "line 1: not valid JSON"),
        (lines(response([1], [3])) + "oops\n", "line 2: not valid JSON"),
        ("[1, 2]", "item 0: not a response"),
        (lines({"id": "x", "choices": []}), f"no steps .1 responses have no {COUNTS}."),
        (lines(response([], [])), "no steps"),
        (lines(response([1], [3], counts={"per_step_drafted": None})), "serve with --per-request-spec-decode-metrics"),
        (
            lines(response([], [], counts={"num_spec_steps": 4})),
            "serve with --per-request-spec-decode-metrics detailed",
        ),
        (lines(response([1], [3], counts={"per_step_drafted": [3, 3]})), "1 entries of per_step_accepted, 2 of"),
        (lines(response([4], [3])), "step 0 accepted 4 of 3 drafted tokens"),
        (lines(response([1], [5])), "a step drafted 5 tokens, but K is 3"),
        (lines(response([1], [3], counts={"per_step_accepted": [-1]})), "whole numbers ≥ 0"),
        (lines(response([1], [3], counts={"per_step_accepted": [True]})), "whole numbers ≥ 0"),
        (lines(response([1], [3], counts={"num_draft_tokens": 9})), "num_draft_tokens is 9, but the steps add up to 3"),
        (lines(response([1], [3], usage={"prompt_tokens": "7"})), "prompt_tokens is '7'"),
        (lines(response([1], [3]), response([1], [3])), "line 2: response 'cmpl-1' is there twice, first in"),
        (lines(response([1], [3], "a"), response([1], [3], "b", model="other")), "responses of several models"),
        (
            lines(response([1], [3], "a"), response([1], [3], "b", counts={"num_spec_tokens": 5})),
            "num_spec_tokens differ",
        ),
    ],
)
def test_other_files_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        imported(tmp_path, text)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "trace").exists()


def test_adaptive_verification_is_refused_as_trimmed_slots_read_as_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trimmed drafts as rejected.*importer 'capture'"):
        imported(tmp_path, lines(response([1], [3])), f"{SPEC},adaptive_verification=true")


def test_the_temperature_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vllm-metrics needs temperature"):
        imported(tmp_path, lines(response([1], [3])), "vllm-metrics")


def test_no_token_id_reaches_the_trace(tmp_path: Path) -> None:
    trace = imported(tmp_path, lines(response([1], [3], prompt_token_ids=[4242, 4243])))
    tables = [pl.read_parquet(file) for file in trace.path.glob("*.parquet")]
    assert "4242" not in "".join(table.write_csv() for table in tables) + json.dumps(trace.card.to_json())
