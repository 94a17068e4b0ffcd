"""The counters of a deployed estimator as Prometheus metrics, in the registry of the process that serves.

vLLM's workers are processes of their own. Their metrics reach the server's `/metrics` only in `prometheus_client`'s
multi-process mode, that is with `PROMETHEUS_MULTIPROC_DIR` set before the engine starts; see docs/deploy.md.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

__all__ = ["Metrics", "make_metrics"]

_COUNTERS = {
    "avsim_steps": ("Sampling steps since serving began.", ()),
    "avsim_refits": ("Refits of avsim's estimator.", ()),
    "avsim_scheduled_drafts": ("Drafts in steps with a budget.", ()),
    "avsim_verified_drafts": ("Drafts that the target verified.", ()),
    "avsim_accepted_drafts": ("Drafts that the target accepted.", ()),
    "avsim_expected_accepted_drafts": ("Sum of survival over verified drafts.", ("estimator",)),
    "avsim_labelled_slots": ("Draft slots with a verdict.", ("slot",)),
    "avsim_accepted_slots": ("Draft slots whose verdict was acceptance.", ("slot",)),
    "avsim_confidence": ("Sum of confidences over draft slots with a verdict.", ("estimator", "slot")),
    "avsim_timed_steps": ("Steps whose time is in the next two.", ()),
    "avsim_predicted_step_ms": ("What the cost tables in force say of them, ms.", ()),
    "avsim_measured_step_ms": ("Time from the step before to them, ms.", ()),
}
_GAUGES = {
    "avsim_calibration_slope": (
        "Slope of acceptance on the confidence's log-odds since serving began.",
        ("estimator",),
    ),
    "avsim_window_calibration_slope": ("The same over the last window.", ("estimator",)),
    "avsim_starved_slots": ("Draft slots without a verdict in the last window.", ()),
    "avsim_decides": ("1 for the estimator whose confidences are handed on.", ("estimator",)),
}


@cache
def _families() -> dict[str, Any]:
    # Imported so because it comes with vLLM, not with avsim.
    client = importlib.import_module("prometheus_client")
    found: dict[str, Any] = {
        name: client.Counter(name, text, ("engine", *labels)) for name, (text, labels) in _COUNTERS.items()
    }
    for name, (text, labels) in _GAUGES.items():
        found[name] = client.Gauge(name, text, ("engine", *labels), multiprocess_mode="mostrecent")
    return found


def make_metrics(engine: int) -> Metrics | None:
    """Return an exporter, None where `prometheus_client` is not installed."""
    try:
        return Metrics(engine, _families())
    except ImportError:
        return None


class Metrics:
    """Keeps metric families at the values of the newest report document; counters only grow.

    Args:
        engine: value of the label `engine`.
        families: by name, as `prometheus_client` makes them.
    """

    def __init__(self, engine: int, families: dict[str, Any]) -> None:
        self._engine, self._families = str(engine), families
        self._held: dict[tuple[str, ...], float] = {}

    def update(self, document: dict[str, Any]) -> None:
        """Take over a document of `avsim.deploy.report`."""
        for name in ("steps", "refits"):
            self._count(f"avsim_{name}", document[name])
        for name in ("scheduled", "verified", "accepted"):
            self._count(f"avsim_{name}_drafts", document["drafts"][name])
        timing = document["step_time"]
        self._count("avsim_timed_steps", timing["steps"])
        for name in ("predicted", "measured"):
            self._count(f"avsim_{name}_step_ms", timing[f"{name}_ms"])
        for slot, (labelled, accepted) in enumerate(
            zip(document["slots"]["labelled"], document["slots"]["accepted"], strict=True)
        ):
            self._count("avsim_labelled_slots", labelled, str(slot))
            self._count("avsim_accepted_slots", accepted, str(slot))
        for who, found in document["estimators"].items():
            self._count("avsim_expected_accepted_drafts", sum(found["expected_accepted"]), who)
            for slot, total in enumerate(found["confidence_sum"]):
                self._count("avsim_confidence", total, who, str(slot))
            self._set("avsim_calibration_slope", found["calibration_slope"], who)
            self._set("avsim_window_calibration_slope", found["window_calibration_slope"], who)
            self._set("avsim_decides", float(document["decides"] == who), who)
        self._set("avsim_starved_slots", len(document["window"]["starved"]))

    def _count(self, name: str, value: float, *labels: str) -> None:
        key = (name, *labels)
        added = value - self._held.get(key, 0.0)
        if added > 0:
            self._families[name].labels(self._engine, *labels).inc(added)
            self._held[key] = value

    def _set(self, name: str, value: float | None, *labels: str) -> None:
        # NaN is Prometheus' own word for a number that does not exist.
        self._families[name].labels(self._engine, *labels).set(float("nan") if value is None else value)
