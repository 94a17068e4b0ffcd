"""What a summary says, in plain words: the same sentences for every output."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from avsim.metrics.verdict import Verdict

__all__ = [
    "at_loads", "baseline_kind", "bounds", "command_line", "fastest_sentence", "findings", "load_name", "loads_head",
    "marks", "reasons", "signed_pct",
]  # fmt: skip

_MARKS = {
    "SYNTHETIC": "SYNTHETIC",
    "APPROXIMATE": "APPROXIMATE",
    "CENSORED": "CENSORED",
    "LOSSY": "LOSSY",
    "Outside the cost table's range": "EXTRAPOLATED",
    "SATURATED": "SATURATED",
    "CONTEXT": "OTHER CONTEXT",
}


def signed_pct(value: float, unit: str = "\u00a0%") -> str:
    """Return a percentage with its sign.

    >>> signed_pct(-4.35, ""), signed_pct(0.06, ""), signed_pct(-0.04, "")
    ('−4.3', '+0.1', '0.0')
    """
    text = f"{value:+.1f}".replace("-", "−")
    return f"{text[1:] if text[1:] == '0.0' else text}{unit}"


def load_name(load: dict[str, Any]) -> str:
    """Return how a load is called: its concurrency, its arrivals, or what was recorded."""
    if load["concurrency"] is not None:
        return str(load["concurrency"])
    if load.get("load"):
        return str(load["load"])
    return f"as recorded (mean {load['mean_num_reqs']:.1f})"


def marks(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each restriction that heads the report: its mark and its full text."""
    found = [(mark, note) for note in summary["notes"] for start, mark in _MARKS.items() if note.startswith(start)]
    if summary["synthetic"] and not any(mark == "SYNTHETIC" for mark, _ in found):
        found.insert(0, ("SYNTHETIC", "SYNTHETIC COSTS: every number holds for a made-up cost table only."))
    if summary["what_if"]:
        text = (
            "WHAT IF: the step costs are of another model than the trace, so no engine can run this combination and "
            "no measurement can confirm it."
        )
        found.insert(0, ("WHAT IF", text))
    return found


def loads_head(summary: dict[str, Any]) -> str:
    """Return what heads a column of loads."""
    heads = {"closed": "concurrent requests", "arrivals": "arrivals, requests/s"}
    return heads.get(summary["loop"], "requests in flight")


def at_loads(loads: Iterable[int | str], tested: Iterable[int | str]) -> str:
    """Name some of the tested loads; three or more neighbouring numbers are written as a range.

    >>> at_loads([1, 32, 64, 128], [1, 8, 32, 64, 128, 256]), at_loads([128, 256], [1, 128, 256])
    ('1, 32–128', '128, 256')
    """
    numbers = [load for load in loads if isinstance(load, int)]
    if not numbers:
        return ", ".join(map(str, dict.fromkeys(loads)))
    order = sorted({load for load in tested if isinstance(load, int)})
    runs: list[list[int]] = []
    for load in sorted(set(numbers)):
        if runs and order.index(load) == order.index(runs[-1][-1]) + 1:
            runs[-1].append(load)
        else:
            runs.append([load])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def baseline_kind(against: str) -> str:
    """Return a baseline without the depth that was chosen.

    >>> baseline_kind("best fixed (fixed:3)")
    'best fixed'
    """
    return against.split(" (")[0]


def bounds(summary: dict[str, Any]) -> set[str]:
    """Return the names of the arms that no engine can run."""
    return {arm["policy"] for load in summary["loads"] for arm in load["arms"] if arm["unattainable"]}


