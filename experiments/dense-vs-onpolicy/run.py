"""How far is an on-policy replay from the truth that a dense trace gives? Writes results.csv and README's table.

Run from the repository's root: `.venv/bin/python experiments/dense-vs-onpolicy/run.py` (some minutes on two cores).
"""

from __future__ import annotations

import csv
import re
import tempfile
from pathlib import Path
from typing import Any

from avsim.config import ReplayConfig
from avsim.derive import derive_on_policy
from avsim.policies import FixedDepth
from avsim.runs import run_replay
from avsim.sources import open_trace

HERE = Path(__file__).parent
TRACES = HERE.parent.parent / "traces"
COST = "deepseek-v4-flash-tp4-b300"
CONCURRENCY = 8
COLUMNS = (
    "trace",
    "policy",
    "al_dense",
    "al_on_policy",
    "al_bias_pct",
    "speed_dense",
    "speed_on_policy",
    "bias_points",
)


def arms(trace: Path, **options: Any) -> dict[str, tuple[float, float]]:
    """Return acceptance length and throughput by policy."""
    config = ReplayConfig(
        trace=str(trace),
        cost=COST,
        what_if=True,
        baselines=("fixed:1", "fixed:2", "fixed:3", "fixed"),
        bootstrap=20,
        **options,
    )
    (load,) = run_replay(config).summary["loads"]
    return {arm["policy"]: (arm["acceptance_length"], arm["throughput_tok_s"]) for arm in load["arms"]}


def rows(trace: Path) -> list[dict[str, str | float]]:
    """Compare both replays of one dense trace: the on-policy one is of what `fixed:K` at the same load visits."""
    opened = open_trace(trace)
    full = f"fixed:{opened.card.num_speculative_tokens}"
    with tempfile.TemporaryDirectory() as scratch:
        on_policy = Path(scratch) / "on-policy"
        derive_on_policy(opened, on_policy, FixedDepth(opened.card.num_speculative_tokens), CONCURRENCY)
        truth, told = arms(trace, concurrency=(CONCURRENCY,)), arms(on_policy, loop="open")
    found: list[dict[str, str | float]] = []
    for policy in (name for name in truth if name in told and name != "none"):
        (al, speed), (al_told, speed_told) = truth[policy], told[policy]
        speed, speed_told = speed / truth[full][1], speed_told / told[full][1]
        bias = (al_told / told[full][0] / (al / truth[full][0]) - 1) * 100
        values = (trace.name, policy, al, al_told, bias, speed, speed_told, (speed_told - speed) * 100)
        found.append({k: v if isinstance(v, str) else round(v, 4) for k, v in zip(COLUMNS, values, strict=True)})
    return found


def table(results: list[dict[str, str | float]]) -> str:
    """Return the results as Markdown."""
    head = (
        "trace",
        "policy",
        "AL, dense",
        "AL, on-policy",
        "bias",
        "speed against fixed:K, dense",
        "on-policy",
        "bias",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in results:
        cells = [row["trace"], row["policy"], f"{row['al_dense']:.3f}", f"{row['al_on_policy']:.3f}"]
        cells += [f"{row['al_bias_pct']:+.1f} %", f"{row['speed_dense']:.3f}", f"{row['speed_on_policy']:.3f}"]
        lines.append("| " + " | ".join([*map(str, cells), f"{row['bias_points']:+.1f} points"]) + " |")
    return "\n".join(lines)


def main() -> None:
    dense = [path for path in sorted(TRACES.iterdir()) if open_trace(path).card.kind == "dense"]
    # A replay of the whole needs confidences, and so features.
    chosen = [path for path in dense if "log_odds" in open_trace(path).card.recorded and "headless" not in path.name]
    results = [row for path in chosen for row in rows(path)]
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(results)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    made = f"<!-- table -->\n{table(results)}\n<!-- /table -->"
    readme.write_text(re.sub(r"<!-- table -->.*<!-- /table -->", lambda _: made, text, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
