"""The log of a capture: files of length-prefixed, checksummed records, of which every whole one can be read.

A record is a header (`AVC1`, number of steps, payload length, CRC-32 of those two and the payload; little-endian)
and a payload: the length of a JSON text, the text, then raw arrays, which the text names with dtype and shape.
A process killed while it writes leaves at most one torn record, at the end of its last file; its header, if that was
written, still tells how many steps were in it.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.errors import InputError

__all__ = ["FACTS", "LOG_VERSION", "Damage", "Record", "encode", "part_name", "parts", "read_facts", "read_part"]

LOG_VERSION = 1
FACTS = "facts.json"
MAGIC = b"AVC1"
_HEADER = struct.Struct("<4sIII")
_COUNTS = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: JSON values, and arrays by name."""

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


@dataclass(slots=True)
class Damage:
    """What could not be read: bytes after the last whole record of each file, and the steps their headers name."""

    cut_bytes: int = 0
    cut_steps: int = 0
    cut_parts: int = 0


def part_name(number: int) -> str:
    """Return the name of a log file: `part-00003.log`."""
    return f"part-{number:05d}.log"


def parts(folder: Path) -> list[Path]:
    """List the log files of a capture in the order they were written."""
    return sorted(folder.glob("part-*.log"), key=lambda path: (len(path.name), path.name))


def encode(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], num_steps: int) -> bytes:
    """Return the bytes of one record.

    >>> encode({}, {"step": np.arange(3)}, 3)[:8]
    b'AVC1\\x03\\x00\\x00\\x00'
    """
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**meta, "arrays": described}, separators=(",", ":")).encode()
    payload = b"".join([_LENGTH.pack(len(text)), text, *(array.tobytes() for array in arrays.values())])
    return _HEADER.pack(MAGIC, num_steps, len(payload), _checksum(num_steps, payload)) + payload


def read_part(path: Path, damage: Damage) -> Iterator[Record]:
    """Yield the whole records of a log file; what follows the last one is added to `damage`.

    Raises:
        InputError: the file cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            while at < size:
                header = file.read(_HEADER.size)
                record, num_steps = _read_record(file, header, size - at - len(header))
                if record is None:
                    damage.cut_bytes += size - at
                    damage.cut_steps += num_steps
                    damage.cut_parts += 1
                    return
                yield record
                at = file.tell()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """Read what a capture says about its engine and its own settings.

    Raises:
        InputError: it is missing, unreadable, or of a newer version.
    """
    path = folder / FACTS
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); it is written first") from None
    except ValueError:
        raise InputError(f"{path}: not valid JSON; it was changed after the capture") from None
    if not isinstance(data, dict) or not isinstance(data.get("facts"), dict):
        raise InputError(f"{path}: not the facts of a capture")
    if data.get("log_version") != LOG_VERSION:
        raise InputError(f"{path}: log_version is {data.get('log_version')!r}, but this avsim reads {LOG_VERSION}")
    return data


def _read_record(file: Any, header: bytes, left: int) -> tuple[Record | None, int]:
    if len(header) < _HEADER.size:
        return None, 0
    magic, num_steps, length, checksum = _HEADER.unpack(header)
    if magic != MAGIC:
        return None, 0
    if length > left:
        return None, num_steps
    payload = file.read(length)
    if _checksum(num_steps, payload) != checksum:
        return None, 0
    (text_length,) = _LENGTH.unpack_from(payload)
    meta = json.loads(payload[_LENGTH.size : _LENGTH.size + text_length])
    arrays: dict[str, NDArray[Any]] = {}
    at = _LENGTH.size + text_length
    for name, dtype, shape in meta.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(payload, dtype=dtype, count=count, offset=at).reshape(shape)
        at += arrays[name].nbytes
    return Record(meta, arrays), num_steps


def _checksum(num_steps: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_COUNTS.pack(num_steps, len(payload))))
