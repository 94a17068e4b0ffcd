"""From the log of one or several processes to a trace."""

from __future__ import annotations

import json
import time

import numpy as np
import polars as pl
import pytest
from driving import Engine, recorder
from reading import found

from avsim.capture import files, writer
from avsim.capture.recovery import recover
from avsim.errors import InputError
from avsim.sources import import_trace, validate_trace


def captured(folder, steps=5, changes=None, num_reqs=3, finish=True):
    made = recorder(folder, changes=changes)
    engine = Engine(made, num_reqs)
    engine.steps(steps)
    if finish:
        engine.finish()
    made.close()
    return made


def test_the_card_says_what_the_facts_say(tmp_path):
    captured(tmp_path / "run")
    trace = import_trace("capture:licence=mine", tmp_path / "run", tmp_path / "trace")
    assert validate_trace(trace.path) == []
    card = trace.card
    assert (card.name, card.kind, card.target, card.drafter_kind) == (
        "toy-target-eagle-capture",
        "on-policy",
        "toy-target",
        "eagle",
    )
    assert (card.engine, card.seed, card.temperature, card.licence) == ("script", 3, 0.0, "mine")
    assert card.adaptive_verification
    assert card.complete_blocks
    assert card.recorded == ("log_odds", "entropy")
    assert card.notes == "Captured from a running engine: 1 process; requests: 3 finished."
    steps = trace.steps()
    assert steps["step"].to_list() == list(range(5))
    assert steps["kv_tokens"].null_count() == steps["drafter_ms"].null_count() == 5
    assert steps["forward_ms"].to_list() == [1.5] * 5
    assert steps["graph_mode"].to_list() == ["full"] * 5


def test_what_an_engine_cannot_know_can_be_said(tmp_path):
    captured(tmp_path / "run")
    spec = "capture:title=mine,target=SmolLM2,drafter=a weak head,notes=Weak."
    card = import_trace(spec, tmp_path / "run", tmp_path / "trace").card
    assert (card.name, card.target, card.drafter) == ("mine", "SmolLM2", "a weak head")
    assert card.notes.startswith("Weak. Captured from a running engine")


def test_two_engines_in_one_folder(tmp_path):
    runs = [recorder(tmp_path / "run", changes={"seed": seed}) for seed in (1, 2)]
    engines = [Engine(made, num_reqs) for made, num_reqs in zip(runs, (3, 2), strict=True)]
    for _ in range(6):
        for engine in engines:
            engine.step()
    for engine in engines:
        engine.finish()
        engine.recorder.close()
    assert runs[0].folder != runs[1].folder
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert trace.card.seed is None
    assert "2 processes" in trace.card.notes
    blocks, requests = found(trace)
    assert sorted(requests) == [0, 1, 2, 3, 4]
    steps = {request: [step for step, one in sorted(blocks) if one == request] for request in requests}
    assert steps == {key: list(range(1, 6)) if key < 3 else list(range(7, 12)) for key in range(5)}
    assert trace.steps()["step"].to_list() == list(range(12))
    alone = import_trace("capture", runs[1].folder, tmp_path / "alone")
    assert sorted(found(alone)[1]) == [0, 1]


@pytest.mark.parametrize("name", ["target", "adaptive_verification", "hardware"])
def test_different_engines_are_refused(tmp_path, name):
    captured(tmp_path / "run")
    captured(tmp_path / "run", changes={name: False if name == "adaptive_verification" else "other"})
    with pytest.raises(InputError, match=f"{name} is .* different engines"):
        import_trace("capture", tmp_path / "run", tmp_path / "trace")


def test_different_features_are_refused(tmp_path):
    captured(tmp_path / "run")
    made = recorder(tmp_path / "run")
    engine = Engine(made)
    for _ in range(3):
        engine.step(features={"margin": engine.features()["entropy"]})
    made.close()
    with pytest.raises(InputError, match=r"recorded margin, but capture-\S+ recorded entropy, log_odds"):
        import_trace("capture", tmp_path / "run", tmp_path / "trace")


def test_masks_come_through(tmp_path):
    made = recorder(tmp_path / "run")
    engine = Engine(made)
    engine.step()
    engine.step(mask=[None, "penalty", None])
    engine.step()
    made.close()
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert pl.read_parquet(trace.path / "blocks-00000.parquet")["mask"].to_list() == [None, "penalty", *[None] * 4]
    assert trace.blocks().unfit.sum() == 1


