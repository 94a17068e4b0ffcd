from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import broken_sources as broken
import numpy as np
import polars as pl
import pytest
from contract_cases import failures

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder
from avsim.sources import TraceCard, open_trace, write_trace
from avsim.sources.importers import IMPORTERS, import_trace
from avsim.sources.merge import merge_traces
from avsim.sources.synthetic import SyntheticLaw, write_synthetic
from avsim.testing import SOURCE_CHECKS

SHIPPED = Path(__file__).parents[2] / "traces"
SHARED = Path(os.environ.get("AVSIM_REFERENCE", "/nonexistent")) / "traces"


def dense(folder):
    return write_synthetic(folder, SyntheticLaw(num_requests=9, output_len=30, num_speculative_tokens=4))


def on_policy(folder):
    return write_synthetic(folder, SyntheticLaw(kind="on-policy", num_requests=20, output_len=40, num_reqs=6))


def ragged(folder):
    """Trimmed drafts, a mask, a step table, ids that are no row numbers, and a feature known only where verified."""
    rng = np.random.default_rng(5)
    num_reqs, num_steps, num_slots = 5, 60, 3
    shape = (num_steps, num_reqs)
    drafted = rng.integers(0, num_slots + 1, shape).ravel()
    admitted = rng.integers(0, drafted + 1)
    accepted = rng.integers(0, admitted + 1)
    blocks = pl.DataFrame(
        {
            "step": np.repeat(np.arange(num_steps) * 2, num_reqs),
            "request": np.tile(np.array([40, 7, 12, 3, 99]), num_steps),
            "position": np.repeat(np.arange(num_steps) * (num_slots + 1), num_reqs),
            "num_drafted": drafted,
            "num_admitted": admitted,
            "num_accepted": accepted,
            "mask": [["grammar", None, None][row % 3] for row in range(len(drafted))],
        }
        | {f"log_odds_{slot}": rng.normal(size=len(drafted)).astype(np.float32) for slot in range(num_slots)}
        | {f"alpha_{slot}": np.where(admitted > slot, 0.5, np.nan).astype(np.float32) for slot in range(num_slots)}
    ).filter(pl.Series(rng.random(len(drafted)) < 0.8))
    requests = pl.DataFrame({"request": [40, 7, 12, 3, 99], "source": [0, 0, 1, 2, 3]}).with_columns(
        prompt_len=pl.lit(10), output_len=pl.lit(num_steps * (num_slots + 1)), temperature=pl.lit(1.0)
    )
    card = TraceCard(
        name="ragged",
        kind="on-policy",
        target="none",
        drafter="none",
        drafter_kind="unknown",
        num_speculative_tokens=num_slots,
        draft_sampling="probabilistic",
        acceptance_rule="standard",
        temperature=1.0,
        adaptive_verification=True,
    )
    steps = pl.DataFrame({"step": np.arange(num_steps) * 2, "num_reqs": np.full(num_steps, num_reqs)})
    return write_trace(folder, card, requests, [blocks], steps)


def specdecode_bench(folder):
    rng = np.random.default_rng(0)
    rows = [
        {"prompt_token_ids": [1] * (5 + row), "acc_eagle": {"acc_len": rng.integers(1, 6, 20 + row).tolist()}}
        for row in range(4)
    ]
    source = folder.with_suffix(".jsonl")
    source.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return import_trace("specdecode-bench:eagle", source, folder)


def smollm2(folder):
    source = SHARED / "smollm2-eagle1-dense"
    if not source.is_dir():
        pytest.skip("AVSIM_REFERENCE does not point to the seed trace")
    return import_trace("smollm2-eagle1-dense:greedy", source, folder)


def capture(folder):
    """A few steps of two requests, of which one is left without an end, through the recorder."""
    source = folder.with_suffix(".captured")
    card = {"num_speculative_tokens": 3, "draft_sampling": "greedy", "acceptance_rule": "standard"}
    recorder = Recorder(CaptureConfig(directory=source), card)
    for key in "ab":
        recorder.start_request(key, prompt_len=4, temperature=0.0, top_p=None)
    for step in range(30):
        if step:
            recorder.verify("ab", [2 * step - 2] * 2, [2, 1], [1, 1], mask=[None, "grammar" if step % 7 == 0 else None])
        recorder.propose("ab", [3, 2], {"log_odds": np.full((2, 3), step / 10, dtype=np.float32)})
        unknown = dict.fromkeys(("kv_tokens", "forward_ms", "drafter_ms", "graph_mode"))
        recorder.end_step(num_reqs=2, num_target_tokens=5, num_prefill_tokens=0, **unknown)
    recorder.finish_request("a", 60, False)
    recorder.close()
    return import_trace("capture", source, folder)


