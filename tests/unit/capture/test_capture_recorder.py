"""Limits, sampling, privacy, and what the recorder says about itself."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from driving import NUM_SLOTS, Engine, recorder
from scripted_engine import STEP

from avsim.capture import writer
from avsim.capture.recovery import recover


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def blocks(log):
    return sum(len(record.arrays.get("step", ())) for record in log.records())


def test_it_imports_with_numpy_alone():
    code = "import sys, avsim.capture.recorder; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"polars", "scipy", "sklearn", "torch", "typer"}.isdisjoint(names)
    assert "numpy" in names


def test_the_size_limit_holds(tmp_path):
    made = recorder(tmp_path, max_mib=1)
    engine = Engine(made, num_reqs=200)
    for _ in range(4000):
        engine.step()
        while made.active and made._outbox.writer.queue.qsize() > 100:
            threading.Event().wait(0.001)  # or the writer would have to drop them, and never reach the limit
        if not made.active:
            break
    assert not made.active
    assert made._outbox.writer.join(10)
    log = recover(made.folder)
    assert log.ended == "max_mib"
    assert 0.7 * 2**20 < size(made.folder) <= 2**20
    assert blocks(log) == made.counters["blocks"]
    accounted = made.counters["blocks"] + sum(made.counters["dropped_blocks"].values())
    assert engine.verdicts - 200 <= accounted <= engine.verdicts


def test_the_time_limit_holds(tmp_path, caplog):
    now = [100.0]
    made = recorder(tmp_path, max_seconds=10, clock=lambda: now[0])
    engine = Engine(made)
    for _ in range(30):
        now[0] += 1
        engine.step()
    assert made._outbox.writer.join(10)
    log = recover(made.folder)
    assert log.ended == "max_seconds"
    assert log.counters["steps"] == made.counters["written_steps"] == 10
    assert blocks(log) == 9 * 3
    assert not caplog.records


def test_files_rotate(tmp_path):
    made = recorder(tmp_path, rotate_mib=1, queue_steps=1000)
    engine = Engine(made, num_reqs=400)
    engine.steps(400)
    made.close()
    sizes = [path.stat().st_size for path in sorted(made.folder.glob("part-*.log"))]
    assert len(sizes) >= 4
    assert max(sizes) <= 2**20
    assert blocks(recover(made.folder)) == made.counters["blocks"] == engine.verdicts


def test_other_ranks_record_nothing(tmp_path):
    threads = threading.active_count()
    made = recorder(tmp_path, rank=1)
    engine = Engine(made)
    engine.steps(3)
    made.close()
    assert threads == threading.active_count()
    assert not list(tmp_path.iterdir())


def test_ids_are_hashed_and_the_salt_is_not_kept(tmp_path):
    runs = [recorder(tmp_path / str(run)) for run in range(2)]
    for made in runs:
        Engine(made).steps(3)
        made.close()
    logs = [recover(made.folder) for made in runs]
    ids = [{request.details["id"] for request in log.requests.values()} for log in logs]
    assert len(ids[0] | ids[1]) == 6
    for made in runs:
        for path in made.folder.iterdir():
            data = path.read_bytes()
            assert b"key-" not in data
            assert made._salt.encode() not in data
    assert all("draft_ids" not in record.arrays for log in logs for record in log.records())


def test_ids_are_kept_on_request(tmp_path):
    made = recorder(tmp_path, record_request_ids=True, record_token_ids=True)
    Engine(made).steps(3)
    made.close()
    log = recover(made.folder)
    assert [request.details["id"] for request in log.requests.values()] == ["key-0", "key-1", "key-2"]
    ids = [record.arrays["draft_ids"] for record in log.records() if "draft_ids" in record.arrays]
    assert np.array_equal(np.concatenate(ids), np.full((6, NUM_SLOTS), 9))


def test_an_idle_engine_is_flushed(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0.05)
    made = recorder(tmp_path)
    engine = Engine(made)
    engine.steps(3)
    engine.finish()
    deadline = threading.Event()
    for _ in range(200):
        if sum(request.finished for request in recover(made.folder).requests.values()) == 3:
            break
        deadline.wait(0.02)
    log = recover(made.folder)
    assert log.ended is None
    assert blocks(log) == 6
    assert all(request.finished for request in log.requests.values())
    made.close()


def test_a_step_that_was_not_closed_is_dropped_and_counted(tmp_path):
    made = recorder(tmp_path)
    engine = Engine(made)
    engine.steps(2)
    made.verify(engine.keys, [engine.position] * 3, [1] * 3, [0] * 3)
    made.finish_request("key-0", 9, True)
    made.close()
    assert made.counters["dropped_blocks"] == {"unclosed_step": 3}
    assert recover(made.folder).requests[0].output_len == 9


def test_the_engine_does_no_work_on_arrays(tmp_path):
    """Whatever was handed over is looked at by the writer's thread alone."""
    main, seen = threading.current_thread(), []

    class Watched:
        def __init__(self, values):
            self.values = np.array(values)

        def __array__(self, dtype=None, copy=None):
            seen.append(threading.current_thread())
            return self.values.astype(dtype)

    made = recorder(tmp_path)
    engine = Engine(made)
    made.propose(engine.keys, Watched([NUM_SLOTS] * 3), {name: Watched(v) for name, v in engine.features().items()})
    made.end_step(**STEP)
    made.verify(engine.keys, Watched([0, 0, 0]), Watched([2, 2, 2]), Watched([1, 1, 1]))
    made.end_step(**STEP)
    made.close()
    assert made.counters["blocks"] == 3
    assert len(seen) == 6
    assert main not in seen