def findings(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return one lead and one text per judged policy and baseline, generated from the verdicts alone."""
    groups: dict[tuple[str, str, str], list[tuple[int | str | None, Verdict]]] = {}
    for load, verdict in _verdicts(summary):
        key = (verdict.policy, baseline_kind(verdict.against), verdict.metric)
        groups.setdefault(key, []).append((load, verdict))
    unattainable = bounds(summary)
    return [
        (
            f"{policy}{' (reads the verdict: no engine can run it)' if policy in unattainable else ''}, against "
            f"{_baseline_words(kind)}{', ' + metric if summary['loop'] == 'arrivals' else ''}:",
            _finding(items),
        )
        for (policy, kind, metric), items in groups.items()
    ]


def reasons(summary: dict[str, Any]) -> list[str]:
    """Return why verdicts are withheld, each reason once."""
    found = dict.fromkeys((verdict.word, verdict.reason) for _, verdict in _verdicts(summary) if verdict.reason)
    return [f"{word.capitalize()}: {reason}." for word, reason in found]


def _verdicts(summary: dict[str, Any]) -> list[tuple[int | str | None, Verdict]]:
    return [(_short(load), Verdict(**item)) for load in summary["loads"] for item in load["verdicts"]]


def _short(load: dict[str, Any]) -> int | str | None:
    """Return a load's concurrency or arrivals; None for what was recorded."""
    return load["concurrency"] if load["concurrency"] is not None else load.get("load")


def fastest_sentence(summary: dict[str, Any]) -> str:
    """Say which attainable arm was the fastest at each load: by throughput, or by TPOT where requests arrive."""
    fastest: dict[str, list[int | str | None]] = {}
    for load in summary["loads"]:
        speeds = {arm["policy"]: _speed(summary, arm) for arm in load["arms"] if not arm["unattainable"]}
        best = max(speeds.values(), default=math.nan)
        for name, speed in speeds.items():
            if speed == best:
                fastest.setdefault(name, []).append(_short(load))
    tested = [load for item in summary["loads"] if (load := _short(item)) is not None]
    parts = [
        name if loads == [None] else f"{name} at {at_loads([load for load in loads if load is not None], tested)}"
        for name, loads in fastest.items()
    ]
    by = " By mean TPOT." if summary["loop"] == "arrivals" else ""
    return f"{'; '.join(parts)}.{by} These are point values, without an interval."


def _speed(summary: dict[str, Any], arm: dict[str, Any]) -> float:
    if summary["loop"] != "arrivals":
        return float(arm["throughput_tok_s"])
    return -float((arm["tpot_mean_ms"] or {}).get("value", math.inf))


def command_line(config: dict[str, Any]) -> str:
    """Return the `avsim replay` command that asks for a config."""
    words = ["avsim", "replay", config["trace"]]
    for key, flag in (
        ("cost", "cost"), ("belief", "belief"), ("loop", "loop"), ("concurrency", "concurrency"),
        ("arrivals", "arrivals"), ("num_requests", "num-requests"), ("max_num_seqs", "max-num-seqs"),
        ("prompts", "prompts"), ("max_num_batched_tokens", "max-num-batched-tokens"),
        ("policies", "policy"), ("baselines", "baseline"), ("estimators", "estimator"), ("num_slots", "k"),
        ("lag", "lag"), ("av_overhead_ms", "av-overhead-ms"), ("av_overhead_us_per_req", "av-overhead-us-per-req"),
        ("price_per_gpu_hour", "price"), ("gpus", "gpus"), ("vocab", "vocab"), ("bootstrap", "bootstrap"),
        ("warm_refits", "warm-refits"), ("seed", "seed"),
    ):  # fmt: skip
        value = config.get(key)
        if key == "concurrency" and config.get("arrivals"):
            continue
        if value is not None and value != []:
            words += [f"--{flag}", ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    words += ["--no-chunked-prefill"] * (config.get("chunked_prefill") is False)
    return shlex.join(words + ["--what-if"] * bool(config.get("what_if")))


def _baseline_words(kind: str) -> str:
    return {"none": "plain decoding (none)", "best fixed": "the best fixed K"}.get(kind, kind)


def _finding(items: Sequence[tuple[int | str | None, Verdict]]) -> str:
    tested = [load for load, _ in items if load is not None]
    words: dict[str, list[tuple[int | str | None, Verdict]]] = {}
    chosen: dict[str, list[int | str]] = {}
    for load, verdict in items:
        words.setdefault(verdict.word, []).append((load, verdict))
        depth = verdict.against.partition(" (")[2].rstrip(")")
        if depth and load is not None:
            chosen.setdefault(depth, []).append(load)
    parts = []
    for word, found in words.items():
        loads = [load for load, _ in found if load is not None]
        where = f" at {at_loads(loads, tested)}" if loads else ""
        parts.append(f"{word}{where}{_size([verdict for _, verdict in found])}")
    text = f"{'; '.join(parts)}."
    if chosen:
        text += f" K chosen: {'; '.join(f'{name} at {at_loads(at, tested)}' for name, at in chosen.items())}."
    return text


def _size(verdicts: Sequence[Verdict]) -> str:
    word, changes = verdicts[0].word, sorted(verdict.change_pct for verdict in verdicts)
    if word == "not enough requests":
        return ""
    if len(verdicts) == 1:
        low, high = (signed_pct((bound - 1) * 100) for bound in (verdicts[0].low, verdicts[0].high))
        return f" ({signed_pct(changes[0])}, interval {low} to {high})"
    return f" ({signed_pct(changes[0])} to {signed_pct(changes[-1])})"
