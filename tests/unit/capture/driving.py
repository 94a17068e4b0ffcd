"""A plain engine for tests of the recorder: every request takes part in every step."""

from __future__ import annotations

import numpy as np
from scripted_engine import STEP, facts

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder

NUM_SLOTS = 4


def recorder(folder, *, rank=0, changes=None, **options):
    clock = {"clock": options.pop("clock")} if "clock" in options else {}
    config = CaptureConfig(directory=folder, **options)
    return Recorder(config, facts(NUM_SLOTS, **(changes or {})), rank=rank, **clock)


class Engine:
    """Reports `num_reqs` requests for as many steps as asked for; `verdicts` counts what it reported."""

    def __init__(self, recorder, num_reqs=3):
        self.recorder = recorder
        self.keys = [f"key-{number}" for number in range(num_reqs)]
        self.position = 0
        self.drafted = False
        self.verdicts = 0
        for key in self.keys:
            recorder.start_request(key, prompt_len=5, temperature=0.0, top_p=None)

    def features(self, width=NUM_SLOTS):
        rows = np.arange(len(self.keys) * width, dtype=np.float32).reshape(len(self.keys), width)
        return {"log_odds": np.minimum(rows, 40), "entropy": rows}

    def step(self, *, mask=None, features=None):
        count = len(self.keys)
        ids = np.full((count, NUM_SLOTS), 9)
        if self.drafted:
            self.recorder.verify(self.keys, [self.position] * count, [3] * count, [1] * count, ids, mask)
            self.verdicts += count
            self.position += 2
        self.recorder.propose(self.keys, [NUM_SLOTS] * count, features or self.features(), ids)
        self.drafted = True
        self.recorder.end_step(**STEP)

    def steps(self, number):
        for _ in range(number):
            self.step()

    def finish(self):
        for key in self.keys:
            self.recorder.finish_request(key, self.position + 2, False)
