"""`kill -9` at twenty random moments: what was written is right and complete, and little is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from killed_engine import NUM_RUNNING, NUM_SLOTS
from reading import assert_same
from scripted_engine import Script

from avsim.capture.recovery import find_captures, recover
from avsim.sources import import_trace, validate_trace

KILLS = 20


class NoRecorder:
    """Takes every call and does nothing."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def replayed(seed, last_step):
    """The script again, as far as the log goes: requests that ended later had not ended yet."""
    script = Script(NoRecorder(), seed, NUM_SLOTS, NUM_RUNNING, ahead=bool(seed % 2), with_ids=True)
    script.run(last_step + 1)
    return script


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment(tmp_path):
    here = Path(__file__).parent
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[2]), str(here)])}
    command = [sys.executable, str(here / "killed_engine.py"), str(tmp_path), str(KILLS)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert ran.returncode == 0, ran.stderr
    compared = 0
    for seed, done in enumerate(json.loads(ran.stdout)):
        (folder,) = find_captures(tmp_path / str(seed))
        log = recover(folder)
        assert log.ended is None
        # The step that the engine was in when it died may have been closed already.
        assert done + 1 - (log.last_step + 1) <= log.about["most_steps_lost_if_killed"] + 1
        script = replayed(seed, log.last_step)
        assert log.counters.get("blocks", 0) == len(script.blocks)
        if not script.blocks:
            continue
        trace = import_trace("capture", folder, tmp_path / f"trace-{seed}")
        assert "was not closed" in trace.card.notes
        validate_trace(trace.path)
        assert_same(trace, script)
        compared += 1
    assert compared >= KILLS // 2
