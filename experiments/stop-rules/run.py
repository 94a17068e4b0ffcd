"""What do the age of the sizing confidences, the stopping rule and the estimator cost? Writes results.csv and README.

Run from the repository's root: `.venv/bin/python experiments/stop-rules/run.py` (a few minutes on two cores).
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from avsim.config import ReplayConfig
from avsim.runs import run_replay

HERE = Path(__file__).parent
TRACES = HERE.parent.parent / "traces"
LOADS = (8, 32, 128)
VARIANTS = (
    ("adaptive, lag 0", {"lag": 0}),
    ("adaptive, lag 1 (vLLM)", {"lag": 1}),
    ("adaptive, lag 2", {"lag": 2}),
    ("prefix-scheduler, stop at the first fall", {"policies": ("prefix-scheduler",)}),
    ("prefix-scheduler, global maximum", {"policies": ("prefix-scheduler:early_stop=false",)}),
    ("adaptive, position-rate", {"estimators": ("position-rate",)}),
    ("adaptive, raw-confidence", {"estimators": ("raw-confidence",)}),
    ("adaptive, oracle-label (knows the verdict, sized stale)", {"estimators": ("oracle-label",)}),
)
COLUMNS = ("trace", "variant", "concurrency", "change_pct", "low_pct", "high_pct", "verdict", "verified_share_pct")


def rows(trace: str) -> list[dict[str, str | int | float]]:
    """Return one row per variant and load: throughput against plain decoding."""
    found: list[dict[str, str | int | float]] = []
    for name, changes in VARIANTS:
        config = ReplayConfig(
            trace=str(TRACES / trace),
            cost="deepseek-v4-flash-tp4-b300",
            what_if=True,
            concurrency=LOADS,
            baselines=("none",),
            bootstrap=40,
            **changes,
        )
        for load in run_replay(config).summary["loads"]:
            (verdict,) = load["verdicts"]
            arm = next(arm for arm in load["arms"] if arm["judged"])
            change, low, high = ((verdict[key] - 1) * 100 for key in ("ratio", "low", "high"))
            found.append(
                dict(
                    zip(
                        COLUMNS,
                        (
                            trace,
                            name,
                            load["concurrency"],
                            round(change, 2),
                            round(low, 2),
                            round(high, 2),
                            verdict["word"],
                            round(arm["verified_share"] * 100, 1),
                        ),
                        strict=True,
                    )
                )
            )
    return found


def table(results: list[dict[str, str | int | float]]) -> str:
    """Return the results as Markdown: one line per trace and variant, one column per load."""
    head = ["trace", "variant", *(f"{load} requests" for load in LOADS)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for trace in dict.fromkeys(row["trace"] for row in results):
        for name, _ in VARIANTS:
            cells = [
                f"{row['change_pct']:+.1f} % ({row['low_pct']:+.1f} … {row['high_pct']:+.1f}), "
                f"verifies {row['verified_share_pct']:.0f} %"
                for row in results
                if row["trace"] == trace and row["variant"] == name
            ]
            lines.append("| " + " | ".join([str(trace), name, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    results = [row for trace in ("smollm2-eagle1-greedy", "smollm2-eagle1-sampled") for row in rows(trace)]
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(results)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)
    readme.write_text(pattern.sub(lambda mark: f"{mark[1]}{table(results)}\n{mark[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
