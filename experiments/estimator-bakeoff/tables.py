"""The bake-off's tables and plots from its result files."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

__all__ = ["TWINS", "write_tables"]

Row = dict[str, str]
REFERENCE = "online-logistic"


def read(path: Path) -> list[Row]:
    """Return the lines of a CSV, or none where the section has not run."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def short(trace: str) -> str:
    return trace.removeprefix("smollm2-")


def change(row: Row, name: str) -> tuple[float, float, float] | None:
    """Return a change with its interval, or None for the reference."""
    values = [row[f"{name}{part}_pct"] for part in ("", "_low", "_high")]
    return None if "" in values else (float(values[0]), float(values[1]), float(values[2]))


def cell(found: tuple[float, float, float] | None) -> str:
    """Return a change: bold where its interval excludes 0."""
    if found is None:
        return "·"
    text = f"{found[0]:+.1f}".replace("-", "−")
    return f"**{text}**" if found[1] > 0 or found[2] < 0 else text


def ordered(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def marked(row: Row) -> str:
    """Return an estimator's name; * for bounds, † where it is lossy on some trace."""
    return row["estimator"] + "*" * (row["attainable"] == "False")


def matrix(rows: Sequence[Row], name: str, reference: str = REFERENCE) -> str:
    """Return estimators × traces, changes of log-loss against the reference in %."""
    rows = [row for row in rows if any(r["trace"] == row["trace"] and r["estimator"] == reference for r in rows)]
    traces = ordered(rows, "trace")
    lossy = {row["estimator"] for row in rows if row["exact"] == "False"}
    lines = []
    for spec in ordered(rows, "estimator"):
        mine = {row["trace"]: row for row in rows if row["estimator"] == spec}
        found = [cell(change(mine[trace], name)) if trace in mine else "" for trace in traces]
        lines.append([marked(next(iter(mine.values()))) + "†" * (spec in lossy), *found])
    return markdown([f"% against {reference}", *map(short, traces)], lines)


def tally(rows: Sequence[Row]) -> str:
    """Return for each attainable estimator on how many traces it is better, worse or in the confidence set."""
    rows = [row for row in rows if any(r["trace"] == row["trace"] and r["estimator"] == REFERENCE for r in rows)]
    rows = [row for row in rows if row["trace"] not in TWINS and row["attainable"] == row["exact"] == "True"]
    lines = []
    for spec in ordered(rows, "estimator"):
        mine = [row for row in rows if row["estimator"] == spec]
        if not mine:
            continue
        texts = [spec, str(len(mine))]
        for name, group in (("log_loss_change", "group"), ("cumulative_log_loss_change", "cumulative_group")):
            found = [item for item in (change(row, name) for row in mine) if item is not None]
            kept = sum(row[group] in ("best", "not distinguishable from the best") for row in mine)
            if not found:
                texts += ["·", "·", "·", str(kept)]
                continue
            worst = max(item[0] for item in found)
            texts += [
                f"{median(item[0] for item in found):+.2f} (worst {worst:+.1f})".replace("-", "−"),
                str(sum(item[2] < 0 for item in found)),
                str(sum(item[1] > 0 for item in found)),
                str(kept),
            ]
        lines.append(texts)
    head = ["estimator", "traces"]
    for kind in ("conditional", "survival"):
        head += [f"{kind}: median change, %", "better", "worse", "in the set"]
    return markdown(head, lines)


def throughput(rows: Sequence[Row]) -> str:
    """Return for each arm and load the median change over traces, and on how many it is faster or slower."""
    rows = [row for row in rows if row["trace"] not in TWINS]
    loads = ordered(rows, "load")
    lines = []
    for arm in ordered(rows, "arm"):
        texts = [arm + "*" * any(row["arm"] == arm and row["attainable"] == "False" for row in rows)]
        for load in loads:
            mine = [row for row in rows if row["arm"] == arm and row["load"] == load]
            found = [float(row["change_pct"]) for row in mine if row["change_pct"]]
            words = [row["standing"] for row in mine]
            text = f"{median(found):+.1f} ({min(found):+.1f} … {max(found):+.1f}), " if found else ""
            texts.append(
                f"{text}{words.count('faster')} faster, {words.count('slower')} slower of {len(mine)}".replace("-", "−")
                if found
                else "·"
            )
        lines.append(texts)
    return markdown(["arm", *(f"{load} requests" for load in loads)], lines)


def rungs(rows: Sequence[Row]) -> str:
    """Return each rung's change at each load, median and range over traces, for the reference."""
    rows = [row for row in rows if row["estimator"] == REFERENCE and row["change_pct"] and row["trace"] not in TWINS]
    loads = ordered(rows, "load")
    lines = []
    rungs_in_order = ("chance", "features", "model", "censoring", "staleness", "belief", "in all", "against none")
    for rung in (name for name in rungs_in_order if name in ordered(rows, "rung")):
        texts = [rung]
        for load in loads:
            found = [float(row["change_pct"]) for row in rows if (row["rung"], row["load"]) == (rung, load)]
            texts.append(f"{median(found):+.1f} ({min(found):+.1f} … {max(found):+.1f})".replace("-", "−"))
        lines.append([*texts, next(row["what"] for row in rows if row["rung"] == rung)])
    return markdown(["rung", *(f"{load} requests" for load in loads), "what it is"], lines)


def drift(rows: Sequence[Row]) -> str:
    """Return excess log-loss and recovery for each change of traffic."""
    changes = list(dict.fromkeys((row["trace"], row["after"]) for row in rows))
    lines = []
    for spec in ordered(rows, "estimator"):
        texts = [spec]
        for trace, after in changes:
            mine = {
                row["scenario"]: row
                for row in rows
                if (row["trace"], row["after"], row["estimator"]) == (trace, after, spec)
            }
            if not mine:
                texts.append("")
                continue
            excess = " / ".join(cell(change(mine[kind], "excess")) for kind in ("switch", "slow", "mixed"))
            steps = mine["switch"]["recovery_steps"]
            texts.append(f"{excess}; {f'{steps} steps' if steps else 'not in time'}")
        lines.append(texts)
    return markdown(["estimator", *(f"{short(trace)} → {short(after)}" for trace, after in changes)], lines)


def plain(rows: Sequence[Row], columns: Sequence[tuple[str, Callable[[Row], str]]]) -> str:
    return markdown([name for name, _ in columns], [[value(row) for _, value in columns] for row in rows])


def influence(rows: Sequence[Row]) -> str:
    rows = [row for row in rows if row["estimator"] == REFERENCE]
    return plain(
        rows,
        [
            ("trace", lambda row: short(row["trace"])),
            ("group", lambda row: row["group"]),
            ("change of the others' log-loss, %", lambda row: cell(change(row, "change"))),
        ],
    )


def coefficients(rows: Sequence[Row]) -> str:
    return plain(
        rows,
        [
            ("trace", lambda row: short(row["trace"])),
            ("refits", lambda row: row["refits"]),
            ("slope", lambda row: f"{float(row['slope']):.2f}"),
            ("intercepts", lambda row: row["intercepts"].replace("-", "−")),
            ("spread", lambda row: f"{float(row['highest_intercept']) - float(row['lowest_intercept']):.2f}"),
        ],
    )


def bench_traces(rows: Sequence[Row]) -> str:
    return plain(
        rows,
        [
            ("trace", lambda row: row["trace"]),
            ("estimator", lambda row: row["estimator"]),
            ("log-loss", lambda row: f"{float(row['conditional_log_loss']):.4f}"),
            ("change, %", lambda row: cell(change(row, "log_loss_change"))),
            ("survival: change, %", lambda row: cell(change(row, "cumulative_log_loss_change"))),
            ("ECE, %", lambda row: f"{100 * float(row['conditional_ece']):.1f}"),
        ],
    )


def heads(rows: Sequence[Row]) -> str:
    """Return cumulative ECE and AUC of each slot, and how much ECE changes against the raw score of the same kind."""
    slots = ordered(rows, "slot")
    lines = []
    for trace in ordered(rows, "trace"):
        for name in ordered(rows, "score"):
            mine = [row for row in rows if (row["trace"], row["score"]) == (trace, name)]
            texts = [short(trace), name]
            for row in mine:
                change_, low, high = (float(row[key]) for key in ("change_points", "change_low", "change_high"))
                text = f"{float(row['ece_pct']):.1f}"
                if not name.endswith(", raw"):
                    sign = f"({change_:+.1f})".replace("-", "−")
                    text += f" **{sign}**" if low > 0 or high < 0 else f" {sign}"
                texts.append(f"{text}; {float(row['auc']):.3f}")
            lines.append(texts)
    return markdown(["trace", "score", *(f"slot {slot}" for slot in slots)], lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the change of conditional log-loss with its interval, a panel per trace."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["attainable"] == "True" and row["estimator"] not in ("position-rate", REFERENCE)]
    rows = [row for row in rows if change(row, "log_loss_change") is not None and row["start"] != "cross-fitted"]
    rows = [row for row in rows if row["trace"] not in TWINS]
    traces, specs = ordered(rows, "trace"), ordered(rows, "estimator")
    traces = [trace for trace in traces if sum(row["trace"] == trace for row in rows) > 2]
    columns = 4
    lines = -(-len(traces) // columns)
    figure = Figure(figsize=(12, 2.7 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, trace in zip(panels, traces, strict=False):
        axes.axvline(0, color="0.4", linewidth=0.8)
        for number, spec in enumerate(specs):
            row = next((row for row in rows if (row["trace"], row["estimator"]) == (trace, spec)), None)
            if row is None:
                continue
            value, low, high = change(row, "log_loss_change") or (0.0, 0.0, 0.0)
            color = "#0072b2" if high < 0 else "#c94f00" if low > 0 else "0.55"
            axes.errorbar(value, number, xerr=[[value - low], [high - value]], fmt="o", color=color, markersize=4)
        axes.set_title(short(trace), fontsize=9, loc="left")
        axes.set_xlim(-8, 8)
        axes.grid(axis="x", alpha=0.4)
    for axes in panels[len(traces) :]:
        axes.set_visible(False)
    lossy = {row["estimator"] for row in rows if row["exact"] == "False"}
    panels[0].set_yticks(range(len(specs)), [spec + "†" * (spec in lossy) for spec in specs])
    for axes in panels:
        axes.tick_params(labelsize=7)
    figure.supxlabel(
        "change of log-loss against online-logistic, % (95 % intervals, cut off at ±8; † lossy with sampled drafts)",
        fontsize=9,
    )
    figure.savefig(path, metadata={"Date": None})


TWINS = {"smollm2-dspark-headless-greedy", "smollm2-eagle-live", "smollm2-eagle1-greedy-fixed5-c8"}
"""Traces whose walk meets the blocks of another one: shown, and not counted twice."""

TABLES: dict[str, tuple[str, Callable[[list[Row]], str]]] = {
    "conditional": ("scores", lambda rows: matrix(rows, "log_loss_change")),
    "survival": ("scores", lambda rows: matrix(rows, "cumulative_log_loss_change")),
    "tally": ("scores", tally),
    "busy": ("busy", tally),
    "censored": ("censored", tally),
    "warm": ("warm", tally),
    "history": ("history", lambda rows: matrix(rows, "log_loss_change", "multi-logistic:history=false")),
    "interval": ("interval", lambda rows: matrix(rows, "log_loss_change")),
    "throughput": ("throughput", throughput),
    "explain": ("explain", rungs),
    "drift": ("drift", drift),
    "influence": ("influence", influence),
    "coefficients": ("coefficients", coefficients),
    "heads": ("heads", heads),
    "specdecode-bench": ("specdecode_bench", bench_traces),
}


def write_tables(results: Path, folder: Path) -> None:
    """Fill README.md between its markers, and draw log_loss.svg."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, (source, build) in TABLES.items():
        rows = read(results / f"{source}.csv")
        if rows:
            block = f"<!-- {name} -->\n{build(rows)}\n<!-- /{name} -->"
            text, count = re.subn(f"<!-- {name} -->.*?<!-- /{name} -->", lambda _, b=block: b, text, flags=re.S)
            if count != 1:
                raise SystemExit(f"{readme}: no place for the table {name!r}")
    readme.write_text(text, encoding="utf-8")
    scores = read(results / "scores.csv")
    if scores:
        plot(scores, folder / "log_loss.svg")
