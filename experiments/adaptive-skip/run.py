"""Is skipping drafts, or budgeting over the run instead of the step, worth anything? Writes results.csv and README.

Run from the repository's root: `.venv/bin/python experiments/adaptive-skip/run.py` (ten minutes on two cores).
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from avsim.config import ReplayConfig
from avsim.metrics.intervals import ratio_interval
from avsim.sources import open_trace
from avsim.study import build_arms, make_study
from avsim.study_run import run_study

HERE = Path(__file__).parent
TRACES = HERE.parent.parent / "traces"
COST = "deepseek-v4-flash-tp4-b300"
NAMES = ("smollm2-eagle1-greedy", "smollm2-dspark-sampled", "smollm2-draft26-greedy")
LOADS = (1, 16, 64, 256)
POLICIES = ("adaptive", "adaptive+skip", "renewal", "goodput")
COLUMNS = ("trace", "policy", "concurrency", "against", "change_pct", "low_pct", "high_pct")


def rows(name: str) -> list[tuple[str | int | float, ...]]:
    """Return the change of throughput of each policy against plain decoding, and against `adaptive`, with intervals."""
    config = ReplayConfig(
        trace=str(TRACES / name), cost=COST, what_if=True, concurrency=LOADS, policies=POLICIES,
        baselines=("none", "oracle+skip"), bootstrap=40,
    )  # fmt: skip
    trace = open_trace(config.trace)
    arms = build_arms(config, trace.card.num_speculative_tokens)
    study, loads = make_study(trace, config, arms)
    found = run_study(study, loads, arms, progress=lambda done, total, what: None).arms
    lines: list[tuple[str | int | float, ...]] = []
    for load in LOADS:
        rates = {arm: result.halves.whole.totals.throughput_tok_s for arm, result in found[str(load)].items()}
        for policy in (*POLICIES, "oracle+skip"):
            for against in ("none", "adaptive"):
                if policy == against:
                    continue
                ratio = rates[policy] / rates[against]
                interval = ratio_interval(float(ratio[0]), np.asarray(ratio[1:]))
                percent = [round((x - 1) * 100, 2) for x in (interval.ratio, interval.low, interval.high)]
                lines.append((name, policy, load, against, *percent))
    return lines


def table(lines: list[tuple[str | int | float, ...]], against: str) -> str:
    """Return a Markdown table of the changes against one arm; bold where the interval excludes 0."""
    heads = ["trace", "policy", *(f"{load} requests" for load in LOADS)]
    text = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    cells: dict[tuple[str, str], list[str]] = {}
    for name, policy, _, to, change, low, high in lines:
        if to == against:
            sure = float(low) > 0 or float(high) < 0
            shown = f"{change:+.1f} ({low:+.1f} … {high:+.1f})"
            cells.setdefault((str(name), str(policy)), []).append(f"**{shown}**" if sure else shown)
    text += [f"| {name} | {policy} | " + " | ".join(line) + " |" for (name, policy), line in cells.items()]
    return "\n".join(text)


def main() -> None:
    lines = [line for name in NAMES for line in rows(name)]
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])
    page = HERE / "README.md"
    text = page.read_text(encoding="utf-8")
    for against in ("none", "adaptive"):
        content = table(lines, against)
        text = re.sub(
            rf"(<!-- {against} -->\n).*?(<!-- /{against} -->)", rf"\g<1>{content}\n\g<2>", text, flags=re.DOTALL
        )
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
