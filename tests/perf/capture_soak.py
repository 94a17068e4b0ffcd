"""Whether recording keeps its memory flat: `python -m tests.perf.capture_soak [MINUTES]`, ten by default.

64 requests × 7 slots, 50 steps a second, a request ending and another beginning in every step; prints the resident
memory once a minute.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from avsim.capture.config import CaptureConfig
from avsim.capture.recorder import Recorder
from tests.perf.capture_cost import FEATURES, NUM_REQS, NUM_SLOTS

STEPS_PER_SECOND = 50


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(CaptureConfig(directory=Path(folder)), {"num_speculative_tokens": NUM_SLOTS})
        begun, shown, step = time.monotonic(), 0, 0
        live: dict[str, int] = {}
        while (elapsed := time.monotonic() - begun) < minutes * 60:
            if len(live) == NUM_REQS:
                oldest = next(iter(live))
                recorder.finish_request(oldest, live.pop(oldest) + 1, False)
            name = f"request-{step}"
            recorder.start_request(name, prompt_len=100, temperature=0.0, top_p=None)
            keys = list(live)
            if keys:
                positions = [live[key] for key in keys]
                recorder.verify(keys, positions, [3] * len(keys), [1] * len(keys))
                live = {key: position + 2 for key, position in live.items()}
            live[name] = 0
            features = {name: np.zeros((len(live), NUM_SLOTS), dtype=np.float32) for name in FEATURES}
            recorder.propose(list(live), [NUM_SLOTS] * len(live), features, positions=list(live.values()))
            recorder.end_step(
                num_reqs=len(live),
                num_target_tokens=256,
                num_prefill_tokens=0,
                kv_tokens=1000,
                forward_ms=10.0,
                drafter_ms=1.0,
                graph_mode=None,
            )
            step += 1
            if elapsed >= shown * 60:
                print(f"{elapsed / 60:4.1f} min  {resident_mib():7.1f} MiB  {step} steps", flush=True)
                shown += 1
            time.sleep(max(step / STEPS_PER_SECOND - elapsed, 0))
        recorder.close()
        counters = recorder.counters
        print(f"end       {resident_mib():7.1f} MiB  {counters['blocks']} blocks, {counters['dropped_blocks']} dropped")


if __name__ == "__main__":
    main()
