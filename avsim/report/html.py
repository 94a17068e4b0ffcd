"""The report of a run as one HTML file that needs nothing else: no network, no scripts, no fonts of its own."""

from __future__ import annotations

from html import escape
from typing import Any

import polars as pl

from avsim.report import arm_tables
from avsim.report.page import definitions, page, paragraph, section
from avsim.report.plots import figures
from avsim.report.wording import command_line, fastest_sentence, findings, load_name, marks, reasons

__all__ = ["html_report"]

_NO_PLOTS = "Plots are left out, because matplotlib is missing: pip install 'avsim[plot]'"
_CLOSED = (
    "Warm throughput counts steps at full concurrency, after the estimators' warm-up; from a cold start: the same run "
    "without the warm-up; the whole run includes its ramp and drain. TPOT: time per output token over finished "
    "requests. Step regret: how much the oracle would have raised emitted tokens per ms step by step, in the states "
    "that this arm reached; only for arms that draft all K."
)
_REGRET = (
    "Regret to oracle: how much lower throughput is than the oracle's. The oracle always drafts, so an arm that does "
    "not draft can beat it (negative regret)."
)
_ACCEPTANCE = (
    "AL, acceptance length: 1 + accepted slots per request and step. Emitted tokens can be fewer, as an output ends "
    "inside a block. Acceptance is given by its denominator: per drafted slot, per verified slot, and conditional: of "
    "the slots verified after an accepted prefix, the share accepted. A policy that picks slots raises the last two "
    "without a better drafter. Wasted slots were verified and not accepted."
)
_CONFIDENCE = (
    "Each confidence is scored against the verdict of every slot reached in the run, also where it was trimmed, if the "
    "trace knows it. The slots scored differ between loads and between arms that take different paths, so their "
    "log-losses and Brier scores are not paired. Lower is better, except for AUC (0.5 is chance)."
)


def html_report(summary: dict[str, Any], manifest: dict[str, Any], calibration: pl.DataFrame | None) -> str:
    """Return the report of a run; equal inputs give the same bytes (for one version of matplotlib).

    Args:
        summary: what `closed_summary` or `open_summary` returned.
        manifest: what `make_manifest` returned.
        calibration: reliability bins with columns policy, concurrency, slot (null for all), confidence, acceptance
            and count; None if the run has none.
    """
    plots = figures(summary, calibration)
    parts = [
        ("verdict", "Verdict", _verdict(summary)),
        ("throughput", "Throughput", arm_tables.throughput_table(summary) + _overhead(summary)),
    ]
    if plots != "":
        parts.append(("plots", "Plots", paragraph(_NO_PLOTS) if plots is None else plots))
    closed = paragraph(_CLOSED, "small") if summary["loop"] == "closed" else ""
    speed = arm_tables.speed_table(summary) + closed + paragraph(_REGRET, "small")
    work = arm_tables.acceptance_table(summary) + paragraph(_ACCEPTANCE, "small")
    parts.append(("arms", "Each arm", speed + work))
    quality = arm_tables.confidence_table(summary)
    if quality:
        quality += paragraph(_CONFIDENCE, "small") + arm_tables.fitted_table(summary)
        parts.append(("confidence", "Confidences", quality))
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in summary["notes"])
    parts.append(("notes", "Notes", f"<ul>\n{notes}</ul>\n"))
    parts.append(("provenance", "Provenance", _provenance(summary, manifest)))
    title = f"avsim: {summary['trace']['name']} × {summary['truth']['name']}"
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in parts)
    return page(title, _head(summary, links) + "".join(section(*part) for part in parts))


def _head(summary: dict[str, Any], links: str) -> str:
    found = marks(summary)
    badges = ['<span class="badge">SIMULATED</span>']
    badges += [f'<span class="badge warn">{escape(mark)}</span>' for mark in dict.fromkeys(mark for mark, _ in found)]
    warnings = "".join(paragraph(text, "warning") for _, text in found)
    return (
        f"<header>\n<div>{''.join(badges)}</div>\n<h1>{escape(summary['headline'])}</h1>\n"
        f"{warnings}<nav>{links}</nav>\n</header>\n"
    )


def _verdict(summary: dict[str, Any]) -> str:
    loads = ", ".join(load_name(load) for load in summary["loads"])
    if summary["loop"] == "closed":
        where = f"{loads} concurrent requests. Nothing is claimed between or beyond these loads."
    else:
        where = f"requests in flight {loads}. Nothing is claimed for other loads."
    text = f"Simulated, not measured: trace {summary['trace']['name']}, cost table {summary['truth']['name']}; {where}"
    found = findings(summary)
    parts = [paragraph(text), *(paragraph(text, "finding", lead) for lead, text in found)]
    parts.append(paragraph(fastest_sentence(summary), "finding", "Fastest attainable arm of this run:"))
    if not found:
        return "".join(parts) + paragraph("No verdict: the run has no judged policy with a baseline (none or fixed).")
    parts += [paragraph(reason) for reason in reasons(summary)]
    parts.append(arm_tables.verdict_table(summary))
    if not any(
        verdict["against"].startswith("best fixed") for load in summary["loads"] for verdict in load["verdicts"]
    ):
        return "".join(parts)
    halves = sorted({load["num_sources_judged_half"] for load in summary["loads"]})
    sources = sorted({load["num_sources"] for load in summary["loads"]})
    text = (
        f"Distinct source requests: {'–'.join(map(str, sources))} against none, {'–'.join(map(str, halves))} against "
        "the best fixed K, which is chosen on the other half of the requests. That change therefore need not equal the "
        "ratio of two columns of the throughput table, nor is the K chosen always the best one there."
    )
    return "".join(parts) + paragraph(text, "small")


def _overhead(summary: dict[str, Any]) -> str:
    charged = summary["av_overhead_ms"]
    if not charged:
        return ""
    return paragraph(f"The verdicts charge {charged} ms per step for AV's own work; this table does not.", "small")


def _provenance(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    parts = ["<h3>Trace</h3>\n", definitions((_title(key), value) for key, value in summary["trace"].items())]
    for key, title in (("truth", "Cost table: the clock"), ("belief", "Cost table that the policies read")):
        if summary.get(key):
            parts += [f"<h3>{title}</h3>\n", definitions((_title(k), v) for k, v in summary[key].items())]
    config = manifest.get("config", {})
    parts += ["<h3>Run</h3>\n", definitions((_title(key), _value(value)) for key, value in config.items())]
    parts += ["<h3>Content hashes</h3>\n", definitions(manifest.get("inputs", {}).items())]
    parts += ["<h3>Versions</h3>\n", definitions((manifest.get("versions", {}) | _plot_version()).items())]
    if manifest.get("command") == "replay" and config:
        parts += [
            "<h3>Repeat it</h3>\n",
            paragraph("The same inputs, checked by their hashes; or the same settings on whatever the paths hold now:"),
            f"<pre>avsim replay --manifest …/manifest.json\n{escape(command_line(config))}</pre>\n",
        ]
    return "".join(parts)


def _plot_version() -> dict[str, str]:
    try:
        import matplotlib
    except ImportError:
        return {}
    return {"matplotlib": str(matplotlib.__version__)}


def _title(key: str) -> str:
    return key.replace("_", " ")


def _value(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
