"""Figures of the HTML report; needs the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from avsim.metrics.calibration import ECE_BINS
from avsim.metrics.verdict import LOWER_IS_BETTER, Verdict
from avsim.report.svg import (
    BACKGROUND,
    BOUND,
    FIXED,
    INK,
    MUTED,
    SERIES,
    figure,
    figure_style,
    new_figure,
    plain_label,
)
from avsim.report.wording import baseline_kind, bounds, load_name, loads_head

__all__ = ["figures"]

_MARKERS = "oDv^<>p"
_BOUND_MARKERS = "XP*dh"
_DECIDED = ("gain", "loss")
_MOST_PANELS = 12


def figures(summary: dict[str, Any], calibration: pl.DataFrame | None) -> str | None:
    """Return the figures that a summary allows, as HTML; None if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return None
    where = (
        f"Simulated, not measured: trace {summary['trace']['name']}, cost table {summary['truth']['name']}"
        f"{' (WHAT IF)' if summary['what_if'] else ''}{' (SYNTHETIC)' if summary['synthetic'] else ''}."
    )
    with figure_style():
        parts = [_interactivity(summary, where), _gains(summary, where)]
        if calibration is not None and len(calibration):
            parts.append(_reliability(summary, calibration, where))
    return "".join(parts)


def _looks(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each arm its colour, marker and line, the same in every figure; judged arms stand out, bounds are dashed."""
    looks: dict[str, dict[str, Any]] = {}
    bright = dashed = 0
    for arm in summary["loads"][0]["arms"]:
        name, depth = arm["policy"], arm["policy"].partition("fixed:")[2]
        if depth.isdigit() and not arm["judged"]:
            look = {"color": FIXED, "marker": f"${depth}$", "markersize": 6, "linewidth": 0.7, "zorder": 2}
        elif arm["unattainable"]:
            marker = _BOUND_MARKERS[dashed % len(_BOUND_MARKERS)]
            look = {"color": BOUND, "marker": marker, "markersize": 6, "linestyle": "--", "zorder": 3}
            dashed += 1
        elif name == "none":
            look = {"color": INK, "marker": "s", "markersize": 4.5, "zorder": 3}
        else:
            marker = _MARKERS[bright % len(_MARKERS)]
            look = {"color": SERIES[bright % len(SERIES)], "marker": marker, "markersize": 6, "zorder": 4}
            look["linewidth"] = 2
            bright += 1
        looks[name] = look | {"label": plain_label(name + "*" * bool(arm["unattainable"]))}
    return looks


def _interactivity(summary: dict[str, Any], where: str) -> str:
    loads = [load for load in summary["loads"] if any(arm.get("tpot_ms") for arm in load["arms"])]
    if not loads:
        return ""
    arrive = summary["loop"] == "arrivals"
    drawing = new_figure(10.4, 5.6)
    axes = drawing.subplots()
    lines: dict[str, list[dict[str, Any]]] = {}
    for load in loads if arrive else sorted(loads, key=lambda load: load["concurrency"] or 0):
        for arm in load["arms"]:
            if arm.get("tpot_ms"):
                lines.setdefault(arm["policy"], []).append(arm)
    looks = _looks(summary)
    for name, arms in lines.items():
        points = [(1000 / arm["tpot_ms"]["p50"], arm["throughput_tok_s"]) for arm in arms]
        if looks[name]["marker"].startswith("$"):
            # Digits are unreadable on a bundle of lines without a disc below them.
            disc = {"marker": "o", "markersize": 8.5, "markeredgewidth": 0, "zorder": looks[name]["zorder"] - 0.5}
            axes.plot(*zip(*points, strict=True), color=BACKGROUND, linestyle="none", **disc)
        look = looks[name] | ({"linestyle": "none"} if arrive and not _same_kind(loads) else {})
        axes.plot(*zip(*points, strict=True), **look)
        if not looks[name]["marker"].startswith("$"):
            for point, arm in zip(points, arms, strict=True):
                _draw_interval(axes, point, arm, looks[name])
    axes.set_xscale("log")
    axes.grid(visible=False)
    axes.set_yscale("log")
    _plain_log_ticks(axes)
    if arrive:
        _name_loads(axes, loads)
    else:
        _load_guides(axes, [load["concurrency"] for load in loads if load["concurrency"]])
    axes.set_xlabel("interactivity, tokens/s per user (1000 / TPOT p50 in ms)")
    axes.set_ylabel("throughput, tokens/s")
    drawing.legend(loc="outside right upper")
    places = (
        "the points of one load are named by its arrivals"
        if arrive
        else "along a thin grey line lie the points of one load (its number of concurrent requests)"
    )
    caption = (
        f"{where} One line per arm across loads; {places}. Up and to the right is better. Digits are the K of fixed:K; "
        "dashed lines with * are arms that read the verdict, which no engine can run. Crosses are 95 % intervals of "
        "throughput and of the median TPOT (fixed:K without, to keep the figure readable; the differences between arms "
        "are paired, so intervals that overlap may still differ). Both axes are logarithmic."
    )
    return figure(drawing, "interactivity", "Throughput against interactivity", caption)


def _same_kind(loads: Sequence[dict[str, Any]]) -> bool:
    """Whether loads differ in their rate only, so that a line between them means something."""
    return len({load_name(load).partition(":")[0] for load in loads}) == 1


def _draw_interval(axes: Any, point: tuple[float, float], arm: dict[str, Any], look: dict[str, Any]) -> None:
    across, up = arm.get("interactivity_tok_s"), arm.get("throughput_interval_tok_s")
    if not across or not up:
        return
    style = {"color": look["color"], "linewidth": 1.1, "alpha": 0.75, "zorder": look["zorder"] - 0.2}
    # The point is of finished requests alone, so intervals are taken relative to their own middle.
    axes.plot([point[0] * across[end] / across["value"] for end in ("low", "high")], [point[1]] * 2, **style)
    axes.plot([point[0]] * 2, [point[1] * up[end] / up["value"] for end in ("low", "high")], **style)


def _name_loads(axes: Any, loads: Sequence[dict[str, Any]]) -> None:
    """Write each load's name beside its rightmost point."""
    for load in loads:
        points = [(1000 / arm["tpot_ms"]["p50"], arm["throughput_tok_s"]) for arm in load["arms"] if arm.get("tpot_ms")]
        text = load_name(load) + " (saturated)" * bool(load.get("saturated"))
        axes.annotate(
            plain_label(text), max(points), (7, 5), textcoords="offset points", color=MUTED, fontsize=8, va="bottom",
            annotation_clip=False,
        )  # fmt: skip


def _load_guides(axes: Any, loads: Sequence[int]) -> None:
    """Draw throughput = load × interactivity for each load, labelled at the right or upper edge."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for load in loads:
        end = min(right, top / load)
        if end <= left:
            continue
        axes.plot([left, end], [left * load, end * load], color=MUTED, linewidth=0.6, alpha=0.6, zorder=1)
        at_edge = {"ha": "left", "va": "center"} if end == right else {"ha": "center", "va": "bottom"}
        offset = (4, 0) if end == right else (0, 2)
        text = f"{load} concurrent" if load == max(loads) else f"{load}"
        axes.annotate(
            text, (end, end * load), offset, textcoords="offset points", color=MUTED, fontsize=8,
            annotation_clip=False, **at_edge,
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def _plain_log_ticks(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def _gains(summary: dict[str, Any], where: str) -> str:
    every = [(n, Verdict(**item)) for n, load in enumerate(summary["loads"]) for item in load["verdicts"]]
    if not every:
        return ""
    metric = every[0][1].metric
    found = [(n, verdict) for n, verdict in every if verdict.metric == metric]
    kinds = list(dict.fromkeys(baseline_kind(verdict.against) for _, verdict in found))
    names = list(dict.fromkeys(verdict.policy for _, verdict in found))
    looks = _looks(summary)
    drawing = new_figure(10.4, 4.2)
    panels = drawing.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        axes.axhline(0, color=INK, linewidth=1)
        for number, name in enumerate(names):
            mine = [(n, v) for n, v in found if v.policy == name and baseline_kind(v.against) == kind]
            _draw_gains(axes, mine, (number - (len(names) - 1) / 2) * min(0.16, 0.7 / len(names)), looks[name])
        axes.set_title(f"against {plain_label(kind)}{' K' if kind == 'best fixed' else ''}", loc="left")
        labels = [load_name(load) for load in summary["loads"]]
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(loads_head(summary))
    panels[0].set_ylabel(f"change of {metric}, %")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    caption = (
        f"{where}{' Down is better.' * (metric in LOWER_IS_BETTER)} Bars are 95 % intervals (normal on the log scale, "
        "from the spread over resampled source requests). Filled markers: the verdict is gain or loss; open markers: "
        "not distinguishable, not enough requests, or gain withheld because AV's own overhead could erase it."
    )
    return figure(drawing, "gains", f"Change of {metric} by load", caption)


def _draw_gains(axes: Any, found: Sequence[tuple[int, Verdict]], shift: float, look: dict[str, Any]) -> None:
    for number, (n, verdict) in enumerate(found):
        change, low, high = ((ratio - 1) * 100 for ratio in (verdict.ratio, verdict.low, verdict.high))
        face = look["color"] if verdict.word in _DECIDED else BACKGROUND
        axes.errorbar(
            n + shift, change, [[max(0.0, change - low)], [max(0.0, high - change)]], fmt=look["marker"],
            color=look["color"], markerfacecolor=face, markeredgewidth=1.5, markersize=7, capsize=4, elinewidth=1.5,
            label="_" if number else look["label"],
        )  # fmt: skip


def _reliability(summary: dict[str, Any], calibration: pl.DataFrame, where: str) -> str:
    looks = _looks(summary)
    scored = calibration["policy"].unique(maintain_order=True).to_list()
    names = [name for name in scored if name in looks and name not in bounds(summary)]
    if not names:
        return ""
    found = calibration.filter(pl.col("policy").is_in(names))
    if "load" not in found.columns:
        found = found.with_columns(load=pl.col("concurrency").cast(pl.String))
    tested = found["load"].unique(maintain_order=True).to_list()
    loads = tested[:_MOST_PANELS]
    columns = min(3, len(loads))
    lines = -(-len(loads) // columns)
    drawing = new_figure(3.47 * columns, 3.5 * lines + 0.3 * (1 + len(names) // 3))
    drawing.get_layout_engine().set(w_pad=0.12)
    panels = drawing.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, load in zip(panels, loads, strict=False):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for name in names:
            mine = found.filter((pl.col("policy") == name) & (pl.col("load") == load))
            if len(names) == 1:
                slots = mine.filter(pl.col("slot").is_not_null())
                axes.scatter(
                    slots["confidence"], slots["acceptance"], s=_area(slots), color=FIXED, linewidths=0, alpha=0.6,
                    zorder=2, label="each slot",
                )  # fmt: skip
            _draw_pooled(axes, mine.filter(pl.col("slot").is_null()), looks[name])
        closed = summary["loop"] == "closed"
        axes.set_title(f"{load} concurrent requests" if closed else plain_label(load), loc="left")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
    for axes in panels[len(loads) :]:
        axes.set_visible(False)
    drawing.supxlabel("confidence (mean of bin)", fontsize=9)
    drawing.supylabel("share accepted", fontsize=9)
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=columns)
    each = " Grey: the same for each slot, area by count." if len(names) == 1 else ""
    omitted = " Bounds are left out." if len(names) < len(scored) else ""
    if len(loads) < len(tested):
        omitted += f" Only the first {len(loads)} of {len(tested)} loads are drawn."
    caption = (
        f"{where} Conditional acceptance of every reached slot, in {ECE_BINS} equal-mass bins pooled over slots, with "
        f"95 % binomial intervals (slots taken as independent, so too narrow).{each} On the dotted diagonal a "
        f"confidence is right; below it, it promises too much.{omitted}"
    )
    return figure(drawing, "reliability", "Reliability of confidences", caption)


def _area(part: pl.DataFrame) -> Any:
    count = part["count"].to_numpy()
    return 4 + 46 * count / count.max(initial=1)


def _draw_pooled(axes: Any, bins: pl.DataFrame, look: dict[str, Any]) -> None:
    p, rate, count = (bins[column].to_numpy() for column in ("confidence", "acceptance", "count"))
    half = 1.96 * np.sqrt(rate * (1 - rate) / np.maximum(count, 1))
    axes.errorbar(
        p, rate, half, fmt=f"{look['marker']}-", color=look["color"], markersize=4, elinewidth=1, linewidth=1.2,
        label=look["label"],
    )  # fmt: skip
