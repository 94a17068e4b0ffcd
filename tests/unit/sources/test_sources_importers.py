"""The importers, against a plain reading of the files that they import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, import_trace, validate_trace
from avsim.sources.summary import summarise
from avsim.sources.walk import walked

MODES = ("greedy", "sampled-target-greedy-draft", "sampled-target-sampled-draft")
SEED = "traces/smollm2-eagle1-dense"


@pytest.fixture(params=MODES)
def seed(request: pytest.FixtureRequest, reference: Path, tmp_path: Path) -> tuple[Trace, pl.DataFrame]:
    trace = import_trace(f"smollm2-eagle1-dense:mode={request.param}", reference / SEED, tmp_path / "seed")
    rows = pl.read_parquet(reference / SEED / "rows.parquet").filter(pl.col("mode") == request.param)
    return trace, rows.sort("req", "position", "slot")


def test_conditional_acceptance_is_a_group_by_of_the_rows(seed: tuple[Trace, pl.DataFrame]) -> None:
    trace, rows = seed
    plain = rows.filter("reached").group_by("slot").agg(pl.len(), pl.col("accept").sum()).sort("slot")
    counts = summarise(trace).rows
    assert counts.observed.tolist() == plain["len"].to_list()
    assert counts.accepted.tolist() == plain["accept"].to_list()
    rate, _, _ = counts.rates("conditional")
    np.testing.assert_allclose(rate, (plain["accept"] / plain["len"]).to_numpy(), rtol=1e-12)
    assert counts.drafted.tolist() == rows.group_by("slot").len().sort("slot")["len"].to_list()


def test_features_are_those_of_the_rows(seed: tuple[Trace, pl.DataFrame]) -> None:
    trace, rows = seed
    blocks = trace.blocks(trace.features)
    drafted = np.arange(5)[:, None] < blocks.num_drafted
    assert drafted.sum() == len(rows)

    def flat(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.features[name].T[drafted.T]

    for name, column in (("entropy", "entropy"), ("logsumexp", "lse")):
        np.testing.assert_allclose(flat(name), rows[column].cast(pl.Float32).to_numpy(), rtol=1e-6)
    log_q = rows["log_max_q"].cast(pl.Float64).to_numpy()
    np.testing.assert_allclose(flat("log_odds"), log_q - np.log1p(-np.exp(log_q)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.exp(flat("draft_logprob")), rows["q_d"].to_numpy(), rtol=1e-5)
    reached = rows["reached"].to_numpy()
    assert (np.isnan(flat("target_logprob")) == ~reached).all()
    target = np.minimum(rows["p_d"].to_numpy()[reached], 1)
    np.testing.assert_allclose(np.exp(flat("target_logprob")[reached]), target, rtol=1e-5)
    sampled = trace.card.draft_sampling == "probabilistic"
    assert ("accept_prob" in trace.features) == sampled
    if sampled:
        expected = np.minimum(target / rows["q_d"].to_numpy()[reached], 1)
        np.testing.assert_allclose(flat("accept_prob")[reached], expected, rtol=1e-5)
        # Rejection sampling accepts with that probability: equal in the mean over 10,000 labels.
        assert abs(flat("accept_prob")[reached].mean() - rows["accept"].to_numpy()[reached].mean()) < 0.015


@pytest.mark.parametrize(
    ("name", "num_slots", "blocks", "accepted"),
    [("greedy", 4, 5788, 3136), ("greedy", 5, 5752, 3173), ("sampled", 4, 5793, 3059)],
)
def test_the_walk_matches_the_published_counts(
    name: str, num_slots: int, blocks: int, accepted: int, request: pytest.FixtureRequest
) -> None:
    trace: Trace = request.getfixturevalue(name)
    found = trace.blocks(num_slots=num_slots)
    counts = trace.requests["output_len"].to_numpy() - 1
    path = walked(counts, found.position, found.num_accepted)
    assert (int(path.sum()), int(found.num_accepted[path].sum())) == (blocks, accepted)


@pytest.mark.parametrize(("name", "mode"), [("greedy", MODES[0]), ("sampled", MODES[2])])
def test_the_shipped_traces_are_the_seed(
    name: str, mode: str, request: pytest.FixtureRequest, reference: Path, tmp_path: Path
) -> None:
    shipped: Trace = request.getfixturevalue(name)
    again = import_trace(f"smollm2-eagle1-dense:{mode}", reference / SEED, tmp_path / "again")
    assert again.card == shipped.card
    validate_trace(shipped.path)


def test_greedy_requests_that_start_alike_are_one_source(greedy: Trace, sampled: Trace) -> None:
    pairs = greedy.requests.filter(pl.col("request") != pl.col("source")).select("source", "request").rows()
    assert sorted(pairs) == [(7, 58), (45, 50)]
    assert sampled.requests["source"].n_unique() == len(sampled.requests)


def test_cards_hold_no_path_of_a_machine(greedy: Trace, sampled: Trace) -> None:
    for trace in (greedy, sampled):
        assert "/" not in json.dumps(trace.card.to_json()).replace("cost/", "")


@pytest.mark.parametrize(("drafter", "positions"), [("eagle", 500_877), ("ngram", 503_234)])
def test_specdecode_bench_holds_every_position(drafter: str, positions: int, reference: Path, tmp_path: Path) -> None:
    total = 0
    for file in sorted((reference / "reference/specdecode_bench").glob("*.jsonl")):
        trace = import_trace(f"specdecode-bench:{drafter}", file, tmp_path / file.stem)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        lengths = [row[f"acc_{drafter}"]["acc_len"] for row in rows]
        assert trace.requests["output_len"].to_list() == [len(row) for row in lengths]
        assert trace.requests["prompt_len"].to_list() == [len(row["prompt_token_ids"]) for row in rows]
        blocks = trace.blocks()
        np.testing.assert_array_equal(blocks.num_accepted + 1, np.concatenate(lengths))
        total += len(blocks)
    assert total == positions


LINE: dict[str, Any] = {"prompt_token_ids": [1, 2, 3], "acc_eagle": {"acc_len": [1, 21, 3]}}


def test_specdecode_bench_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(LINE) + "\n" for _ in range(2)))
    trace = import_trace("specdecode-bench", file, tmp_path / "trace")
    blocks = trace.blocks()
    assert blocks.position.tolist() == [0, 1, 2] * 2
    assert blocks.num_accepted.tolist() == [0, 20, 2] * 2
    assert trace.card.name == "specdecode-bench-data-eagle"


def test_no_path_starts_a_block_at_the_last_token(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(LINE | {"acc_eagle": {"acc_len": [1, 1, 9]}}))
    path = summarise(import_trace("specdecode-bench", file, tmp_path / "trace")).path
    assert path is not None
    assert (path.num_blocks, path.accepted.sum()) == (2, 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not valid JSON"),
        ("[]", "line 1: it needs prompt_token_ids and acc_eagle.acc_len"),
        (json.dumps(LINE | {"acc_eagle": {}}), "it needs prompt_token_ids"),
        (json.dumps(LINE | {"acc_eagle": {"acc_len": []}}), "acc_len must be a list"),
        (json.dumps(LINE | {"acc_eagle": {"acc_len": [0]}}), "whole numbers from 1 to 21"),
        (json.dumps(LINE | {"acc_eagle": {"acc_len": [22]}}), "whole numbers from 1 to 21"),
        (json.dumps(LINE | {"acc_eagle": {"acc_len": [1.5]}}), "whole numbers from 1 to 21"),
        ("", "no requests"),
    ],
)
def test_specdecode_bench_refuses_other_files(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(line)
    with pytest.raises(InputError, match=message):
        import_trace("specdecode-bench", tmp_path / "data.jsonl", tmp_path / "trace")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("specdecode-bensh", "unknown source 'specdecode-bensh'; did you mean 'specdecode-bench'"),
        ("specdecode-bench:drafter=mtp", "option drafter is 'mtp'"),
        ("smollm2-eagle1-dense:greddy", "did you mean 'greedy'"),
        ("specdecode-bench", "no such file"),
        ("smollm2-eagle1-dense", "no such file"),
    ],
)
def test_a_wrong_request_is_one_line(spec: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        import_trace(spec, tmp_path / "missing", tmp_path / "trace")


def test_the_seed_importer_refuses_other_tables(tmp_path: Path) -> None:
    for name in ("rows", "requests"):
        pl.DataFrame({"mode": ["greedy"]}).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match="column 'req' is missing"):
        import_trace("smollm2-eagle1-dense", tmp_path, tmp_path / "trace")
