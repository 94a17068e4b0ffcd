"""Tables of how requests were served and what that took, as rows of text for every output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from avsim.report.wording import load_name, signed_pct

__all__ = ["Rows", "belief_sentences", "cliff_sentences", "economy_rows", "latency_rows", "queue_rows", "saving_rows"]

MISSING = "–"
Rows = tuple[list[str], list[tuple[str, list[list[str]]]]]
"""Column heads, the first of which is the arm's, and for each load its name and lines."""

_Column = tuple[str, Callable[[dict[str, Any]], str]]


def _number(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def _quantiles(key: str, digits: int = 1) -> Callable[[dict[str, Any]], str]:
    def text(arm: dict[str, Any]) -> str:
        found = arm.get(key)
        return MISSING if not found else " / ".join(_number(found[f"p{q}"], digits) for q in (50, 95, 99))

    return text


def _mean_and_most(key: str) -> Callable[[dict[str, Any]], str]:
    def text(arm: dict[str, Any]) -> str:
        found = arm.get(key)
        return MISSING if not found else f"{_number(found['mean'])} / {found['max']:,}"

    return text


def _with_interval(key: str, digits: int = 2) -> Callable[[dict[str, Any]], str]:
    def text(arm: dict[str, Any]) -> str:
        found = arm.get(key)
        if not found:
            return MISSING
        low, high = (_number(found[end], digits) for end in ("low", "high"))
        return f"{_number(found['value'], digits)} ({low} … {high})"

    return text


_TIMES: list[_Column] = [
    ("mean TPOT, ms (95 %)", _with_interval("tpot_mean_ms")),
    ("TPOT p50 / p95 / p99", _quantiles("tpot_ms", 2)),
    ("TTFT p50 / p95 / p99, ms", _quantiles("ttft_ms")),
    ("ITL p50 / p95 / p99, ms", _quantiles("itl_ms", 2)),
]
_QUEUES: list[_Column] = [
    ("time waited p50 / p95 / p99, ms", _quantiles("waiting_ms")),
    ("running, mean / most", _mean_and_most("running")),
    ("waiting, mean / most", _mean_and_most("waiting")),
    ("tokens a step, mean / most", _mean_and_most("tokens_per_step")),
]


def _spent(name: str, digits: int) -> Callable[[dict[str, Any]], str]:
    return lambda arm: _number((arm.get("economy") or {}).get(name), digits)


_SPENT = [
    ("verified_slots_per_token", "verified slots", 2),
    ("target_rows_per_token", "target rows", 2),
    ("padded_rows_per_token", "rows after padding", 2),
    ("target_gflops_per_token", "target GFLOPs", 1),
    ("engine_seconds_per_million_tokens", "engine-s per million", 1),
    ("gpu_seconds_per_million_tokens", "GPU-s per million", 1),
    ("cost_per_million_tokens", "cost per million", 3),
]


def _rows(summary: dict[str, Any], columns: list[_Column]) -> Rows:
    arms = [arm for load in summary["loads"] for arm in load["arms"]]
    shown = [(name, text) for name, text in columns if any(text(arm) != MISSING for arm in arms)]
    groups = [
        (
            load_name(load),
            [
                [arm["policy"] + "*" * bool(arm["unattainable"]), *(text(arm) for _, text in shown)]
                for arm in load["arms"]
            ],
        )
        for load in summary["loads"]
    ]
    return ["arm", *(name for name, _ in shown)], groups if shown else []


def latency_rows(summary: dict[str, Any]) -> Rows:
    """Return times per output token, to the first token and between tokens."""
    return _rows(summary, _TIMES)


def queue_rows(summary: dict[str, Any]) -> Rows:
    """Return how long and how many requests waited, how many ran, and sizes of steps."""
    return _rows(summary, _QUEUES)


def economy_rows(summary: dict[str, Any]) -> Rows:
    """Return what each arm takes per output token."""
    return _rows(summary, [(title, _spent(name, digits)) for name, title, digits in _SPENT])


def saving_rows(summary: dict[str, Any]) -> Rows:
    """Return each judged arm's spending over its rivals', as changes with intervals."""
    lines = [line for load in summary["loads"] for line in load.get("savings", [])]
    # Money and GPU time change as engine time does.
    names = [item for item in _SPENT[:5] if any(line.get(item[0]) for line in lines)]
    groups = []
    for load in summary["loads"]:
        found = [
            [f"{line['policy']} against {line['against']}", *(_change(line.get(name)) for name, _, _ in names)]
            for line in load.get("savings", [])
        ]
        if found:
            groups.append((load_name(load), found))
    return ["arm", *(title for _, title, _ in names)], groups


def _change(found: dict[str, float] | None) -> str:
    if not found:
        return MISSING
    change, low, high = ((found[key] - 1) * 100 for key in ("ratio", "low", "high"))
    return f"{signed_pct(change)} ({signed_pct(low, '')} … {signed_pct(high)})"


def belief_sentences(summary: dict[str, Any]) -> list[str]:
    """Say what a wrong cost table costs each judged arm, load by load."""
    found = []
    for load in summary["loads"]:
        for item in load.get("belief_costs", []):
            change, low, high = ((item[key] - 1) * 100 for key in ("ratio", "low", "high"))
            found.append(
                f"What the wrong belief costs {item['policy']} at {load_name(load)}: {item['metric']} "
                f"{signed_pct(change)} against the same policy on the true costs (interval {signed_pct(low, '')} to "
                f"{signed_pct(high)}): "
                f"{item['word']}."
            )
    return found


def cliff_sentences(summary: dict[str, Any]) -> list[str]:
    """Say how much of each gain comes from keeping below the capture limit, load by load."""
    found = []
    below = [load for load in summary["loads"] if load.get("cliff_reached") is False]
    if below and any(load["verdicts"] for load in below):
        found.append(
            f"Cliff avoidance at {', '.join(map(load_name, below))}: none: the cliff was never reached (no step had "
            f"more than {below[0]['capture_limit']:,} tokens, even before trimming)."
        )
    for load in summary["loads"]:
        for item in load.get("cliff", []):
            plain = (item["gain_ratio_without_cliff"] - 1) * 100
            low, high = ((item[key] - 1) * 100 for key in ("low_without_cliff", "high_without_cliff"))
            text = (
                f"Cliff avoidance at {load_name(load)}, {item['policy']} against {item['against']}: "
                f"{signed_pct((item['gain_ratio'] - 1) * 100)} with the cliff, {signed_pct(plain)} without it "
                f"(interval {signed_pct(low, '')} to {signed_pct(high)}, against {item['against_without_cliff']})"
            )
            share = item["share_pct"]
            if share is not None:
                text += f": {share['value']:.0f} % of the gain (interval {share['low']:.0f} to {share['high']:.0f} %)"
            found.append(f"{text}.")
    return found
