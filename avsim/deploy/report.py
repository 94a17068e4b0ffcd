"""What a deployed estimator has seen, as a JSON file and as metrics, while the engine serves and when it ends."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from avsim.deploy.ledger import Counts, counts_document
from avsim.errors import InputError
from avsim.manifest import json_text, write_file

__all__ = ["FORMAT", "Reporter"]

FORMAT = "avsim-deploy-report/1"
_log = logging.getLogger("avsim.deploy")


class Reporter:
    """Publishes the counts of one engine's deployed estimator.

    Args:
        path: JSON file, replaced as a whole; None for none.
        seconds: between two writes of it, at least.
        engine: number of the engine among data-parallel ones.
        metrics: an exporter with `update(document)`; None for none.
    """

    def __init__(self, path: Path | None, seconds: float, engine: int, metrics: Any | None) -> None:
        self._path, self._seconds, self._engine, self._metrics = path, seconds, engine, metrics
        self._before: Counts | None = None
        self._latest: Counts | None = None
        self._written = -float("inf")
        self._closed = False

    def __call__(self, deployed: Any) -> None:
        """Publish what has arrived; called after every step, and cheap where nothing has."""
        counts = deployed.ledger.arrived()
        if counts is None:
            return
        self._publish(deployed, counts)

    def document(self, deployed: Any) -> dict[str, Any]:
        """Publish and return the counts up to now; waits for the device."""
        return self._publish(deployed, deployed.ledger.now(), force=True)

    def close(self, deployed: Any) -> None:
        """Publish the last counts; never raises, since the engine is on its way out."""
        if self._closed:
            return
        self._closed = True
        try:
            if deployed.ledger is not None and deployed.serving:
                self.document(deployed)
        except Exception as error:
            _log.warning("avsim: the last report failed: %s: %s", type(error).__name__, error)

    def _publish(self, deployed: Any, counts: Counts, *, force: bool = False) -> dict[str, Any]:
        if self._latest is not None and self._latest.host.steps < counts.host.steps:
            self._before = self._latest  # asked twice in one step, the window stays
        self._latest = counts
        document = {
            "format": FORMAT,
            "bundle_sha256": deployed.bundle.sha256,
            "estimator": deployed.bundle.spec,
            "mode": "shadow" if deployed.shadow else "on",
            "decides": deployed.decides,
            "failed": deployed.failed,
            "engine": self._engine,
            "refits": deployed.refits,
        } | counts_document(counts, self._before)
        if self._metrics is not None:
            self._metrics.update(document)
        now = time.monotonic()
        if self._path is not None and (force or now - self._written >= self._seconds):
            self._written = now
            try:
                write_file(self._path, json_text(document))
            except InputError as error:
                self._path = None
                _log.warning("avsim: no report file: %s", error)
        return document
