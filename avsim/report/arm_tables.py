"""Tables of the HTML report: verdicts, and what each arm and its confidences did."""

from __future__ import annotations

from typing import Any

from avsim.metrics.calibration import ECE_BINS
from avsim.metrics.verdict import LOWER_IS_BETTER, Metric, Verdict
from avsim.report.console import margin_text
from avsim.report.page import MISSING, chip, table, td, th
from avsim.report.serving import Rows
from avsim.report.wording import baseline_kind, bounds, load_name, loads_head, signed_pct

__all__ = [
    "acceptance_table",
    "confidence_table",
    "fitted_table",
    "rows_table",
    "speed_table",
    "throughput_table",
    "verdict_table",
]

_WORDS = {
    "gain": ("▲ gain", "gain"),
    "loss": ("▼ loss", "loss"),
    "gain withheld": ("△ gain withheld", "withheld"),
    "not distinguishable": ("○ not distinguishable", "none"),
    "not enough requests": ("? not enough requests", "none"),
}
_BOUND_NOTE = " * reads the verdict, so no engine can run it; it is never called the best."
_ARRIVING = "It is that of the arrivals, unless the engine is saturated."
_MOST_VALUES = 24


def _number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return MISSING if value is None else f"{value:,.{digits}f}{unit}".replace("-", "−")


def _share(value: float | None) -> str:
    return _number(None if value is None else value * 100, 1, " %")


def _arm_name(arm: dict[str, Any]) -> str:
    return arm["policy"] + "*" * bool(arm["unattainable"])


def verdict_table(summary: dict[str, Any], metric: Metric = "throughput") -> str:
    """Return a row group per judged policy, a row per load and a column group per baseline."""
    every = ((load, Verdict(**item)) for load in summary["loads"] for item in load["verdicts"])
    found = [(load, verdict) for load, verdict in every if verdict.metric == metric]
    kinds = list(dict.fromkeys(baseline_kind(verdict.against) for _, verdict in found))
    # With arrivals of their own, overhead does more than lengthen steps, and nothing is judged in hindsight.
    brief = summary["loop"] == "arrivals"
    width = 1
    top, second = th(loads_head(summary), "left", rowspan=2), ""
    for kind in kinds:
        heads = _verdict_heads(kind == "best fixed", brief)
        width += len(heads)
        top += th(f"against {kind}{' K' * (kind == 'best fixed')}", "span edge", colspan=len(heads))
        second += "".join(th(name, f"edge {cls}".strip() if not n else cls) for n, (name, cls) in enumerate(heads))
    names, groups = bounds(summary), []
    for policy in dict.fromkeys(verdict.policy for _, verdict in found):
        rows = [th(policy + "*" * (policy in names), scope="rowgroup", colspan=width)]
        for load in summary["loads"]:
            mine = {baseline_kind(v.against): v for other, v in found if other is load and v.policy == policy}
            if not mine:
                continue
            cells = (_verdict_cells(mine.get(kind), kind == "best fixed", brief) for kind in kinds)
            rows.append(th(load_name(load), scope="row") + "".join(cells))
        groups.append(rows)
    caption = f"Change of {metric}, simulated. "
    if brief:
        caption += "A time that goes down is a gain." if metric in LOWER_IS_BETTER else _ARRIVING
    else:
        caption += (
            "Break-even: overhead of AV, per step, that would cost the gain. "
            "In hindsight: against the K that turned out best on all requests, which nobody knows beforehand."
        )
    return table(caption + _BOUND_NOTE * bool(names & {verdict.policy for _, verdict in found}), [top, second], groups)


def _verdict_heads(chosen: bool, brief: bool) -> list[tuple[str, str]]:
    heads = [("K", "left")] * chosen + [("change", ""), ("95\u00a0%\u00a0interval", "")]
    if not brief:
        heads += [("in hindsight", "")] * chosen + [("break\u2011even, ms", "")]
    return [*heads, ("verdict", "left")]


