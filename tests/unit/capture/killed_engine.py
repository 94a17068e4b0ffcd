"""Run by test_capture_kill: forks recording engines and kills each with SIGKILL at a random moment."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

from scripted_engine import Script, facts

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder

NUM_SLOTS, NUM_RUNNING = 5, 6
STEP_SECONDS = 2e-4


def child(folder: Path, seed: int, progress: mmap.mmap) -> None:
    recorder = Recorder(CaptureConfig(directory=folder, rotate_mib=1), facts(NUM_SLOTS), salt="salt")
    script = Script(recorder, seed, NUM_SLOTS, NUM_RUNNING, ahead=bool(seed % 2), with_ids=True)
    while True:
        script.one_step()
        progress[:8] = struct.pack("<q", script.step)
        time.sleep(STEP_SECONDS)


def main(folder: Path, kills: int) -> None:
    draw = random.Random(11)
    done = []
    for seed in range(kills):
        progress = mmap.mmap(-1, 8)
        if (pid := os.fork()) == 0:
            try:
                child(folder / str(seed), seed, progress)
            finally:
                os._exit(1)
        # By steps, not by time: on a busy machine a child may get nowhere in a quarter of a second.
        enough, deadline = draw.randrange(1, 400), time.monotonic() + 20
        while struct.unpack("<q", progress[:8])[0] < enough and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.005))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, "the engine ended by itself"
        done.append(struct.unpack("<q", progress[:8])[0])
    print(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
