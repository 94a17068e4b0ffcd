"""Trains drafters on the GPU, each for so many minutes, with the scripts of `experiments/drafters`.

    python experiments/gpu/trainers.py --work WORK --out OUT --device cuda --seconds 300 eagle=2 dspark=1

The target's states on the training text are computed first. A checkpoint appears in WORK/trained/NAME once its script
has ended; those that are there already are left alone, and none is started that would not end in time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "experiments" / "drafters"
NAMES = ("eagle", "dspark", "mtp", "dflash")
OVERHEAD_S = 45


def call(script: str, *words: object, limit_s: float) -> bool:
    """Run a training script; tell whether it ended well within its time."""
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), *map(str, words)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    print(f"== {script}", flush=True)
    try:
        code = subprocess.run(command, env=env, timeout=max(limit_s, 1)).returncode
    except subprocess.TimeoutExpired:
        code = "killed at its time limit"
    if code != 0:
        print(f"trainers: {script} failed ({code})", flush=True)
    return code == 0


def few(source: Path, folder: Path, count: int) -> None:
    """Keep the shortest sequences only, for a trial run."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = sorted(source.read_text().splitlines(), key=lambda line: len(json.loads(line)["tokens"]))
    (folder / "outputs.jsonl").write_text("\n".join(lines[:count]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("drafters", nargs="+", metavar="NAME=MINUTES")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    minutes = {name: float(value) for name, _, value in (word.partition("=") for word in args.drafters)}
    if unknown := minutes.keys() - set(NAMES):
        parser.error(f"unknown drafter {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    base, trained = args.out if args.tiny else args.work, args.out / "trained"
    folders = {"data": base / "data", "held-out": base / "held-out"}
    for name, folder in folders.items():
        if args.tiny:
            few(args.work / name / "outputs.jsonl", folder, 8 if name == "data" else 2)
        if not (folder / "features.safetensors").exists():
            words = ("--target", args.work / "target", "--data", folder, "--device", args.device)
            if not call("features", *words, limit_s=end - time.monotonic()):
                (folder / "features.safetensors").unlink(missing_ok=True)
                sys.exit(1)
    for name in [name for name in NAMES if name in minutes and not (trained / name).exists()]:
        left = end - time.monotonic()
        if left < 60 * minutes[name] + OVERHEAD_S:
            print(f"trainers: {left:.0f} s left, too few for {name}", flush=True)
            continue
        part = trained / f"{name}.partial"
        words = ["--target", args.work / "target", "--data", folders["data"], "--held-out", folders["held-out"]]
        words += ["--out", part, "--device", args.device]
        done = call(f"train_{name}", *words, "--minutes", minutes[name], limit_s=left)
        if done and name == "dspark":
            done = call("train_confidence", *words, limit_s=end - time.monotonic())
        if done:
            part.rename(trained / name)


if __name__ == "__main__":
    main()
