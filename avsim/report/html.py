"""The report of a run as one HTML file that needs nothing else: no network, no scripts, no fonts of its own."""

from __future__ import annotations

from html import escape
from typing import Any

import polars as pl

from avsim.report import arm_tables
from avsim.report.page import definitions, page, paragraph, section
from avsim.report.plots import figures
from avsim.report.serving import (
    belief_sentences,
    cliff_sentences,
    economy_rows,
    latency_rows,
    queue_rows,
    saving_rows,
)
from avsim.report.wording import command_line, fastest_sentence, findings, load_name, marks, reasons

__all__ = ["html_report"]

_NO_PLOTS = "Plots are left out, because matplotlib is missing: pip install 'avsim[plot]'"
_CLOSED = (
    "Warm throughput counts steps at full concurrency, after the estimators' warm-up; from a cold start: the same run "
    "without the warm-up; the whole run includes its ramp and drain. TPOT: time per output token over finished "
    "requests. Step regret: how much the oracle would have raised emitted tokens per ms step by step, in the states "
    "that this arm reached; only for arms that draft all K."
)
_SERVING = (
    "TPOT: time per output token after the first, over requests; its mean with a 95 % interval. TTFT: time from "
    "arrival to the first token. ITL: time between emissions of a request, each of which may hold several tokens. "
    "Percentiles, queues and steps are those of the main run, without intervals."
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
        summary: what `served_summary` or `open_summary` returned.
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
    serving = arm_tables.rows_table(summary, "Times of requests, simulated", latency_rows(summary))
    serving += arm_tables.rows_table(summary, "Queues and steps, simulated", queue_rows(summary))
    if serving:
        parts.append(("serving", "Serving", serving + paragraph(_SERVING, "small")))
    closed = paragraph(_CLOSED, "small") if summary["loop"] == "closed" else ""
    speed = arm_tables.speed_table(summary) + closed + paragraph(_REGRET, "small")
    work = arm_tables.acceptance_table(summary) + paragraph(_ACCEPTANCE, "small")
    parts.append(("arms", "Each arm", speed + work))
    spent = arm_tables.rows_table(summary, "What an output token takes, simulated", economy_rows(summary))
    if spent:
        change = "Change of what an output token takes, with 95 % intervals, simulated"
        spent += arm_tables.rows_table(summary, change, saving_rows(summary))
        parts.append(("savings", "Savings", spent + paragraph(_savings(summary), "small")))
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
    elif summary["loop"] == "arrivals":
        where = f"arrivals {loads}. Nothing is claimed for other loads."
    else:
        where = f"requests in flight {loads}. Nothing is claimed for other loads."
    text = f"Simulated, not measured: trace {summary['trace']['name']}, cost table {summary['truth']['name']}; {where}"
    found = findings(summary)
    parts = [paragraph(text), *(paragraph(text, "finding", lead) for lead, text in found)]
    parts.append(paragraph(fastest_sentence(summary), "finding", "Fastest attainable arm of this run:"))
    if not found:
        return "".join(parts) + paragraph("No verdict: the run has no judged policy with a baseline (none or fixed).")
    parts += [paragraph(reason) for reason in reasons(summary)]
    told = dict.fromkeys(verdict["metric"] for load in summary["loads"] for verdict in load["verdicts"])
    parts += [arm_tables.verdict_table(summary, metric) for metric in told]
    parts += [paragraph(sentence) for sentence in [*belief_sentences(summary), *cliff_sentences(summary)]]
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
    charged = summary["av_overhead_ms"], summary.get("av_overhead_us_per_req")
    if summary["loop"] != "open" or not any(charged):
        return ""
    return paragraph("The verdicts charge AV's own overhead; this table does not.", "small")


def _savings(summary: dict[str, Any]) -> str:
    engine = summary.get("engine") or {}
    text = "Per output token, over the steps that throughput counts. Target rows: prompt and bonus tokens, and slots. "
    if engine.get("pads"):
        text += "After padding: to the captured sizes of the cost model. "
    if engine.get("gpus"):
        text += f"GPU time: {engine['gpus']} GPUs, busy or not. "
    if engine.get("price_per_gpu_hour"):
        text += f"Cost: {engine['price_per_gpu_hour']:g} per GPU-hour. "
    return text + "GPU time and cost change as engine time does."


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