def test_requests_that_never_ended(tmp_path):
    captured(tmp_path / "run", finish=False)
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert "3 cut" in trace.card.notes
    # The last block starts at token 6 and emits two more.
    assert trace.requests["output_len"].to_list() == [9, 9, 9]


def test_a_bad_feature_costs_its_block_only(tmp_path):
    made = recorder(tmp_path / "run")
    engine = Engine(made)
    engine.step()
    for name, value in (("entropy", np.nan), ("log_odds", 41), ("entropy", -1)):
        features = engine.features()
        features[name] = features[name].copy()
        features[name][1, 2] = value
        engine.step(features=features)
    engine.step()
    made.close()
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert "recorded blocks that were left out: 3 with NaN or impossible features" in trace.card.notes
    assert trace.num_blocks == 12 - 3


def test_blocks_past_the_end_are_left_out(tmp_path):
    made = recorder(tmp_path / "run")
    engine = Engine(made)
    engine.steps(6)
    for key, length in zip(engine.keys, (8, 9, 10), strict=True):
        made.finish_request(key, length, False)
    made.close()
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    # Blocks start at 0, 2, 4, 6 and 8.
    assert trace.blocks().request.tolist().count(0) == 4
    assert trace.num_blocks == 4 + 4 + 5
    assert "2 past the end of the output" in trace.card.notes


def test_a_damaged_file_loses_its_own_rest_only(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_STEPS", 4)
    real = files.LogFiles.__init__
    monkeypatch.setattr(files.LogFiles, "__init__", lambda self, folder, facts, _: real(self, folder, facts, 4000))
    made = captured(tmp_path / "run", steps=60)
    paths = sorted(made.folder.glob("part-*.log"))
    assert len(paths) > 4
    data = bytearray(paths[2].read_bytes())
    data[len(data) // 3] ^= 255
    paths[2].write_bytes(data)
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    validate_trace(trace.path)
    lost = 59 * 3 - trace.num_blocks
    assert 0 < lost < 40
    assert "bytes at the end of 1 log file could not be read" in trace.card.notes


def test_a_lost_beginning_costs_the_request(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_STEPS", 1)
    made = recorder(tmp_path / "run")
    engine = Engine(made)
    engine.steps(3)
    while made.counters["written_steps"] < 3:
        time.sleep(0.001)
    made._outbox.writer._files.close()  # the next record begins another file
    made.start_request("late", prompt_len=1, temperature=0.0, top_p=None)
    engine.keys.append("late")
    engine.steps(3)
    engine.finish()
    made.close()
    sorted(made.folder.glob("part-*.log"))[0].write_bytes(b"")
    paths = [path for path in made.folder.glob("part-*.log") if path.stat().st_size]
    if len(paths) != 1 or 3 not in recover(made.folder).requests:
        pytest.fail("the files were not split where the test meant to")
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert trace.requests["request"].to_list() == [3]
    assert "of requests whose beginning was lost" in trace.card.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "facts.json").unlink(), "no capture here"),
        (lambda folder: (folder / "facts.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "facts.json").write_text("[]"), "not the facts"),
        (lambda folder: edit(folder, log_version=2), "log_version is 2"),
        (lambda folder: edit_fact(folder, "drafter_kind", "eagel"), "facts.json: drafter_kind is 'eagel'"),
        (lambda folder: edit_fact(folder, "draft_sampling", None), "facts.json: .*draft_sampling"),
        (lambda folder: [path.unlink() for path in folder.glob("part-*")], "no usable blocks"),
    ],
)
def test_what_cannot_be_imported(tmp_path, change, message):
    change(captured(tmp_path / "run").folder)
    with pytest.raises(InputError, match=message):
        import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match="no capture here"):
        import_trace("capture", tmp_path / "nothing", tmp_path / "trace")


def test_a_running_capture_can_be_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_STEPS", 2)
    made = recorder(tmp_path / "run")
    engine = Engine(made)
    engine.steps(40)
    while not recover(made.folder).counters.get("blocks"):
        time.sleep(0.001)
    trace = import_trace("capture", tmp_path / "run", tmp_path / "trace")
    assert "was not closed" in trace.card.notes
    made.close()
    whole = import_trace("capture", tmp_path / "run", tmp_path / "whole")
    assert whole.num_blocks == 39 * 3


def edit(folder, **changes):
    path = folder / "facts.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_fact(folder, name, value):
    path = folder / "facts.json"
    data = json.loads(path.read_text())
    data["facts"][name] = value
    if value is None:
        del data["facts"][name]
    path.write_text(json.dumps(data))
