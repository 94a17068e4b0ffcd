"""Tables for vLLM: they come back exactly, equal the model where they must, and differ from a profile where it errs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from avsim import costs
from avsim.costs import CurveCost, load
from avsim.costs.table import Engine, corrected_table, csv_text, profiled_table, table_document, write_table
from avsim.errors import InputError

ENGINE = Engine(max_num_reqs=64, max_num_tokens=4096, capture_limit=512, context_tokens=3000, num_speculative_tokens=5)
MODELS = (
    "deepseek-v4-flash-tp4-b300",
    "llama-3.1-8b-h100-eagle",
    "roofline:llama-3.1-8b,gpu=h200,drafter=eagle",
    "roofline:qwen3-30b-a3b,gpu=h100,drafter=dspark,context=8192",
)


@pytest.mark.parametrize("as_profiled", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_written_table_comes_back_exactly(name: str, as_profiled: bool, tmp_path: Path) -> None:
    model = load(name)
    made = profiled_table(model, ENGINE) if as_profiled else corrected_table(model, ENGINE)
    path = tmp_path / "table.json"
    write_table(table_document(model, ENGINE, as_profiled=as_profiled), path)
    read = load(path)
    assert read == made
    one, other = made.tables(64, 4096), read.tables(64, 4096)
    assert (one.verify == other.verify).all()
    assert (one.draft == other.draft).all()


@pytest.mark.parametrize("name", MODELS)
def test_up_to_the_capture_limit_it_is_the_model_at_every_size(name: str) -> None:
    model = load(name)
    limit = int(getattr(model, "capture_limit", 512))
    truth = model.tables(64, 4096, kv_tokens_per_req=3000.0, depth=5)
    found = corrected_table(model, replace(ENGINE, capture_limit=limit)).tables(64, 4096)
    assert (found.draft[1:] == truth.draft[1:]).all()
    assert (found.verify[1 : limit + 1] == truth.verify[1 : limit + 1]).all()
    assert found.verify[limit + 1] == truth.verify[limit + 1]  # the jump past the limit is at the limit
    assert found.verify[limit + 1 :] == pytest.approx(truth.verify[limit + 1 :], rel=0.01)


def test_draft_and_verify_are_the_whole_step_at_full_load() -> None:
    model = load("roofline:llama-3.1-8b,gpu=h200,drafter=eagle")
    table = corrected_table(model, ENGINE)
    tokens = np.array([64, 128, 384])
    reqs = np.full(3, 64)
    shape = costs.StepShape(reqs, tokens, reqs * 3000.0, 0 * reqs, np.full(3, 5))
    lookup = costs.StepShape(reqs, tokens, 0.0 * reqs, 0 * reqs)
    assert table.step_ms(lookup, drafting=True) == pytest.approx(model.step_ms(shape, drafting=True))


def test_the_profile_charges_a_cache_to_every_token_and_knows_no_head() -> None:
    """From 1 to 64 tokens the profile adds 63 requests' caches; a real step of 1 request adds tokens only."""
    model = load("roofline:llama-3.1-8b,gpu=h200,drafter=eagle")
    real, profiled = (make(model, ENGINE).tables(64, 512).verify for make in (corrected_table, profiled_table))
    caches = 63 * 8192 * 131_072 / (4800e6 * 0.8)
    assert profiled[64] - profiled[1] > caches
    assert real[64] - real[1] < 0.1 * caches
    bare = model.as_profiled()
    assert profiled[1] == pytest.approx(bare.verify_ms(costs.StepShape(*np.array([[1], [1], [8192], [0]])))[0])


def test_an_added_overhead_is_in_every_verify_time() -> None:
    model = load(MODELS[0])
    plain, more = (corrected_table(model, replace(ENGINE, overhead_ms=ms)).tables(64, 600) for ms in (0.0, 1.3))
    assert more.verify[1:] - plain.verify[1:] == pytest.approx(np.full(600, 1.3))
    assert (more.draft == plain.draft).all()


def test_the_document_says_what_it_is() -> None:
    data = table_document(load(MODELS[2]), ENGINE)
    assert data["format"] == "avsim-cost-table/1"
    assert data["includes"] == ["target forward pass", "drafter", "LM head", "sampler", "CPU floor"]
    assert data["card"]["kind"] == "roofline"
    assert (data["card"]["context_tokens"], data["card"]["num_speculative_tokens"]) == (3000, 5)
    assert data["largest_gap_to_model_pct"] < 1
    again = table_document(load(MODELS[2]), ENGINE)
    assert again["sha256"] == data["sha256"]
    other = table_document(load(MODELS[2]), replace(ENGINE, context_tokens=9000))
    assert other["sha256"] != data["sha256"]
    assert other["source_sha256"] == data["source_sha256"]
    assert table_document(load(MODELS[2]), ENGINE, as_profiled=True)["includes"] == ["target forward pass", "drafter"]


def test_csv_holds_both_tables(tmp_path: Path) -> None:
    model = load(MODELS[0])
    path = tmp_path / "table.csv"
    write_table(table_document(model, ENGINE), path)
    lines = path.read_text(encoding="utf-8").splitlines()
    curve = corrected_table(model, ENGINE)
    assert lines == csv_text(curve).splitlines()
    assert lines[0] == "table,size,ms"
    verify = [(int(size), float(ms)) for name, size, ms in (line.split(",") for line in lines[1:]) if name == "verify"]
    assert tuple(verify) == curve.verify


def test_a_file_is_not_replaced_without_being_asked(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("{}", encoding="utf-8")
    document = table_document(load(MODELS[0]), ENGINE)
    with pytest.raises(InputError, match="exists; choose another file or pass --overwrite"):
        write_table(document, path)
    write_table(document, path, overwrite=True)
    assert isinstance(load(path), CurveCost)
    assert json.loads(path.read_text(encoding="utf-8"))["engine"]["max_num_seqs"] == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_reqs": 0}, "max_num_reqs must be at least 1"),
        ({"max_num_tokens": 32}, "max_num_tokens must lie between max_num_reqs = 64"),
        ({"max_num_tokens": 1 << 24}, "max_num_tokens must lie between"),
        ({"capture_limit": 0}, "capture_limit must be at least 1"),
        ({"context_tokens": -1}, "context must be at least 0"),
        ({"overhead_ms": float("nan")}, "the overhead finite"),
    ],
)
def test_bad_engines_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(ENGINE, **change)  # type: ignore[arg-type]
