"""Measures step times of the target and of each drafter; writes `steps.json`, row by row, and goes on where it stopped.

    python experiments/gpu/timing.py --work WORK --out OUT --device cuda --seconds 120

Each row is a median of at least 20 runs after warm-up, between two CUDA events, with its spread: `eager` as PyTorch
launches it, `graph` replayed from a CUDA graph. All eager rows come first.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import steps
import torch
import transformers

from avsim.capture.dense.model import Model
from avsim.costs.profile.timers import CpuTimer, cuda_event_ms, graphed

SLOTS = 5


def plan(target: Model, folders: dict[str, str], batch: int, context: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (row to be measured, function that makes its step)."""
    for tokens in (1, SLOTS + 1):
        row = {"what": "target", "tokens_per_request": tokens}
        yield row, lambda tokens=tokens: steps.target_step(target, batch, context, tokens)
    makers = {"draft-model": steps.draft_model_step, "eagle": steps.eagle_step}
    for name, spec in folders.items():
        make = makers.get(name, steps.parallel_step)
        for slots in (1, SLOTS):
            row = {"what": name, "slots": slots, "shared_context": name not in makers}
            yield row, lambda make=make, spec=spec, slots=slots: make(target, spec, batch, context, slots)


def measure(step: steps.Step, device: str, repeats: int) -> dict[str, float]:
    """Median and spread of a step, in ms."""
    for _ in range(max(3, repeats // 4)):
        step()
    times = []
    for _ in range(repeats):
        times.append(CpuTimer().ms(step) if device == "cpu" else cuda_event_ms(step))
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    spread = {"median_ms": statistics.median(times), "p10_ms": tenths[0], "p90_ms": tenths[-1]}
    spread |= {"min_ms": min(times), "max_ms": max(times)}
    return {name: round(value, 5) for name, value in spread.items()} | {"repeats": repeats}


def timed(make: Callable[[], steps.Step], mode: str, device: str, repeats: int) -> dict[str, Any]:
    """`measure`, or what went wrong."""
    try:
        step = make()
        return measure(graphed(step) if mode == "graph" else step, device, repeats)
    except RuntimeError as error:
        return {"error": str(error).splitlines()[0]}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    batches, context, repeats = ((1, 2), 16, 3) if args.tiny else ([2**n for n in range(9)], 256, 30)
    target = Model.load(str(args.work / "target"), args.device, args.dtype)
    device = platform.machine() if args.device == "cpu" else torch.cuda.get_device_name(args.device)
    about = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}
    about |= {"dtype": args.dtype, "context_tokens": context, "target_layers": len(target.body.layers)}
    file = args.out / "steps.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    rows = [row for row in found.get("rows", []) if about.items() <= found.items() and "error" not in row]
    found = about | {"largest_difference_from_transformers": steps.difference(target, context, SLOTS + 1), "rows": rows}
    folders = {"draft-model": "draft-model:first-26"}
    kinds = [kind for kind in ("eagle", "mtp", "dflash", "dspark") if (args.work / kind / "config.json").exists()]
    folders |= {kind: f"{kind}:{args.work / kind}" for kind in kinds}
    for mode in ("eager", "graph") if args.device != "cpu" else ("eager",):
        for batch in batches:
            for row, make in plan(target, folders, batch, context):
                row = row | {"num_reqs": batch, "mode": mode}
                if any(row.items() <= old.items() for old in rows):
                    continue
                if time.monotonic() > end:
                    print(f"timing: out of time after {len(rows)} rows; call again")
                    return
                rows.append(row | timed(make, mode, args.device, repeats))
                temporary = file.with_suffix(".tmp")
                temporary.write_text(json.dumps(found, indent=1) + "\n")
                temporary.replace(file)
    errors = sum("error" in row for row in rows)
    print(f"timing: {file}, {len(rows)} rows, {errors} with errors")


if __name__ == "__main__":
    main()