def vllm_metrics(folder):
    """Three responses: with all K drafted, with fewer, and one that ends without a step."""
    rng = np.random.default_rng(1)
    responses = []
    for number, num_steps in enumerate((30, 20, 0)):
        drafted = np.full(num_steps, 3) if number == 0 else rng.integers(0, 4, num_steps)
        accepted = rng.integers(0, drafted + 1)
        counts = {"num_spec_tokens": 3, "num_spec_steps": num_steps}
        if num_steps:
            counts |= {"per_step_accepted": accepted.tolist(), "per_step_drafted": drafted.tolist()}
        responses.append({"id": f"cmpl-{number}", "model": "m", "metrics": {"speculative_decoding": counts}})
    source = folder.with_suffix(".json")
    source.write_text(json.dumps(responses), encoding="utf-8")
    return import_trace("vllm-metrics:temperature=1", source, folder)


def merged(folder):
    """A trace with a mask, a step table and jumping steps, and one of the same engine without."""
    first = ragged(folder.with_name("first"))
    table = pl.concat([pl.read_parquet(part.path) for part in first.parts])
    card = dataclasses.replace(first.card, recorded=(), adaptive_verification=False)
    second = write_trace(folder.with_name("second"), card, first.requests, [table.drop("mask")])
    return merge_traces(folder, [first.path, second.path], same_prompts=True)


IMPORTED = {
    "capture": capture,
    "specdecode-bench": specdecode_bench,
    "smollm2-eagle1-dense": smollm2,
    "vllm-metrics": vllm_metrics,
}
MADE = {make.__name__: make for make in (dense, on_policy, ragged, merged, *IMPORTED.values())}
NAMES = (*MADE, *sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Make each trace once, and open it afresh for every test."""
    folders = {}

    def get(name):
        if name not in MADE:
            return open_trace(SHIPPED / name)
        if name not in folders:
            folders[name] = MADE[name](tmp_path_factory.mktemp("traces") / name).path
        return open_trace(folders[name])

    return get


BROKEN = [
    (broken.WidensIds, {"check_block_types"}),
    (broken.ZeroFills, {"check_values", "check_matches_files"}),
    (broken.RepeatsSlots, {"check_matches_files"}),
    (broken.CountsBonus, {"check_values", "check_matches_files", "check_fewer_slots"}),
    (broken.SortsByRequest, {"check_sorted", "check_matches_files", "check_pieces"}),
    (broken.ReadsOnce, {"check_re_iterable", "check_pieces", "check_columns_on_demand", "check_fewer_slots"}),
    (broken.TearsSteps, {"check_pieces"}),
    (broken.DropsTail, {"check_re_iterable", "check_pieces", "check_fewer_slots"}),
    (broken.ReadsEverything, {"check_columns_on_demand"}),
    (broken.CutsFeaturesOnly, {"check_fewer_slots"}),
    (broken.LowersTypes, {"check_tables"}),
]


def test_every_importer_is_covered():
    assert set(IMPORTED) == set(IMPORTERS)


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", NAMES)
def test_source_contract(opened, name, check):
    check(opened(name))


@pytest.mark.parametrize(("kind", "expected"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
def test_broken_sources_are_caught(opened, kind, expected):
    assert failures(SOURCE_CHECKS, broken.reread(opened("ragged"), kind), {}) == expected


def test_a_changed_file_is_caught(opened, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(opened("ragged").path, folder)
    path = next(folder.glob("blocks*.parquet"))
    pl.read_parquet(path).with_columns(log_odds_0=-pl.col("log_odds_0")).write_parquet(path)
    assert failures(SOURCE_CHECKS, open_trace(folder), {}) == {"check_valid_on_disk"}


def test_every_source_check_catches_something():
    caught = set().union(*(names for _, names in BROKEN), {"check_valid_on_disk"})
    assert caught == {check.__name__ for check in SOURCE_CHECKS}
