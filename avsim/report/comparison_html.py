"""The report of a comparison as one HTML file that needs nothing else, and its scores as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from avsim.metrics.calibration import ECE_BINS
from avsim.report.comparison_plots import comparison_figures
from avsim.report.comparison_wording import (
    SHORT_STANDING,
    arm_text,
    bias_of,
    change_text,
    headline,
    labelled_text,
    marked,
    marked_spec,
    marks,
    notes,
    recovery_text,
)
from avsim.report.page import MISSING, chip, definitions, page, paragraph, section, table, td, th

__all__ = ["comparison_csv", "comparison_html"]

_NO_PLOTS = "Plots are left out, because matplotlib is missing: pip install 'avsim[plot]'"
_CLASS = {"best": "gain", "not distinguishable from the best": "none", "worse": "loss", "not enough requests": "none"}
_ABOUT = (
    "Every estimator met the same draft blocks in the same steps, predicted them, and then learned from the slots that "
    "were verified. Lower log-loss is better. Standing: the model confidence set (95 %) of the estimators that an "
    "engine can run without loss; what is not in it is worse than the best even after allowing for how many are "
    "compared. Estimators in it cannot be told apart on this trace."
)


def comparison_html(results: Sequence[dict[str, Any]], manifest: dict[str, Any]) -> str:
    """Return the report of a comparison; equal inputs give the same bytes (for one version of matplotlib).

    Args:
        results: what `compare` returned.
        manifest: what `make_manifest` returned.
    """
    parts = [("summary", "All traces", _summary(results))]
    for number, result in enumerate(results):
        parts.append((f"trace{number}", result["trace"], _trace(result, f"t{number}")))
    parts.append(("provenance", "Provenance", _provenance(manifest)))
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in parts)
    badges = ['<span class="badge">OFFLINE COMPARISON</span>']
    if any(result["throughput"] for result in results):
        badges.append('<span class="badge">SIMULATED THROUGHPUT</span>')
    if any(result["what_if"] or result["what_if_costs"] for result in results):
        badges.append('<span class="badge warn">WHAT IF</span>')
    if any(result["synthetic"] for result in results):
        badges.append('<span class="badge warn">SYNTHETIC</span>')
    count = f"{len(results)} trace{'s' * (len(results) > 1)}"
    title = f"<h1>Acceptance estimators on {count}</h1>"
    head = f"<header>\n<div>{''.join(badges)}</div>\n{title}\n<nav>{links}</nav>\n</header>\n"
    return page("avsim: estimators", head + "".join(section(*part) for part in parts))


def _summary(results: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["estimator"] for result in results for row in result["rows"]))
    head = [th("estimator", "left") + "".join(th(result["trace"]) for result in results)]
    lines = []
    for name in names:
        cells = th(name, scope="row")
        for result in results:
            row = next((row for row in result["rows"] if row["estimator"] == name), None)
            if row is None:
                cells += td(MISSING)
                continue
            best = row["group"] in ("best", "not distinguishable from the best")
            text = change_text(row, "log_loss_change") or f"{row['conditional']['log_loss']:.4f} nats"
            cells += td(text + marked(row)[len(name) :], "best" if best else "")
        lines.append(cells)
    reference = results[0]["reference"]
    caption = (
        f"Log-loss of conditional confidences against {reference} (its own in nats), with 95 % intervals. Shaded: in "
        "the model confidence set of the trace."
    )
    found = [text for result in results for text in marks(result)]
    return (
        paragraph(_ABOUT)
        + table(caption, head, [lines])
        + "".join(paragraph(text, "small") for text in dict.fromkeys(found))
    )


def _trace(result: dict[str, Any], name: str) -> str:
    plots = comparison_figures(result, name)
    parts = [paragraph(headline(result)), _scores(result), paragraph(_NO_PLOTS) if plots is None else plots]
    if len(next(iter(result["rows"]))["categories"]) > 1:
        parts.append(_categories(result))
    if result["throughput"]:
        parts.append(_throughput(result))
    if result["explain"]:
        parts.append(_explain(result))
    if result["drift"]:
        parts.append(_drift(result))
    if result["influence"]:
        parts.append(_influence(result))
    if result["admission"] != "full":
        parts += [_censoring(result), paragraph(labelled_text(result), "small")]
    lines = "".join(f"<li>{escape(note)}</li>\n" for note in notes(result))
    return "".join(parts) + f"<ul>\n{lines}</ul>\n"


def _number(value: float | None, digits: int = 3, scale: float = 1, unit: str = "") -> str:
    return MISSING if value is None else f"{value * scale:.{digits}f}{unit}".replace("-", "−")


def _scores(result: dict[str, Any]) -> str:
    head = [
        th("estimator", "left", rowspan=2)
        + th("conditional: each slot, given those before", "span", colspan=8)
        + th("cumulative: survival", "span edge", colspan=5)
        + th("start", "left edge", rowspan=2),
        "".join(
            th(text) for text in ("log-loss", "change, %", "standing", "Brier", "resolution", "ECE", "AUC", "slope")
        )
        + "".join(
            th(text, "edge" * (not n)) for n, text in enumerate(("log-loss", "change, %", "standing", "ECE", "AUC"))
        ),
    ]
    lines = []
    for row in result["rows"]:
        one, all_ = row["conditional"], row["cumulative"]
        lines.append(
            th(marked(row), scope="row")
            + td(_number(one["log_loss"], 4))
            + td(change_text(row, "log_loss_change"))
            + _standing(row["group"])
            + td(_number(one["brier"], 4))
            + td(_number(one["brier_resolution"], 4))
            + td(_number(one["ece"], 1, 100, " %"))
            + td(_number(one["auc"]))
            + td(_number(one["calibration_slope"], 2))
            + td(_number(all_["log_loss"], 4), "edge")
            + td(change_text(row, "cumulative_log_loss_change"))
            + _standing(row["cumulative_group"])
            + td(_number(all_["ece"], 1, 100, " %"))
            + td(_number(all_["auc"]))
            + td(row["start"], "left edge")
        )
    caption = (
        f"Scores. ≈ best: not distinguishable from the best. ECE debiased, {ECE_BINS} equal-mass bins; slope: of the "
        "label's log-odds on the confidence's (1 is right)"
    )
    return table(caption, head, [lines])


def _standing(group: str | None) -> str:
    return td(MISSING, "left") if group is None else chip(SHORT_STANDING[group], _CLASS[group])


def _categories(result: dict[str, Any]) -> str:
    names = list(next(iter(result["rows"]))["categories"])
    head = [
        th("estimator", "left", rowspan=2) + "".join(th(name, "span edge", colspan=3) for name in names),
        "".join(th("log-loss", "edge") + th("bias") + th("ECE") for _ in names),
    ]
    lines = []
    for row in result["rows"]:
        cells = th(marked(row), scope="row")
        for name in names:
            found = row["categories"][name]
            cells += (
                td(_number(found["log_loss"], 4), "edge")
                + td(_number(bias_of(found), 1, 100))
                + td(_number(found["ece"], 1, 100, " %"))
            )
        lines.append(cells)
    return table("By category; bias: mean confidence − share accepted, points", head, [lines])


def _censoring(result: dict[str, Any]) -> str:
    """Tabulate scores where decisions are made, which censored labels spoil first."""
    found = [(row, row["beside_the_cut"]) for row in result["rows"] if row["beside_the_cut"] is not None]
    lines = [
        th(marked(row), scope="row")
        + td(str(cut["count"]))
        + td(_number(cut["log_loss"], 4))
        + td(_number(bias_of(cut), 1, 100))
        + td(_number(cut["ece"], 1, 100, " %"))
        for row, cut in found
    ]
    head = [th("estimator", "left") + "".join(th(text) for text in ("slots", "log-loss", "bias", "ECE"))]
    caption = (
        "Beside the cut: the last verified and the first trimmed slot of each block that was trimmed, where the "
        "verdict is known; bias: mean confidence − share accepted, points"
    )
    return table(caption, head, [lines])


def _plain(
    caption: str, rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, Callable[[dict[str, Any]], str], str]]
) -> str:
    head = ["".join(th(name, cls) for name, _, cls in columns)]
    lines = ["".join(td(value(row), cls) for _, value, cls in columns) for row in rows]
    return table(caption, head, [lines])


def _throughput(result: dict[str, Any]) -> str:
    mark = "SIMULATED, WHAT IF" if result["what_if_costs"] else "SIMULATED"
    return _plain(
        f"{mark}: throughput on step costs {result['step_costs']}, change against adaptive + {result['reference']}; "
        "* bound, † lossy",
        result["throughput"],
        [
            ("load", lambda row: str(row["load"]), ""),
            ("arm", lambda row: arm_text(result, row), "left"),
            ("tokens/s", lambda row: f"{row['throughput_tok_s']:,.0f}", ""),
            ("change", lambda row: change_text(row, "change"), ""),
            ("standing", lambda row: row["standing"], "left"),
            ("verified", lambda row: _number(row["verified_share"], 1, 100, " %"), ""),
            ("budget regret", lambda row: _number(row["budget_regret_pct"], 1, 1, " %"), ""),
            ("allocation regret", lambda row: _number(row["allocation_regret_pct"], 1, 1, " %"), ""),
        ],
    )


def _explain(result: dict[str, Any]) -> str:
    return _plain(
        f"SIMULATED{', WHAT IF' * result['what_if_costs']}: the distance to the oracle, rung by rung; each change is "
        "against the rung above",
        result["explain"],
        [
            ("estimator", lambda row: marked_spec(result, row["estimator"]), "left"),
            ("load", lambda row: str(row["load"]), ""),
            ("rung", lambda row: row["rung"], "left"),
            ("change", lambda row: change_text(row, "change"), ""),
            ("standing", lambda row: row["standing"], "left"),
            ("what it is", lambda row: row["what"], "left"),
        ],
    )


def _drift(result: dict[str, Any]) -> str:
    return _plain(
        "Changing traffic: log-loss above that of a twin that knows it already",
        result["drift"],
        [
            ("estimator", lambda row: marked_spec(result, row["estimator"]), "left"),
            ("from → to", lambda row: f"{row['before']} → {row['after']}", "left"),
            ("scenario", lambda row: row["scenario"], "left"),
            ("excess", lambda row: change_text(row, "excess"), ""),
            ("recovered after", recovery_text, ""),
        ],
    )


def _influence(result: dict[str, Any]) -> str:
    return _plain(
        "Cross-request influence: what learning from a group does to the log-loss of all others (above 0: harm)",
        result["influence"],
        [
            ("estimator", lambda row: marked_spec(result, row["estimator"]), "left"),
            ("group", lambda row: row["group"], "left"),
            ("share of rows", lambda row: _number(row["share_of_rows"], 0, 100, " %"), ""),
            ("change for others", lambda row: change_text(row, "change"), ""),
        ],
    )


def _provenance(manifest: dict[str, Any]) -> str:
    shown = (
        (key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list | tuple) else v)
        for key, v in manifest["config"].items()
    )
    return (
        "<h3>Run</h3>\n" + definitions(shown)
        + "<h3>Content hashes</h3>\n" + definitions(manifest["inputs"].items())
        + "<h3>Versions</h3>\n" + definitions(manifest["versions"].items())
    )  # fmt: skip


def comparison_csv(results: Sequence[dict[str, Any]]) -> str:
    """Return one line per trace and estimator: what it was scored on, and its pooled scores."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    about = ("trace", "synthetic", "kind", "draft_sampling", "num_speculative_tokens", "admission", "concurrency")
    own = ("estimator", "attainable", "exact", "start", "refits", "group", "cumulative_group")
    changes = [
        f"{kind}_change{part}_pct" for kind in ("log_loss", "cumulative_log_loss") for part in ("", "_low", "_high")
    ]
    scores = [key for key, value in results[0]["rows"][0]["conditional"].items() if not isinstance(value, list)]
    kinds = ("conditional", "cumulative")
    writer.writerow([*about, *own, *changes, *(f"{kind}_{key}" for kind in kinds for key in scores)])
    for result in results:
        for row in result["rows"]:
            line = [result[key] for key in about] + [row[key] for key in (*own, *changes)]
            writer.writerow(line + [row[kind][key] for kind in kinds for key in scores])
    return out.getvalue()