def _verdict_cells(verdict: Verdict | None, chosen: bool, brief: bool) -> str:
    if verdict is None:
        return td(MISSING, "edge") + td("") * (len(_verdict_heads(chosen, brief)) - 1)
    low, high = ((bound - 1) * 100 for bound in (verdict.low, verdict.high))
    hindsight = verdict.hindsight_ratio
    text, cls = _WORDS.get(verdict.word, (verdict.word, "none"))
    depth = td(verdict.against.partition(" (")[2].removeprefix("fixed:").rstrip(")"), "edge left") if chosen else ""
    cells = depth + td(signed_pct(verdict.change_pct), "" if chosen else "edge")
    cells += td(f"{signed_pct(low, '')} … {signed_pct(high)}")
    if not brief:
        cells += td(MISSING if hindsight is None else signed_pct((hindsight - 1) * 100)) if chosen else ""
        cells += td(margin_text(verdict.break_even_overhead_ms) or MISSING)
    return cells + chip(text, cls)


def throughput_table(summary: dict[str, Any]) -> str:
    """Return throughput by arm and load; the best attainable arm of each load is bold."""
    loads = summary["loads"]
    best = [
        None
        if summary["loop"] == "arrivals" and not load["saturated"]
        else max((arm["throughput_tok_s"] for arm in load["arms"] if not arm["unattainable"]), default=None)
        for load in loads
    ]
    rows = []
    for number, arm in enumerate(loads[0]["arms"]):
        cells = th(_arm_name(arm), scope="row")
        for load, most in zip(loads, best, strict=True):
            rate = load["arms"][number]["throughput_tok_s"]
            cells += td(_rate(rate), "best" * (rate == most and not arm["unattainable"]))
        rows.append(cells)
    heads = [th("arm", "left", rowspan=2) + th(loads_head(summary), "span", colspan=len(loads))]
    heads.append("".join(th(load_name(load)) for load in loads))
    bold = f"{_ARRIVING} Bold: the best of a saturated load." if summary["loop"] == "arrivals" else "Bold: the best."
    return table(f"Throughput, tokens/s, simulated. {bold}{_BOUND_NOTE}", heads, [rows])


def _rate(value: float | None) -> str:
    return _number(value, 0 if value is None or value >= 100 else 1)


def speed_table(summary: dict[str, Any]) -> str:
    """Return throughput warm, cold and over the whole run, TPOT and regret, per load and arm."""
    columns = [
        ("tok/s", lambda arm: _rate(arm["throughput_tok_s"])),
        ("tok/s from cold start", lambda arm: _rate(arm.get("throughput_cold_start_tok_s"))),
        ("tok/s whole run", lambda arm: _rate(arm.get("throughput_whole_run_tok_s"))),
        ("TPOT p50, ms", lambda arm: _number((arm.get("tpot_ms") or {}).get("p50"))),
        ("p95", lambda arm: _number((arm.get("tpot_ms") or {}).get("p95"))),
        ("p99", lambda arm: _number((arm.get("tpot_ms") or {}).get("p99"))),
        ("step, ms", lambda arm: _number(arm.get("step_ms"))),
        ("regret to oracle", lambda arm: _number(arm.get("throughput_regret_to_oracle_pct"), 1, " %")),
        ("step regret", lambda arm: _number(arm.get("step_regret_pct"), 1, " %")),
    ]
    return _by_arm(summary, "Speed and regret, simulated", columns)


def acceptance_table(summary: dict[str, Any]) -> str:
    """Return acceptance length, acceptance by each denominator, and verified and wasted slots, per load and arm."""
    columns = [
        ("AL", lambda arm: _number(arm.get("acceptance_length"), 3)),
        ("emitted per request-step", lambda arm: _number(arm.get("emitted_tokens_per_request_step"), 3)),
        ("accepted per drafted", lambda arm: _share(arm["acceptance"].get("per_drafted"))),
        ("accepted per verified", lambda arm: _share(arm["acceptance"].get("per_verified"))),
        ("conditional, slot 0, 1, …", _conditional),
        ("verified share", lambda arm: _share(arm.get("verified_share"))),
        ("wasted slots", lambda arm: _number(arm.get("wasted_slots"), 0)),
        ("wasted per step", _wasted_per_step),
    ]
    return _by_arm(summary, "Acceptance and work, simulated", columns)


def _conditional(arm: dict[str, Any]) -> str:
    values = arm["acceptance"].get("conditional") or []
    return " ".join(MISSING if value is None else f"{value:.2f}" for value in values) or MISSING


