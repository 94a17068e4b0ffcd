"""Whatever goes wrong, the engine sees nothing of it, the log says it in one line, and what was written can be read."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from driving import NUM_SLOTS, Engine, recorder
from scripted_engine import STEP, Script, facts

from avsim.capture import batch, files, outbox, writer
from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder
from avsim.capture.recovery import recover
from avsim.sources import import_trace


@pytest.fixture(autouse=True)
def flush_often(monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_STEPS", 4)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, logger="avsim.capture")
    return lambda: [entry.getMessage() for entry in caplog.records]


def accounted(made):
    return made.counters["blocks"] + sum(made.counters["dropped_blocks"].values())


def settle(made):
    """Wait until a writer that failed or stopped has ended."""
    assert made._outbox.writer.join(10)


@pytest.mark.parametrize("where", ["in-the-way/below", "/proc/avsim-capture"])
def test_a_folder_that_cannot_be_made(tmp_path, lines, where):
    (tmp_path / "in-the-way").touch()
    made = recorder(tmp_path / where)
    engine = Engine(made)
    engine.steps(3)
    engine.finish()
    made.close()
    assert not made.active
    assert len(lines()) == 1
    assert "capture: off" in lines()[0]
    assert made.counters["blocks"] == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path, lines):
    tmp_path.chmod(0o500)
    assert not recorder(tmp_path).active
    assert len(lines()) == 1


@pytest.mark.parametrize("good_writes", [0, 1, 3])
def test_a_full_disk(tmp_path, lines, monkeypatch, good_writes):
    left, real = [good_writes], os.write

    def write(file, data):
        if left[0] == 0:
            if len(data) > 1:  # as a file system does: some of it fits
                left[0] = -1
                return real(file, bytes(data[: len(data) // 2]))
            raise AssertionError
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        return real(file, data)

    made = recorder(tmp_path)
    engine = Engine(made)
    monkeypatch.setattr(files.os, "write", write)
    engine.steps(40)
    settle(made)
    engine.steps(3)
    made.close()
    assert not made.active
    assert len(lines()) == 1
    assert "No space left" in lines()[0]
    log = recover(made.folder)
    found = sum(len(record.arrays.get("step", ())) for record in log.records())
    assert found == made.counters["blocks"] == log.counters.get("blocks", 0)
    assert log.ended is None
    assert log.damage.cut_bytes == 0
    assert (found > 0) == (good_writes > 0)
    assert found < accounted(made) <= engine.verdicts


def test_a_writer_that_dies_counts_what_it_held(tmp_path, lines, monkeypatch):
    made = recorder(tmp_path)
    monkeypatch.setattr(batch.Batch, "encode", lambda *_, **__: 1 / 0)
    engine = Engine(made, num_reqs=2)
    while made.active:
        engine.step()
    settle(made)
    assert lines() == ["capture: off, the writer failed (ZeroDivisionError: division by zero)"]
    # The last step's calls may have come after the end.
    assert engine.verdicts - 2 <= accounted(made) <= engine.verdicts
    assert made.counters["dropped_blocks"]["stopped"] > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda made: made.propose(["a"], [1], {"log_odds": np.zeros((1, NUM_SLOTS + 1))}),
        lambda made: made.propose(["a", "b"], [1], {"log_odds": np.zeros((2, NUM_SLOTS))}),
        lambda made: made.propose(["a"], [3], {"log_odds": np.zeros((1, 2))}),
        lambda made: made.propose(["a"], [1], {"log_odds": "text"}),
        lambda made: made.verify(["a"], [0, 1], [1], [1]),
        lambda made: made.verify(["a"], [0], [1], [1], np.zeros(3)),
        lambda made: made.verify(["a"], [0], [1], [1], mask=[None, None]),
        lambda made: made.verify(["a"], None, [1], [1]),
        lambda made: made.start_request("b", prompt_len="x", temperature=0.0, top_p=None),
        lambda made: made.finish_request("a", None, False),
    ],
)
def test_a_wrong_argument_switches_capture_off(tmp_path, lines, call):
    made = recorder(tmp_path)
    made.start_request("a", prompt_len=1, temperature=0.0, top_p=None)
    call(made)
    made.end_step(**STEP)
    made.close()
    settle(made)
    assert not made.active
    assert len(lines()) == 1


def test_facts_that_lack_the_number_of_slots(tmp_path, lines):
    made = Recorder(CaptureConfig(directory=tmp_path), {"target": "x"})
    assert not made.active
    made.close()
    assert len(lines()) == 1


def test_a_full_queue_drops_whole_steps_and_counts_them(tmp_path, monkeypatch):
    release, real = threading.Event(), files.LogFiles.append

    def append(self, record):
        release.wait(10)
        real(self, record)

    monkeypatch.setattr(files.LogFiles, "append", append)
    made = Recorder(CaptureConfig(directory=tmp_path, queue_steps=8), facts(5), salt="salt")
    script = Script(made, 4, 5, 6, ahead=False, with_ids=True, faults=False)
    script.run(120)
    assert made.counters["dropped_steps"] > 50
    release.set()
    for _ in range(100):
        script.one_step()
        time.sleep(0.002)
    script.close()
    counters = made.counters
    assert counters["steps"] == 220 == counters["written_steps"] + counters["dropped_steps"]
    assert counters["blocks"] + sum(counters["dropped_blocks"].values()) == len(script.blocks) + script.dropped.total()
    assert counters["dropped_blocks"]["overflow"] > 0
    assert counters["blocks"] > 100
    truth = {block[:2]: block[2:6] for block in script.blocks}
    found = {}
    for record in recover(made.folder).records():
        for at in range(len(record.arrays.get("step", ()))):
            names = ("step", "request", "position", "num_drafted", "num_admitted", "num_accepted")
            row = [int(record.arrays[name][at]) for name in names]
            found[row[0], row[1]] = tuple(row[2:])
    assert len(found) == counters["blocks"]
    assert found.items() <= truth.items()
    # Beginnings and ends of requests are never dropped.
    requests = recover(made.folder).requests
    assert {number: (r.output_len, r.aborted) for number, r in requests.items() if r.finished} == script.ended
    assert all(request.details for request in requests.values())
    trace = import_trace("capture", tmp_path, tmp_path / "trace")
    assert f"{counters['dropped_steps']}" in trace.card.notes


def test_a_writer_stuck_for_ever_does_not_fill_the_memory(tmp_path, monkeypatch, lines):
    release = threading.Event()
    monkeypatch.setattr(files.LogFiles, "append", lambda *_: release.wait(30))
    monkeypatch.setattr(outbox, "MAX_CARRIED", 100)
    made = recorder(tmp_path, queue_steps=4)
    engine = Engine(made)
    for number in range(1000):
        made.start_request(f"more-{number}", prompt_len=1, temperature=0.0, top_p=None)
        engine.step()
        made.finish_request(f"more-{number}", 1, True)
        if not made.active:
            break
    assert not made.active
    assert number < 200
    assert "stuck" in lines()[0]
    release.set()
    settle(made)


def test_a_forked_child_records_nothing(tmp_path):
    made = recorder(tmp_path)
    made._pid = -1
    Engine(made).steps(3)
    made.close()
    assert made.counters["steps"] == 0
    assert not list(Path(made.folder).glob("part-*"))
    made._pid = os.getpid()
    made.close()
