"""Random schedules through the recorder, the log and the importer: nothing mislabelled, everything counted."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reading import assert_same, expected
from scripted_engine import Script, facts

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder
from avsim.capture.recovery import recover
from avsim.sources import import_trace, validate_trace

EXAMPLES = settings(database=None, deadline=None, derandomize=True, max_examples=40)
SEEDS = st.integers(0, 2**32 - 1)


def record(folder, seed, num_slots, num_running, num_steps, *, sample_rate=1.0, **options):
    settings = CaptureConfig(directory=folder, queue_steps=1 << 16, sample_rate=sample_rate)
    recorder = Recorder(settings, facts(num_slots), salt="salt")
    script = Script(recorder, seed, num_slots, num_running, **options)
    script.run(num_steps)
    script.close()
    return recorder, script


@EXAMPLES
@given(SEEDS, st.integers(1, 8), st.integers(1, 6), st.integers(10, 80), st.tuples(*[st.booleans()] * 3))
def test_the_trace_is_the_truth(seed, num_slots, num_running, num_steps, options):
    options = dict(zip(("ahead", "with_ids", "with_positions"), options, strict=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorder, script = record(folder, seed, num_slots, num_running, num_steps, **options)
        counters = recorder.counters
        assert Counter(counters["dropped_blocks"]) == script.dropped
        assert counters["blocks"] == len(script.blocks)
        assert counters["unverified_proposals"] == script.unverified
        assert counters["steps"] == counters["written_steps"] == num_steps
        assert counters["requests"] == len(script.requests)
        assert recover(recorder.folder).counters | {"bytes": counters["bytes"]} == counters
        assume(expected(script)[0])
        trace = import_trace("capture", folder, folder / "trace")
        validate_trace(trace.path)
        assert_same(trace, script)
        for reason, number in script.dropped.items():
            assert f"{number} {reason}" in trace.card.notes


@EXAMPLES
@given(SEEDS, st.sampled_from([0.2, 0.5, 0.8]), st.booleans())
def test_a_request_is_in_the_sample_whole_or_not_at_all(seed, rate, ahead):
    with tempfile.TemporaryDirectory() as name:
        kwargs = {"ahead": ahead, "with_ids": True}
        every, script = record(Path(name) / "all", seed, 4, 5, 60, **kwargs)
        some, _ = record(Path(name) / "some", seed, 4, 5, 60, sample_rate=rate, **kwargs)
        total = every.counters["requests"]
        assert some.counters["requests"] + some.counters["skipped_requests"] == total
        ids = [request.details["id"] for _, request in sorted(recover(every.folder).requests.items())]
        log = recover(some.folder)
        chosen = {ids.index(r.details["id"]) for r in log.requests.values() if ids.count(r.details["id"]) == 1}
        want = {at: len(script.requests[at].blocks) for at in chosen}
        got = Counter()
        for blocks in (record.arrays for record in log.records() if "request" in record.arrays):
            for number in blocks["request"].tolist():
                at = ids.index(log.requests[number].details["id"])
                got[at] += at in chosen
        assert {at: got[at] for at in chosen} == want


@pytest.mark.parametrize("ahead", [False, True])
def test_the_script_does_what_its_name_says(tmp_path, ahead):
    _, script = record(tmp_path, 1, 7, 8, 600, ahead=ahead, with_ids=True)
    blocks = script.blocks
    trimmed = 1 - sum(block[4] for block in blocks) / sum(block[3] for block in blocks)
    assert trimmed == pytest.approx(0.69, abs=0.03)
    aborted = [aborted for _, aborted in script.ended.values()]
    assert 0.3 < sum(aborted) / len(aborted) < 0.7
    assert {"missing", "stale", "mismatch", "inconsistent", "unknown_request"} == set(script.dropped)
    assert len({request.key for request in script.requests}) < len(script.requests)
