"""Records dense traces on the GPU, one after another while the time lasts; called again, it goes on where it stopped.

    python experiments/gpu/traces.py --work WORK --out OUT --device cuda --seconds 300

The prompts, seeds and settings are those of `experiments/captures/run.py`, so the traces can be compared with the ones
that were recorded on a CPU. Drafters in OUT/trained are used in place of those in WORK, under names of their own.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from avsim.capture.dense.run import DenseSettings, run_dense
from experiments.captures import run as captures

KINDS = ("eagle", "dspark", "mtp", "dflash", "draft-model", "ngram")
FIRST_S = 40.0


class OutOfTime(Exception):
    """The time is up between two groups of requests."""


def plan(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (trace name, settings): every drafter, greedy and sampled."""
    by_kind = {what.kind: what for what in captures.TRACES.values()}
    for temperature in (0.0, 0.8):
        for kind in KINDS:
            what, drafter, suffix = by_kind[kind], by_kind[kind].drafter, ""
            folder, trained = args.work / kind, args.out / "trained" / kind
            if trained.exists():
                card = json.loads((trained / "card.json").read_text())
                folder, suffix = trained, "-retrained"
                drafter = f"{drafter.partition(',')[0]}, {card['minutes']} minutes of training on {card['hardware']}"
            if kind not in ("draft-model", "ngram") and not (folder / "config.json").exists():
                print(f"traces: no {kind} drafter, left out", flush=True)
                continue
            sampled = temperature > 0 and kind != "ngram"
            yield (
                f"smollm2-{kind}{suffix}-{'sampled' if temperature else 'greedy'}-gpu",
                {
                    "drafter": f"{kind}:{folder if folder.exists() else what.source}",
                    "temperature": temperature,
                    "draft_sampling": "probabilistic" if sampled else "greedy",
                    "drafter_name": drafter,
                    "notes": f"{what.notes} {captures.TARGET}".strip(),
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    start = time.monotonic()
    end = start + args.seconds
    prompts = args.out / "captures.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in captures.held_out(args.work / "prompts")))
    size = {"batch": 2, "limit": 2, "max_tokens": 6} if args.tiny else {"batch": 24}

    def progress(done: int, total: int, what: str) -> None:
        if done < total and time.monotonic() > end:
            raise OutOfTime

    took: list[float] = []
    left = [(name, chosen) for name, chosen in plan(args) if not (args.out / "traces" / name).exists()]
    while left:
        name, chosen = left[0]
        began = time.monotonic()
        if end - began < 1.3 * max(took, default=FIRST_S):
            break
        settings = DenseSettings(
            target=str(args.work / "target"), prompts=(str(prompts),), device=args.device, dtype=args.dtype, seed=1,
            target_name="SmolLM2-135M-Instruct", prompts_name=captures.PROMPTS, licence=captures.LICENCE,
            **chosen, **size,
        )  # fmt: skip
        where = {"outputs": args.out / "outputs", "resume": True, "progress": progress}
        try:
            trace = run_dense(settings, args.out / "traces" / name, date=datetime.date.today().isoformat(), **where)
        except OutOfTime:
            break
        took.append(time.monotonic() - began)
        card = trace.card
        if args.device != "cpu" and card.hardware != torch.cuda.get_device_name(args.device):
            sys.exit(f"traces: {name}: the card names {card.hardware}, not the GPU")
        print(f"{name}: {card.num_requests} requests, {trace.num_blocks} blocks, {took[-1]:.0f} s", flush=True)
        left.pop(0)
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    names = ", ".join(name for name, _ in left)
    print(f"traces: {len(took)} recorded; " + (f"call again for {names}" if left else "all there"), flush=True)


if __name__ == "__main__":
    main()
