"""What a run needs to be repeated: versions, arguments and content hashes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from avsim import __version__
from avsim.errors import InputError

__all__ = [
    "check_hashes",
    "check_writable",
    "json_text",
    "make_manifest",
    "read_manifest",
    "read_text",
    "sha256_json",
    "write_file",
    "write_folder",
]


def json_text(data: Any) -> str:
    """Return the one JSON text that avsim writes for some data: sorted by nothing, indented, NaN refused."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def sha256_json(data: Any) -> str:
    """Return the SHA-256 of some JSON data, independent of key order and spacing."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def make_manifest(command: str, config: dict[str, Any], inputs: dict[str, str]) -> dict[str, Any]:
    """Return a manifest; `inputs` maps each input (trace, cost model) to its content hash."""
    packages = ("numpy", "scipy", "polars", "typer", "scikit-learn")
    return {
        "manifest_version": 1,
        "command": command,
        "config": config,
        "inputs": inputs,
        "versions": {"avsim": __version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in packages}
        | _optional("matplotlib"),
    }


def _optional(name: str) -> dict[str, str]:
    try:
        return {name: metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest, or the one in a run folder.

    Raises:
        InputError: missing, malformed, or of an unknown version.
    """
    path = path / "manifest.json" if path.is_dir() else path
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = data["manifest_version"]
    except OSError as error:
        raise InputError(f"{path}: cannot read the manifest: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not a manifest; it must be the manifest.json of an avsim run") from None
    if version != 1:
        raise InputError(f"{path}: manifest version {version} is newer than this avsim {__version__}; update avsim")
    return data


def check_hashes(manifest: dict[str, Any], inputs: dict[str, str]) -> None:
    """Refuse to repeat a run on other inputs.

    Raises:
        InputError: an input's content differs from that of the recorded run.
    """
    for name, recorded in manifest["inputs"].items():
        if inputs.get(name) != recorded:
            raise InputError(
                f"{name} is not the one of the recorded run (content hash {str(inputs.get(name))[:19]}…, "
                f"recorded {recorded[:19]}…); restore it, or start a new run without --manifest"
            )


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before the work is done.

    Raises:
        InputError: its folder cannot be made or written to.
    """
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot write it: {folder} is no folder that can be written to")
    if path.is_dir():
        raise InputError(f"{path}: cannot write it: it is a folder")


def write_file(path: Path, text: str) -> None:
    """Write a text file as a whole: into a temporary sibling that is renamed at the end.

    Raises:
        InputError: it cannot be written.
    """
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot write it: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_folder(path: Path, fill: Callable[[Path], None], *, overwrite: bool = False) -> None:
    """Write a folder as a whole: `fill` writes into a temporary sibling that is renamed at the end.

    Raises:
        InputError: the folder exists (and `overwrite` is off, or it is no run folder), or cannot be written.
    """
    path = path.absolute()
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; choose another folder or pass --overwrite")
    if path.exists() and not (path / "manifest.json").is_file():
        raise InputError(f"{path} exists and holds no manifest.json, so it is not overwritten; choose another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise InputError(f"{path}: cannot write there: {error.strerror}") from None
    try:
        fill(temporary)
        temporary.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
