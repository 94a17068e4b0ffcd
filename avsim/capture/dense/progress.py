"""Progress as log lines, for when no terminal watches."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LogLines"]


class LogLines:
    """Says how far a run is, at most every so often.

    Args:
        write: takes a line.
        clock: seconds that only go forward.
        every_s: the least time between two lines.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float], every_s: float = 60.0):
        self.write, self.clock, self.every_s = write, clock, every_s
        self.start: tuple[float, int] | None = None
        self.last_s = 0.0

    def __call__(self, done: int, total: int, what: str) -> None:
        now = self.clock()
        if self.start is None:
            self.start, self.last_s = (now, done), now
            return
        if now - self.last_s < self.every_s and done < total:
            return
        self.last_s = now
        start_s, start_done = self.start
        rate = (done - start_done) / max(now - start_s, 1e-9)
        left = f", about {(total - done) / rate / 60:.0f} min left" if rate and done < total else ""
        self.write(f"{done} of {total} {what}{left}")
