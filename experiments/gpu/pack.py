"""Splits the target, the drafters and the prompts into parts that are small enough to be sent one by one.

    python experiments/gpu/pack.py TARGET DRAFTERS PROMPTS OUT

OUT gets `part-000.bin`, `part-001.bin`, … (all files end to end) and `manifest.json` (sizes and SHA-256 of parts and
files). DRAFTERS is the work folder of `experiments/drafters`; of `data` and `held-out` only `outputs.jsonl` is packed,
as the states that training reads are made again by the GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1 << 20
DRAFTERS = ("eagle", "dspark", "mtp", "dflash")
PROMPTS = ("gsm8k_test.jsonl", "humaneval.jsonl", "mt_bench.jsonl")


def files(target: Path, drafters: Path, prompts: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path in the work folder, file); drafters that were not trained are left out."""
    for file in sorted(target.iterdir()):
        if file.is_file():
            yield f"target/{file.name}", file
    for name in DRAFTERS:
        for part in ("config.json", "card.json", "model.safetensors"):
            if (drafters / name / part).is_file():
                yield f"{name}/{part}", drafters / name / part
    for name in ("data", "held-out"):
        if (drafters / name / "outputs.jsonl").is_file():
            yield f"{name}/outputs.jsonl", drafters / name / "outputs.jsonl"
    for name in PROMPTS:
        yield f"prompts/{name}", prompts / name


class Parts:
    """Writes a stream of bytes into files of one size."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.done: list[dict[str, Any]] = []
        self.pending = bytearray()

    def write(self, data: bytes) -> None:
        self.pending += data
        while len(self.pending) >= self.size:
            self._publish(self.size)

    def close(self) -> None:
        if self.pending:
            self._publish(len(self.pending))

    def _publish(self, size: int) -> None:
        data, name = bytes(self.pending[:size]), f"part-{len(self.done):03d}.bin"
        del self.pending[:size]
        (self.folder / name).write_bytes(data)
        self.done.append({"name": name, "size": size, "sha256": hashlib.sha256(data).hexdigest()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "drafters", "prompts", "out"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    parser.add_argument("--part-mib", type=float, default=56, help="size of a part; default %(default)s")
    args = parser.parse_args()
    if not 0 < args.part_mib <= 60:
        parser.error("--part-mib must be above 0 and at most 60")
    found = list(files(args.target, args.drafters, args.prompts))
    missing = [str(file) for _, file in found if not file.is_file()]
    if missing:
        parser.error(f"missing: {', '.join(missing)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob("part-*.bin"):
        old.unlink()
    parts, listed = Parts(args.out, int(args.part_mib * (1 << 20))), []
    for name, file in found:
        digest, size = hashlib.sha256(), 0
        with file.open("rb") as stream:
            while data := stream.read(CHUNK):
                digest.update(data)
                parts.write(data)
                size += len(data)
        # A run goes on only with files of the same time, on whatever machine they are unpacked.
        listed.append({"path": name, "size": size, "sha256": digest.hexdigest(), "mtime_ns": file.stat().st_mtime_ns})
    parts.close()
    (args.out / "manifest.json").write_text(json.dumps({"files": listed, "parts": parts.done}, indent=1) + "\n")
    total = sum(part["size"] for part in parts.done)
    print(f"{args.out}: {len(listed)} files, {len(parts.done)} parts, {total / (1 << 20):.0f} MiB")


if __name__ == "__main__":
    main()
