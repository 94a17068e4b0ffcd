"""Prompts from JSONL files."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avsim.errors import InputError

__all__ = ["Prompt", "read_prompts"]


@dataclass(frozen=True)
class Prompt:
    """A user's text, its category, and where it was read."""

    text: str
    category: str
    where: str


def read_prompts(
    paths: Sequence[Path], categories: Collection[str] = (), limit: int | None = None
) -> tuple[list[Prompt], int]:
    """Read prompts: the first of each text, in file order.

    Each row is an object with `prompt`, `question` or `turns` (the first is used); its `category`, or the file's stem
    without one.

    Args:
        categories: keep these only; empty for all.
        limit: keep the first so many.

    Returns:
        prompts, dropped: how many rows repeated an earlier text.

    Raises:
        InputError: a file that cannot be read, a row without a text, an unknown category, or nothing left.
    """
    everything = [prompt for path in paths for prompt in _read(Path(path))]
    known = {prompt.category for prompt in everything}
    for name in categories:
        if name not in known:
            raise InputError(f"no prompt has the category {name!r}; there are {', '.join(sorted(known)) or 'none'}")
    chosen = [prompt for prompt in everything if not categories or prompt.category in categories]
    first = {prompt.text: prompt for prompt in reversed(chosen)}
    kept = [prompt for prompt in chosen if first[prompt.text] is prompt]
    if not kept:
        raise InputError(f"{', '.join(map(str, paths)) or 'no file'}: no prompts")
    return kept[:limit], len(chosen) - len(kept)


def _read(path: Path) -> list[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path} row {number}"
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                raise InputError(f"{where}: not valid JSON") from None
            found.append(_prompt(row, where, path.stem))
    return found


def _prompt(row: Any, where: str, stem: str) -> Prompt:
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    key = next((name for name in ("prompt", "question", "turns") if name in row), None)
    if key is None:
        raise InputError(f"{where}: has none of prompt, question, turns")
    text = row[key]
    if key == "turns":
        text = text[0] if isinstance(text, list) and text else None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: {key} holds no text")
    category = row.get("category", stem)
    if not isinstance(category, str):
        raise InputError(f"{where}: category is {category!r}; it must be text")
    return Prompt(text, category, where)
