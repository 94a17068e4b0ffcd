"""Everything that a GPU is needed for, in one command that ends in time and can be called again.

    python experiments/gpu/run.py --work WORK --minutes 9

WORK is what `unpack.py` made. In turn: training (only with --train), step times, dense traces as long as the time
lasts. Results are in WORK/out; a stage that failed is named at the end, and the others go on without it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).parent
TARBALL = 15 << 20


def check_device(device: str) -> str:
    """Return what the device is; end with status 2 where there is none."""
    try:
        import torch
    except ImportError:
        print("run: torch is not installed", file=sys.stderr)
        raise SystemExit(2) from None
    if device == "cpu":
        return f"cpu ({platform.machine()})"
    if not torch.cuda.is_available():
        print("run: no CUDA device; for a trial on a CPU pass --device cpu --tiny", file=sys.stderr)
        raise SystemExit(2)
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.total_memory >> 20} MiB, CUDA {torch.version.cuda}"


def stage(name: str, *words: object, limit_s: float) -> bool:
    """Run a script of this folder; tell whether it ended well."""
    print(f"\n=== {name}: {limit_s:.0f} s at most", flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), *map(str, words), "--seconds", f"{limit_s:.0f}"]
    env = os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    try:
        # The scripts watch their own time; a step that hangs must not take the others' results along.
        code = subprocess.run(command, env=env, timeout=limit_s + 15).returncode
    except subprocess.TimeoutExpired:
        code = "killed at its time limit"
    result = "done" if code == 0 else f"failed ({code})"
    print(f"=== {name}: {result} after {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def collect(out: Path, folder: Path) -> None:
    """Copy the step times, and the finished traces as tarballs of at most 15 MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    if (out / "steps.json").exists():
        (folder / "steps.json").write_bytes((out / "steps.json").read_bytes())
    groups: list[list[Path]] = [[]]
    size = 0
    for trace in sorted((out / "traces").glob("*/trace.json")):
        files = [file for file in sorted(trace.parent.rglob("*")) if file.is_file()]
        own = sum(file.stat().st_size + 2048 for file in files)
        if groups[-1] and size + own > TARBALL:
            groups.append([])
            size = 0
        groups[-1] += files
        size += own
    for number, files in enumerate(filter(None, groups)):
        with tarfile.open(folder / f"traces-{number:03d}.tar", "w") as tar:
            for file in files:
                data = file.read_bytes()
                entry = tarfile.TarInfo(str(file.relative_to(out / "traces")))
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    print(f"{folder}: {', '.join(f'{f.name} {f.stat().st_size >> 10} KiB' for f in sorted(folder.iterdir()))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything; default %(default)s")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to try the scripts out; the only way on a CPU")
    parser.add_argument("--train", default="", help="such as eagle=2,dspark=1: minutes of training; default none")
    parser.add_argument("--dtype", default="float32", help="of the traces; step times are in bfloat16")
    parser.add_argument("--collect", type=Path, help="folder for the results, in files of 15 MiB at most")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes - 15
    device = check_device(args.device)
    if args.device == "cpu" and not args.tiny:
        print("run: on a CPU pass --tiny", file=sys.stderr)
        raise SystemExit(2)
    if not (args.work / "target" / "config.json").exists():
        print(f"run: {args.work}: no target; call unpack.py first", file=sys.stderr)
        raise SystemExit(2)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "polars", "numpy")}
    print(f"device: {device}; python {platform.python_version()}, {json.dumps(versions)}", flush=True)
    out = args.work / ("out-tiny" if args.tiny else "out")
    out.mkdir(exist_ok=True)
    common = ["--work", args.work, "--out", out, "--device", args.device, *(["--tiny"] if args.tiny else [])]
    failed = []
    if args.train and not stage("trainers", *common, *args.train.split(","), limit_s=end - time.monotonic()):
        failed.append("trainers")
    share = (end - time.monotonic()) * (1.0 if args.tiny else 0.35)
    precision = ["--dtype", "float32" if args.device == "cpu" else "bfloat16"]
    if not stage("timing", *common, *precision, limit_s=share):
        failed.append("timing")
    if not stage("traces", *common, "--dtype", args.dtype, limit_s=end - time.monotonic()):
        failed.append("traces")
    if args.collect:
        collect(out, args.collect)
    if failed:
        sys.exit(f"run: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
