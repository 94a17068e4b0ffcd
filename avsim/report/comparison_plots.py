"""Figures of a comparison of estimators on one trace; needs the extra `plot`."""

from __future__ import annotations

from typing import Any

import numpy as np

from avsim.comparison.drift import WINDOW_STEPS
from avsim.metrics.calibration import ECE_BINS
from avsim.report.comparison_wording import marked
from avsim.report.svg import BOUND, INK, SERIES, figure, figure_style, new_figure, plain_label

__all__ = ["comparison_figures"]

_MARKERS = "oDv^s>"
_RUNG_ORDER = ("chance", "features", "model", "censoring", "staleness", "belief")


def comparison_figures(result: dict[str, Any], name: str) -> str | None:
    """Return the figures of one trace as HTML, its ids starting with `name`; None if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return None
    looks = _looks(result)
    where = f"Trace {_named(result)}, {result['admission']} admission."
    with figure_style():
        parts = [_reliability(result, looks, name, where), _slots(result, looks, name, where)]
        parts.append(_over_time(result, looks, name, where))
        if result["throughput"]:
            parts.append(_throughput(result, looks, name))
        if result["explain"]:
            parts.append(_explain(result, looks, name))
        if result["drift"]:
            parts.append(_drift(result, looks, name))
    return "".join(parts)


def _named(result: dict[str, Any]) -> str:
    return f"{result['trace']}{' (SYNTHETIC)' * result['synthetic']}"


def _looks(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give the reference and the five next best that an engine can run a colour and a marker; others are not drawn."""
    able = [row for row in result["rows"][1:] if row["attainable"]]
    ranked = sorted(able, key=lambda row: row["conditional"]["log_loss"])[: len(SERIES) - 1]
    return {
        row["estimator"]: {"color": SERIES[n], "marker": _MARKERS[n], "label": plain_label(marked(row))}
        for n, row in enumerate([*result["rows"][:1], *ranked])
    }


def _drawn(result: dict[str, Any], looks: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if row["estimator"] in looks]


def _omitted(result: dict[str, Any], looks: dict[str, dict[str, Any]]) -> str:
    left = len(result["rows"]) - len(looks)
    return f" Drawn: the reference and the lowest log-losses; {left} more in the table." if left else ""


def _reliability(result: dict[str, Any], looks: dict[str, dict[str, Any]], name: str, where: str) -> str:
    rows = _drawn(result, looks)
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    drawing = new_figure(3.47 * columns, 3.4 * lines)
    panels = drawing.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, row in zip(panels, rows, strict=False):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        look = looks[row["estimator"]]
        bins = row["reliability"]["all"]
        p, rate, count = (np.array([line[key] for line in bins]) for key in ("confidence", "acceptance", "count"))
        half = 1.96 * np.sqrt(rate * (1 - rate) / np.maximum(count, 1))
        axes.errorbar(p, rate, half, fmt=f"{look['marker']}-", color=look["color"], markersize=4, linewidth=1.2)
        below = row["reliability"]["cumulative"]
        axes.plot(
            [line["confidence"] for line in below], [line["acceptance"] for line in below], color=BOUND, linewidth=1,
            linestyle="--",
        )  # fmt: skip
        axes.set_title(look["label"], loc="left")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    drawing.supxlabel("confidence (mean of bin)", fontsize=9)
    drawing.supylabel("share accepted", fontsize=9)
    caption = (
        f"{where} Solid: conditional acceptance of reached slots in {ECE_BINS} equal-mass bins, with 95 % binomial "
        "intervals (slots taken as independent, so too narrow). Dashed: survival of verified slots. On the dotted "
        f"diagonal a confidence is right; below it, it promises too much.{_omitted(result, looks)}"
    )
    return figure(drawing, f"{name}-reliability", "Reliability", caption)


