"""What tests of HTML reports share."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

VOID = {"meta", "path", "use", "rect", "br"}


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


class Balance(HTMLParser):
    """Notes tags that are never closed, or closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.stack or self.stack.pop() != tag:
            self.wrong.append(tag)
