"""The content hash of a trace: over the values, so that row groups, file splits and compression do not matter."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import polars as pl

__all__ = ["ContentHash"]


class ContentHash:
    """SHA-256 over the columns of a trace's tables, fed in row order, in pieces of any size.

    Each column has its own digest: integers as int64 (null as the smallest), floats in their own width with one bit
    pattern for NaN and null, text as UTF-8 with its length. The result hashes the sorted list of table, column, kind
    and digest.

    >>> whole, split = ContentHash(), ContentHash()
    >>> frame = pl.DataFrame({"a": [1, 2, 3], "b": [0.5, None, 1.5]})
    >>> whole.update("blocks", frame)
    >>> for row in range(3):
    ...     split.update("blocks", frame[row : row + 1])
    >>> whole.hexdigest() == split.hexdigest()
    True
    """

    def __init__(self) -> None:
        self._digests: dict[tuple[str, str, str], Any] = {}

    def update(self, table: str, frame: pl.DataFrame) -> None:
        """Add rows of a table."""
        for column in frame.get_columns():
            kind, data = _encode(column)
            self._digests.setdefault((table, column.name, kind), hashlib.sha256()).update(data)

    def hexdigest(self) -> str:
        """Return `sha256:` and the hash of all that was added."""
        total = hashlib.sha256()
        for (table, column, kind), digest in sorted(self._digests.items()):
            total.update(f"{table} {column} {kind} {digest.hexdigest()}\n".encode())
        return f"sha256:{total.hexdigest()}"


def _encode(column: pl.Series) -> tuple[str, Any]:
    if column.dtype.is_integer():
        whole = column.cast(pl.Int64).fill_null(np.iinfo(np.int64).min).to_numpy()
        return "int", np.ascontiguousarray(whole.astype("<i8", copy=False)).data
    if column.dtype.is_float():
        width = "<f4" if column.dtype == pl.Float32 else "<f8"
        values = column.to_numpy().astype(width)
        values[np.isnan(values)] = np.nan
        return width, values.data
    if not column.len() or column.null_count() == column.len():
        return "text", b"-" * column.len()
    texts = (None if text is None else text.encode() for text in column.cast(pl.String).to_list())
    return "text", b"".join(b"-" if text is None else b"%d:%s" % (len(text), text) for text in texts)