def _slots(result: dict[str, Any], looks: dict[str, dict[str, Any]], name: str, where: str) -> str:
    drawing = new_figure(10.4, 3.6)
    loss_axes, bias_axes = drawing.subplots(1, 2)
    rows = _drawn(result, looks)
    base = [slot["log_loss"] for slot in rows[0]["conditional"]["slots"]]
    for row in rows:
        look = looks[row["estimator"]]
        slots = row["conditional"]["slots"]
        number = [n for n, slot in enumerate(slots) if slot["log_loss"] is not None and base[n]]
        style = {"color": look["color"], "marker": look["marker"], "markersize": 5, "label": look["label"]}
        loss_axes.plot(number, [(slots[n]["log_loss"] / base[n] - 1) * 100 for n in number], **style)
        bias = [(slots[n]["mean_confidence"] - slots[n]["acceptance"]) * 100 for n in number]
        bias_axes.plot(number, bias, **style)
    for axes, text in (
        (loss_axes, f"log-loss against {plain_label(result['reference'])}, %"),
        (bias_axes, "mean confidence − share accepted, points"),
    ):
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xlabel("slot")
        axes.set_title(text, loc="left")
        axes.set_xticks(range(0, len(base), max(1, len(base) // 10)))
    drawing.legend(*loss_axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    caption = f"{where} Conditional scores of each slot; deep slots are reached less often, so they are noisier."
    return figure(drawing, f"{name}-slots", "By position in the block", caption)


def _over_time(result: dict[str, Any], looks: dict[str, dict[str, Any]], name: str, where: str) -> str:
    rows = _drawn(result, looks)
    steps = [line["step"] for line in rows[0]["over_time"]]
    base = np.array([line["log_loss"] * line["slots"] for line in rows[0]["over_time"]])
    count = np.array([line["slots"] for line in rows[0]["over_time"]])
    drawing = new_figure(10.4, 3.6)
    axes = drawing.subplots()
    axes.axhline(0, color=INK, linewidth=0.8)
    for row in rows:
        look = looks[row["estimator"]]
        loss = np.array([line["log_loss"] * line["slots"] for line in row["over_time"]])
        axes.plot(
            np.array(steps) + result["bucket_steps"], (loss.cumsum() - base.cumsum()) / count.cumsum() * 1e3,
            color=look["color"], marker=look["marker"], markersize=4, label=look["label"],
        )  # fmt: skip
    axes.set_xlabel("steps served")
    axes.set_ylabel("millinats per slot")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    caption = (
        f"{where} Log-loss above that of {result['reference']}, averaged over all slots up to a step: what is "
        "gained early stays. All walks together; each starts anew."
    )
    return figure(drawing, f"{name}-time", "Over time", caption)


def _throughput(result: dict[str, Any], looks: dict[str, dict[str, Any]], name: str) -> str:
    rows = result["throughput"]
    loads = list(dict.fromkeys(row["load"] for row in rows))
    drawing = new_figure(10.4, 4.0)
    axes = drawing.subplots()
    axes.axhline(0, color=INK, linewidth=0.8)
    shown = {spec: look for spec, look in looks.items() if spec != result["reference"]}
    for number, (spec, look) in enumerate(shown.items()):
        shift = (number - (len(shown) - 1) / 2) * 0.12
        for n, load in enumerate(loads):
            row = next(row for row in rows if row["load"] == load and row["estimator"] == spec)
            if row["change_pct"] is None:
                continue
            low, high = row["change_pct"] - row["change_low_pct"], row["change_high_pct"] - row["change_pct"]
            axes.errorbar(
                n + shift, row["change_pct"], [[low], [high]], fmt=look["marker"], color=look["color"], capsize=3,
                markersize=6, label="_" if n else look["label"],
            )  # fmt: skip
    axes.set_xticks(range(len(loads)), [str(load) for load in loads])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("concurrent requests")
    axes.set_ylabel(f"throughput against {plain_label(result['reference'])}, %")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    caption = (
        f"SIMULATED{', WHAT IF' * result['what_if_costs']}: trace {_named(result)}, step costs {result['step_costs']}; "
        "policy adaptive, reading each estimator. Bars are 95 % intervals from resampled requests."
    )
    return figure(drawing, f"{name}-throughput", "Throughput by estimator", caption)


def _explain(result: dict[str, Any], looks: dict[str, dict[str, Any]], name: str) -> str:
    """Draw for the reference, and at each load, the fall of throughput on each rung."""
    lines = [line for line in result["explain"] if line["estimator"] == result["reference"]]
    loads = list(dict.fromkeys(line["load"] for line in lines))
    rungs = [rung for rung in _RUNG_ORDER if any(line["rung"] == rung for line in lines)]
    drawing = new_figure(10.4, 3.4)
    axes = drawing.subplots()
    axes.axhline(0, color=INK, linewidth=0.8)
    for number, load in enumerate(loads):
        mine = {line["rung"]: line for line in lines if line["load"] == load}
        shift = (number - (len(loads) - 1) / 2) * 0.14
        for n, rung in enumerate(rungs):
            line = mine[rung]
            if line["change_pct"] is None:
                continue
            low, high = line["change_pct"] - line["change_low_pct"], line["change_high_pct"] - line["change_pct"]
            axes.errorbar(
                n + shift, line["change_pct"], [[low], [high]], fmt=_MARKERS[number % 6], capsize=3, markersize=6,
                color=SERIES[number % len(SERIES)], label="_" if n else f"{load} concurrent",
            )  # fmt: skip
    axes.set_xticks(range(len(rungs)), rungs)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("change of throughput, %")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    caption = (
        f"SIMULATED{', WHAT IF' * result['what_if_costs']}: trace {_named(result)}, step costs "
        f"{result['step_costs']}. From the oracle (left) to adaptive "
        f"reading {result['reference']}: what each handicap costs against the arm before. "
        f"{'; '.join(_meanings(lines))}."
    )
    return figure(drawing, f"{name}-explain", "Where the distance to the oracle lies", caption)


def _meanings(lines: list[dict[str, Any]]) -> list[str]:
    found = {line["rung"]: line["what"] for line in lines if line["rung"] in _RUNG_ORDER}
    return [f"{rung}: {text}" for rung, text in found.items()]


def _drift(result: dict[str, Any], looks: dict[str, dict[str, Any]], name: str) -> str:
    changes = list(dict.fromkeys((line["before"], line["after"], line["scenario"]) for line in result["drift"]))
    columns = min(3, len(changes))
    lines = -(-len(changes) // columns)
    drawing = new_figure(3.47 * columns, 2.6 * lines + 0.6)
    panels = drawing.subplots(lines, columns, sharex=True, squeeze=False).ravel()
    for axes, (before, after, scenario) in zip(panels, changes, strict=False):
        axes.axhline(0, color=INK, linewidth=0.8)
        for line in result["drift"]:
            if (line["before"], line["after"], line["scenario"]) != (before, after, scenario):
                continue
            look = looks.get(line["estimator"])
            if look is None:
                continue
            axes.plot(
                [point["step"] for point in line["curve"]], [point["excess_pct"] for point in line["curve"]],
                color=look["color"], linewidth=1.2, label=look["label"],
            )  # fmt: skip
        axes.set_title(plain_label(f"{scenario}: to {after}"), loc="left")
    for axes in panels[len(changes) :]:
        axes.set_visible(False)
    drawing.supxlabel("steps", fontsize=9)
    drawing.supylabel("excess log-loss, %", fontsize=9)
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    caption = (
        f"Trace {_named(result)}. Log-loss above that of a twin that knows each kind of traffic already, in windows "
        f"of {WINDOW_STEPS} steps.{_omitted(result, looks)}"
    )
    return figure(drawing, f"{name}-drift", "When traffic changes", caption)
