"""Merging traces, against putting their rows one after the other by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from avsim.errors import InputError
from avsim.sources import Trace, open_trace, validate_trace, write_trace
from avsim.sources.merge import merge_traces
from avsim.sources.synthetic import SyntheticLaw, write_synthetic


def rewritten(trace: Trace, path: Path, steps: pl.DataFrame | None = None, **changes: Any) -> Trace:
    """Write a trace again with a changed card."""
    table = pl.concat([pl.read_parquet(part.path) for part in trace.parts])
    requests = changes.pop("requests", trace.requests)
    table = changes.pop("blocks", table)
    return write_trace(path, replace(trace.card, recorded=(), **changes), requests, [table], steps or trace.steps())


def law(**options: Any) -> SyntheticLaw:
    return SyntheticLaw(num_requests=6, output_len=20, num_speculative_tokens=3, **options)


@pytest.fixture(params=["dense", "on-policy"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Trace, Trace]:
    both = [
        write_synthetic(tmp_path / f"in{seed}", law(kind=request.param, num_reqs=4, seed=seed)) for seed in range(2)
    ]
    return both[0], both[1]


def test_the_rows_follow_each_other(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    merged = merge_traces(tmp_path / "out", [trace.path for trace in pair])
    validate_trace(merged.path)
    whole, (one, two) = merged.blocks(merged.features), (trace.blocks(trace.features) for trace in pair)
    for name in ("position", "num_drafted", "num_admitted", "num_accepted"):
        np.testing.assert_array_equal(getattr(whole, name), np.append(getattr(one, name), getattr(two, name)))
    np.testing.assert_array_equal(whole.request, np.append(one.request, two.request + 6))
    for name in merged.features:
        np.testing.assert_array_equal(whole.features[name], np.hstack([one.features[name], two.features[name]]))
    if one.step is None or two.step is None:
        assert whole.step is None
    else:
        np.testing.assert_array_equal(whole.step, np.append(one.step, two.step - two.step[0] + one.step[-1] + 1))
    assert merged.requests["request"].to_list() == list(range(12))
    assert merged.requests["source"].to_list() == list(range(12))
    card = merged.card
    assert card.name == f"{pair[0].card.name}-and-1-more"
    assert card.seed is None
    assert card.derived_from is not None
    assert all(trace.card.name in card.derived_from for trace in pair)
    assert "follow each other" in card.notes


def test_a_merge_is_associative_in_its_content(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    third = rewritten(pair[0], tmp_path / "third", requests=pair[0].requests.with_columns(prompt_len=pl.lit(9)))
    paths = [pair[0].path, pair[1].path, third.path]
    left = merge_traces(tmp_path / "left", [merge_traces(tmp_path / "l", paths[:2]).path, paths[2]])
    right = merge_traces(tmp_path / "right", [paths[0], merge_traces(tmp_path / "r", paths[1:]).path])
    flat = merge_traces(tmp_path / "flat", paths)
    assert left.card.content_hash == right.card.content_hash == flat.card.content_hash


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("target", "other", "target is 'none' in .*in0, but 'other' in .*changed"),
        ("drafter", "other", "drafter is 'none'"),
        ("drafter_kind", "eagle", "drafter_kind is 'synthetic'"),
        ("draft_sampling", "probabilistic", "draft_sampling is 'greedy'"),
        ("acceptance_rule", "block", "acceptance_rule is 'greedy-match'"),
        ("temperature", 0.5, "temperature is 0.0 in .*but 0.5 in .*--allow-mixed-temperature"),
        ("vocab_size", 9, "vocab_size is None"),
        ("synthetic", False, "synthetic is True"),
    ],
)
def test_cards_must_agree(field: str, value: Any, said: str, pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    changed = rewritten(pair[1], tmp_path / "changed", **{field: value})
    with pytest.raises(InputError, match=said) as error:
        merge_traces(tmp_path / "out", [pair[0].path, changed.path])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_kind_k_and_features_must_agree(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    kinds = [write_synthetic(tmp_path / kind, law(kind=kind, num_reqs=4)).path for kind in ("dense", "on-policy")]
    with pytest.raises(InputError, match=r"kind is 'dense' in .* but 'on-policy' in"):
        merge_traces(tmp_path / "out", kinds)
    fewer = replace(law(kind=pair[0].card.kind, num_reqs=4), num_speculative_tokens=2)
    with pytest.raises(InputError, match=r"num_speculative_tokens is 3 in .* but 2 in"):
        merge_traces(tmp_path / "out", [pair[0].path, write_synthetic(tmp_path / "k2", fewer).path])
    table = pl.concat([pl.read_parquet(part.path) for part in pair[1].parts])
    bare = rewritten(pair[1], tmp_path / "bare", blocks=table.drop([c for c in table.columns if "log_odds" in c]))
    with pytest.raises(InputError, match=r"recorded is log_odds in .* but nothing in"):
        merge_traces(tmp_path / "out", [pair[0].path, bare.path])


def test_mixed_temperatures_are_a_choice(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    hot = pair[1].requests.with_columns(temperature=pl.lit(0.5))
    changed = rewritten(pair[1], tmp_path / "hot", requests=hot, temperature=0.5)
    merged = merge_traces(tmp_path / "out", [pair[0].path, changed.path], allow_mixed_temperature=True)
    assert merged.card.temperature is None
    assert merged.requests["temperature"].to_list() == [0.0] * 6 + [0.5] * 6


def test_sources_are_kept_apart_unless_the_prompts_are_the_same(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    first = rewritten(
        pair[0], tmp_path / "first", requests=pair[0].requests.with_columns(source=pl.Series([0, 0, 2, 3, 4, 5]))
    )
    second = rewritten(
        pair[1], tmp_path / "second", requests=pair[1].requests.with_columns(source=pl.Series([0, 1, 1, 3, 4, 5]))
    )
    paths = [first.path, second.path]
    assert merge_traces(tmp_path / "apart", paths).requests["source"].to_list() == [0, 0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9]
    same = merge_traces(tmp_path / "same", paths, same_prompts=True)
    # 0 and 1 are one in the first trace, 1 and 2 in the second: so all three are.
    assert same.requests["source"].to_list() == [0, 0, 0, 1, 2, 3] * 2
    other = rewritten(pair[1], tmp_path / "other", requests=pair[1].requests.with_columns(prompt_len=pl.lit(5)))
    with pytest.raises(
        InputError, match=r"request 0 has a prompt of 64 tokens in .* but of 5 in .*not the same prompts"
    ):
        merge_traces(tmp_path / "out", [first.path, other.path], same_prompts=True)


def test_what_only_one_trace_has_is_kept(tmp_path: Path) -> None:
    plain = write_synthetic(tmp_path / "plain", law(kind="on-policy", num_reqs=4))
    table = pl.concat([pl.read_parquet(part.path) for part in plain.parts])
    steps = table.group_by("step").agg(num_reqs=pl.len().cast(pl.Int64)).sort("step")
    full = write_trace(
        tmp_path / "full",
        replace(plain.card, recorded=(), adaptive_verification=True, engine="vLLM", complete_blocks=False),
        plain.requests.with_columns(arrival_s=pl.lit(2.5), request=pl.col("request") * 10 + 7),
        [table.with_columns(pl.lit("grammar").alias("mask"), pl.col("step") * 3 + 4, pl.col("request") * 10 + 7)],
        steps.with_columns(pl.col("step") * 3 + 4),
    )
    merged = merge_traces(tmp_path / "out", [full.path, plain.path], name="synthetic-both")
    validate_trace(merged.path)
    blocks = merged.blocks()
    half = len(blocks) // 2
    assert blocks.unfit is not None
    assert blocks.unfit.tolist() == [True] * half + [False] * half
    found = merged.steps()
    assert found is not None
    num = len(steps)
    assert found["num_reqs"].to_list() == [*steps["num_reqs"].to_list(), *[None] * num]
    assert found["step"].to_list()[:num] == (steps["step"] * 3).to_list()
    assert found["step"][num] == found["step"][num - 1] + 1
    assert merged.requests["arrival_s"].to_list() == [2.5] * 6 + [None] * 6
    assert merged.card.name == "synthetic-both"
    assert merged.card.adaptive_verification
    assert not merged.card.complete_blocks
    assert merged.card.engine == "vLLM; avsim synthetic source"
    assert f"adaptive_verification holds for {full.card.name} only" in merged.card.notes


def test_arrival_times_go_on(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    arrivals = [[0.0, 4.0, 1.0, None, 2.0, 3.0], [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]]
    paths = [
        rewritten(one, tmp_path / f"a{n}", requests=one.requests.with_columns(arrival_s=pl.Series(arrivals[n]))).path
        for n, one in enumerate(pair)
    ]
    merged = merge_traces(tmp_path / "out", paths)
    assert merged.requests["arrival_s"].to_list() == [*arrivals[0], *(4 + (at or 0) for at in arrivals[1])]


def test_what_cannot_be_merged(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="at least two"):
        merge_traces(out, [pair[0].path])
    with pytest.raises(InputError, match="same data as"):
        merge_traces(out, [pair[0].path, pair[0].path])
    with pytest.raises(InputError, match="no trace folder"):
        merge_traces(out, [pair[0].path, tmp_path / "missing"])
    path = pair[1].parts[0].path
    pl.read_parquet(path).with_columns(num_accepted=pl.lit(0)).write_parquet(path)
    with pytest.raises(InputError, match="in1: the content hash is"):
        merge_traces(out, [pair[0].path, pair[1].path])
    assert not [*tmp_path.glob(".out*"), *tmp_path.glob("out*")]


def test_a_trace_may_grow_in_place(pair: tuple[Trace, Trace], tmp_path: Path) -> None:
    paths = [trace.path for trace in pair]
    with pytest.raises(InputError, match="the trace exists"):
        merge_traces(paths[0], paths)
    merge_traces(paths[0], paths, overwrite=True)
    assert open_trace(paths[0]).card.num_requests == 12
