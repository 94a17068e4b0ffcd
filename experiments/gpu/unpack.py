"""Joins what `pack.py` split, after checking every part; may be called again, and then writes only what is not there.

python experiments/gpu/unpack.py PARTS WORK
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def same(file: Path, about: dict[str, Any]) -> bool:
    """Tell whether a file is what the manifest says."""
    return file.is_file() and file.stat().st_size == about["size"] and digest(file) == about["sha256"]


def stream(folder: Path, parts: list[dict[str, Any]]) -> Iterator[bytes]:
    """Yield the parts' bytes, in chunks."""
    for part in parts:
        with (folder / part["name"]).open("rb") as file:
            while data := file.read(CHUNK):
                yield data


def join(folder: Path, manifest: dict[str, Any], work: Path) -> int:
    """Write all files that are not there yet; return how many that were."""
    chunks, held, written = stream(folder, manifest["parts"]), b"", 0
    for about in manifest["files"]:
        file = work / about["path"]
        keep = same(file, about)
        temporary = file.with_name(f".{file.name}.tmp")
        file.parent.mkdir(parents=True, exist_ok=True)
        left, seen = about["size"], hashlib.sha256()
        with open(os.devnull if keep else temporary, "wb") as out:
            while left:
                held = held or next(chunks)
                data, held = held[:left], held[left:]
                left -= len(data)
                seen.update(data)
                out.write(data)
        if seen.hexdigest() != about["sha256"]:
            raise SystemExit(f"unpack: {about['path']} does not have the hash in the manifest")
        if not keep:
            temporary.replace(file)
            written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, metavar="PARTS", help="folder with the parts and manifest.json")
    parser.add_argument("work", type=Path, metavar="WORK")
    args = parser.parse_args()
    try:
        manifest = json.loads((args.parts / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"unpack: {args.parts / 'manifest.json'} cannot be read ({error})")
    if any(Path(about["path"]).is_absolute() or ".." in Path(about["path"]).parts for about in manifest["files"]):
        sys.exit("unpack: the manifest names a file outside the work folder")
    written = 0
    if not all(same(args.work / about["path"], about) for about in manifest["files"]):
        missing = [part["name"] for part in manifest["parts"] if not (args.parts / part["name"]).is_file()]
        if missing:
            sys.exit(f"unpack: missing {', '.join(missing)}; nothing was written")
        bad = [part["name"] for part in manifest["parts"] if not same(args.parts / part["name"], part)]
        if bad:
            sys.exit(f"unpack: {', '.join(bad)} damaged (SHA-256 or size differs); nothing was written")
        written = join(args.parts, manifest, args.work)
    for about in manifest["files"]:
        os.utime(args.work / about["path"], ns=(about["mtime_ns"], about["mtime_ns"]))
    print(f"{args.work}: {len(manifest['files'])} files, {written} written, all hashes right")


if __name__ == "__main__":
    main()
