"""Ranks every estimator on every shipped trace and on SpecDecode-Bench. Writes results/*.csv, a plot and tables.

Run from the repository's root: `.venv/bin/python experiments/estimator-bakeoff/run.py`, all of it (about an hour on two
cores) or the sections that are named (see SECTIONS). SpecDecode-Bench has no licence to be shipped under: it is read
from the folder that AVSIM_REFERENCE names, and left out without it.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heads import head_rows
from tables import TWINS, write_tables

from avsim import estimators
from avsim.comparison import CompareConfig, compare
from avsim.report.comparison_html import comparison_csv
from avsim.sources import open_trace
from avsim.sources.importers import import_trace

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TRACES = HERE.parent.parent / "traces"
CONFIG = tomllib.loads((HERE / "config.toml").read_text(encoding="utf-8"))
DATASETS = ("gsm8k", "cnn", "instructcoder", "sharegpt")


SECTIONS = (
    "scores", "busy", "censored", "history", "interval", "warm", "throughput", "explain", "drift", "heads",
    "specdecode-bench", "tables",
)  # fmt: skip


def settings(section: str, **more: Any) -> CompareConfig:
    """Return the config of a section."""
    values = {key: value for key, value in CONFIG[section].items() if key not in ("pairs", "prior", "instead")}
    for key in ("estimators", "loads"):
        if key in values:
            values[key] = tuple(values[key])
    return CompareConfig(seed=CONFIG["seed"], bootstrap=CONFIG["bootstrap"], **values, **more)


def shipped(keep: Callable[[Any], bool] = lambda card: True) -> list[str]:
    """Return the shipped traces whose card fits."""
    folders = sorted(path.parent for path in TRACES.glob("*/trace.json"))
    return [str(folder) for folder in folders if keep(open_trace(folder).card)]


def progress(section: str) -> Callable[[int, int, str], None]:
    def show(done: int, total: int, what: str) -> None:
        print(f"{section}: {done}/{total} {what}", file=sys.stderr, flush=True)

    return show


def write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """Write dicts with equal keys as CSV, floats to five digits."""
    with (RESULTS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})


def rounded(text: str) -> str:
    """Shorten the floats of a CSV, so that a rerun on another machine differs where results do."""
    lines = [line.split(",") for line in text.splitlines()]
    return "".join(",".join(_short(cell) for cell in line) + "\n" for line in lines)


def _short(cell: str) -> str:
    try:
        return cell if "." not in cell else f"{float(cell):.5g}"
    except ValueError:
        return cell


def run_scores(section: str, traces: list[str]) -> list[dict[str, Any]]:
    """Score all estimators on some traces."""
    found = compare(traces, settings(section), progress=progress(section))
    (RESULTS / f"{section}.csv").write_text(rounded(comparison_csv(found)), encoding="utf-8")
    return found


def run_warm() -> None:
    """Score estimators that have served two other traces before."""
    found = []
    for path in shipped(lambda card: card.kind == "dense" and "log_odds" in card.recorded):
        name = Path(path).name
        prior = CONFIG["warm"]["instead" if name in CONFIG["warm"]["prior"] else "prior"]
        config = settings("warm", prior=tuple(str(TRACES / other) for other in prior))
        found += compare([path], config, progress=progress(f"warm {name}"))
    (RESULTS / "warm.csv").write_text(rounded(comparison_csv(found)), encoding="utf-8")


def run_simulated(section: str, kind: str) -> None:
    """Simulate on every dense trace that has log-odds, each set of drafts once."""
    dense = shipped(lambda card: card.kind == "dense" and "log_odds" in card.recorded)
    found = compare(
        [path for path in dense if Path(path).name not in TWINS], settings(section), progress=progress(section)
    )
    write_rows(section, [{"trace": result["trace"]} | row for result in found for row in result[kind]])


def run_drift() -> None:
    drift, influence = [], []
    for trace, then in CONFIG["drift"]["pairs"]:
        goal = then if "=" in then else str(TRACES / then)
        (found,) = compare([str(TRACES / trace)], settings("drift", then=(goal,)), progress=progress("drift"))
        drift += [{"trace": trace} | {k: v for k, v in row.items() if k != "curve"} for row in found["drift"]]
        influence += [{"trace": trace} | row for row in found["influence"]]
    write_rows("drift", drift)
    unique = {(row["trace"], row["estimator"], row["group"]): row for row in influence}
    write_rows("influence", list(unique.values()))


def run_coefficients(found: list[dict[str, Any]]) -> None:
    """Write what `online-logistic` has fitted at the end of each trace (published.md, V11)."""
    rows = []
    for result in found:
        state = result["states"].get("online-logistic")
        if state is not None:
            slope, levels = (state["params"][name]["values"] for name in ("slope", "intercepts"))
            rows.append(
                {"trace": result["trace"], "slope": slope[0], "refits": state["refits"]}
                | {"lowest_intercept": min(levels), "highest_intercept": max(levels)}
                | {"intercepts": " ".join(f"{level:.2f}" for level in levels)}
            )
    write_rows("coefficients", rows)


def run_specdecode_bench(reference: Path) -> None:
    """Score what needs no features on real H100 acceptance lengths."""
    config = CompareConfig(
        ("position-rate", *(spec for spec in position_only() if spec != "position-rate")),
        seed=CONFIG["seed"], bootstrap=CONFIG["bootstrap"], offsets=3,
    )  # fmt: skip
    found = []
    with tempfile.TemporaryDirectory() as name:
        for dataset in DATASETS:
            for drafter in ("eagle", "ngram"):
                source = reference / f"reference/specdecode_bench/{dataset}.jsonl"
                folder = Path(name) / f"{dataset}-{drafter}"
                import_trace(f"specdecode-bench:drafter={drafter}", source, folder)
                found += compare([folder], config, progress=progress(f"{dataset} {drafter}"))
    (RESULTS / "specdecode_bench.csv").write_text(rounded(comparison_csv(found)), encoding="utf-8")


def position_only() -> list[str]:
    """Return the estimators that read no feature."""
    free = [name for name, cls in estimators.available().items() if not cls().features and not cls().uses_truth]
    return [*free, "position-rate:discount=0.9"]


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or list(SECTIONS)
    dense = shipped(lambda card: card.kind == "dense" and "log_odds" in card.recorded)
    if "scores" in wanted:
        run_coefficients(run_scores("scores", shipped()))
    if "busy" in wanted:
        run_scores("busy", dense)
    for section in ("censored", "history", "interval"):
        if section in wanted:
            run_scores(section, dense)
    if "warm" in wanted:
        run_warm()
    for section in ("throughput", "explain"):
        if section in wanted:
            run_simulated(section, section)
    if "drift" in wanted:
        run_drift()
    if "specdecode-bench" in wanted and os.environ.get("AVSIM_REFERENCE"):
        run_specdecode_bench(Path(os.environ["AVSIM_REFERENCE"]))
    if "heads" in wanted:
        with_head = shipped(lambda card: card.kind == "dense" and "confidence" in card.recorded)
        write_rows("heads", [row for path in with_head for row in head_rows(Path(path), CONFIG["seed"])])
    if "tables" in wanted:
        write_tables(RESULTS, HERE)


if __name__ == "__main__":
    main()