def test_the_default_arrival_is_the_time_since_the_start(tmp_path):
    now = [50.0]
    made = recorder(tmp_path, clock=lambda: now[0])
    now[0] = 52.5
    made.start_request("a", prompt_len=1, temperature=0.0, top_p=None)
    made.close()
    assert recover(made.folder).requests[0].details["arrival_s"] == 2.5


@pytest.mark.parametrize(("again", "numbers"), [(5, [0]), (6, [0, 1])])
def test_a_running_key_that_starts_again(tmp_path, again, numbers):
    """With the same values it was preempted and goes on; with others it is another request."""
    made = recorder(tmp_path)
    for prompt_len, arrival in ((5, 1.0), (again, 2.0)):
        made.start_request("a", prompt_len=prompt_len, temperature=0.0, top_p=None, arrival_s=arrival)
    made.close()
    requests = recover(made.folder).requests
    assert sorted(requests) == numbers
    assert [requests[number].details["arrival_s"] for number in numbers] == [1.0, 2.0][: len(numbers)]


def test_a_feature_that_comes_later_drops_its_blocks(tmp_path):
    made = recorder(tmp_path)
    engine = Engine(made)
    engine.steps(2)
    engine.step(features={**engine.features(), "margin": engine.features()["entropy"]})
    engine.steps(2)
    made.close()
    assert made.counters["dropped_blocks"] == {"features_changed": 3}
    assert blocks(recover(made.folder)) == 9


def test_steps_without_drafts_may_come_before_the_features_are_known(tmp_path):
    made = recorder(tmp_path)
    for step in range(4):
        features = {"log_odds": np.ones((1, NUM_SLOTS))} if step == 2 else {}
        if step == 0:
            made.start_request("a", prompt_len=1, temperature=0.0, top_p=None)
        else:
            made.verify(["a"], [step - 1], [0], [0])
        made.propose(["a"], [2 if step == 2 else 0], features)
        made.end_step(**STEP)
    made.close()
    arrays = next(record.arrays for record in recover(made.folder).records() if "step" in record.arrays)
    assert arrays["num_drafted"].tolist() == [0, 0, 2]
    assert np.isnan(arrays["features"][0]).tolist() == [[True] * 4, [True] * 4, [False] * 4]


def test_closing_twice_is_harmless(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    made = recorder(tmp_path)
    Engine(made).steps(2)
    made.close()
    counters = made.counters
    made.close()
    Engine(made).steps(2)
    assert made.counters == counters
    assert not caplog.records


def test_memory_stays_flat(tmp_path):
    made = recorder(tmp_path, queue_steps=64)
    engine = Engine(made, num_reqs=16)

    def run(number):
        for step in range(number):
            made.start_request(f"x{step}", prompt_len=1, temperature=0.0, top_p=None)
            engine.step()
            made.finish_request(f"x{step}", 1, False)
            while made._outbox.writer.queue.qsize() > 32:
                threading.Event().wait(0.001)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early, late = run(500), run(2500)
    finally:
        tracemalloc.stop()
    made.close()
    assert late - early < 300_000
