"""What recording a step costs the engine's thread: `python -m tests.perf.capture_cost`.

64 requests × 7 slots with six features and token ids, per step: back to back, where the writer thread competes for the
interpreter's lock all the time; and after a matrix product, which stands for the forward pass and leaves the lock to
the writer. One bare NumPy copy in the same place tells how cold the caches are and how noisy the machine is.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder

NUM_REQS, NUM_SLOTS = 64, 7
FEATURES = ("log_odds", "log_odds_f32", "entropy", "margin", "logsumexp", "draft_logprob")


def measure(num_steps: int, size: int, folder: Path) -> None:
    recorder = Recorder(CaptureConfig(directory=folder), {"num_speculative_tokens": NUM_SLOTS})
    keys = [f"request-{number}" for number in range(NUM_REQS)]
    for key in keys:
        recorder.start_request(key, prompt_len=100, temperature=0.0, top_p=None)
    features = {name: np.zeros((NUM_REQS, NUM_SLOTS), dtype=np.float32) for name in FEATURES}
    ids = np.zeros((NUM_REQS, NUM_SLOTS), dtype=np.int64)
    positions, drafted = np.zeros(NUM_REQS, dtype=np.int64), np.full(NUM_REQS, NUM_SLOTS)
    admitted, accepted = np.full(NUM_REQS, 3), np.ones(NUM_REQS, dtype=np.int64)
    recorder.propose(keys, drafted, features, ids)
    forward = np.ones((size, size), dtype=np.float32)
    took, copies = np.empty(num_steps), np.empty(num_steps)
    for step in range(num_steps + 1):
        forward @ forward
        start = time.perf_counter()
        np.array(admitted)
        copied = time.perf_counter()
        if step:
            recorder.verify(keys, positions, admitted, accepted, ids)
            recorder.propose(keys, drafted, features, ids)
        recorder.end_step(
            num_reqs=NUM_REQS,
            num_target_tokens=256,
            num_prefill_tokens=0,
            kv_tokens=1000,
            forward_ms=10.0,
            drafter_ms=1.0,
            graph_mode="full",
        )
        if step:
            took[step - 1], copies[step - 1] = time.perf_counter() - copied, copied - start
            positions = positions + accepted + 1  # the recorder was handed the old array
    recorder.close()
    p50, p99 = np.percentile(took * 1e6, [50, 99])
    copy50, copy99 = np.percentile(copies * 1e6, [50, 99])
    counters = recorder.counters
    print(
        f"{'after a product' if size else 'back to back':<16} p50 {p50:6.1f} µs   p99 {p99:6.1f} µs   one copy: "
        f"{copy50:.1f}, {copy99:.1f}   {counters['dropped_steps']} of {counters['steps']} steps dropped, "
        f"{counters['bytes'] / 1e6:.1f} MB"
    )


def main() -> None:
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as folder:
        measure(200, 0, Path(folder))
        measure(num_steps, 0, Path(folder))
        measure(num_steps, 700, Path(folder))


if __name__ == "__main__":
    main()