def _wasted_per_step(arm: dict[str, Any]) -> str:
    steps = arm.get("steps_at_full_concurrency")
    return _number(arm["wasted_slots"] / steps, 1) if steps and arm.get("wasted_slots") is not None else MISSING


def _by_arm(summary: dict[str, Any], caption: str, columns: list[tuple[str, Any]]) -> str:
    arms = [arm for load in summary["loads"] for arm in load["arms"]]
    shown = [(name, text) for name, text in columns if any(text(arm) != MISSING for arm in arms)]
    head = th("arm", "left") + "".join(th(name) for name, _ in shown)
    groups = []
    for load in summary["loads"]:
        rows = [th(f"{loads_head(summary)}: {load_name(load)}", scope="rowgroup", colspan=len(shown) + 1)]
        for arm in load["arms"]:
            cells = th(_arm_name(arm), scope="row") + "".join(td(text(arm)) for _, text in shown)
            rows.append(f'<tr class="judged">{cells}</tr>' if arm["judged"] else cells)
        groups.append(rows)
    return table(caption, [head], groups)


def rows_table(summary: dict[str, Any], caption: str, rows: Rows) -> str:
    """Return rows by load as a table; empty if there are none."""
    heads, loads = rows
    if not loads:
        return ""
    head = "".join(th(name, "" if number else "left") for number, name in enumerate(heads))
    groups = []
    for name, lines in loads:
        group = [th(f"{loads_head(summary)}: {name}", scope="rowgroup", colspan=len(heads))]
        group += [th(line[0], scope="row") + "".join(td(cell) for cell in line[1:]) for line in lines]
        groups.append(group)
    return table(caption, [head], groups)


def confidence_table(summary: dict[str, Any]) -> str:
    """Return how good each arm's confidences were, pooled and per slot; empty if no arm reads them."""
    heads = ("slots scored", "mean confidence", "accepted", "log-loss", "Brier", f"ECE ({ECE_BINS} bins)", "AUC")
    groups = []
    for load, arm in _readers(summary):
        title = f"{_arm_name(arm)} ({arm['estimator']}), {loads_head(summary)}: {load_name(load)}"
        rows = [th(title, scope="rowgroup", colspan=len(heads) + 1)]
        for name, score in _score_lines(arm["confidence"]):
            cells = th(name, scope="row") + td(_number(score.get("count"), 0))
            cells += "".join(td(_share(score.get(key))) for key in ("mean_confidence", "acceptance"))
            cells += "".join(td(_number(score.get(key), 4)) for key in ("log_loss", "brier", "ece"))
            rows.append(cells + td(_number(score.get("auc"), 3)))
        groups.append(rows)
    if not groups:
        return ""
    caption = f"Confidence quality. ECE: debiased, {ECE_BINS} equal-mass bins. Conditional acceptance, reached slots."
    return table(caption, [th("slot", "left") + "".join(th(name) for name in heads)], groups)


def _score_lines(confidence: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("all", confidence), *((str(slot), score) for slot, score in enumerate(confidence.get("slots", [])))]


def _readers(summary: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(load, arm) for load in summary["loads"] for arm in load["arms"] if arm.get("confidence")]


def fitted_table(summary: dict[str, Any]) -> str:
    """Return refits and fitted parameters at the end of each run; empty if no arm reads confidences."""
    rows = []
    for load, arm in _readers(summary):
        state = arm["confidence"].get("state") or {}
        params = "; ".join(f"{name} {_values(value)}" for name, value in state.items())
        cells = th(load_name(load), scope="row") + td(_arm_name(arm), "left") + td(str(arm["estimator"]), "left")
        rows.append(cells + td(_number(arm["confidence"].get("refits"), 0)) + td(params or MISSING, "left"))
    if not rows:
        return ""
    names = ((loads_head(summary), "left"), ("arm", "left"), ("estimator", "left"), ("refits", ""))
    head = "".join(th(name, cls) for name, cls in (*names, ("fitted at the end of the run", "left")))
    return table("Estimators: refits (warm-up included) and what they had fitted", [head], [rows])


def _values(param: dict[str, Any]) -> str:
    values = param.get("values", [])
    if len(values) > _MOST_VALUES:
        return f"[{' × '.join(map(str, param.get('shape', [])))} values]"
    return " ".join(_number(value, 3) if isinstance(value, float) else str(value) for value in values)
