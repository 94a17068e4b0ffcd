"""Are plans from summary numbers what a closed loop of the same trace gives? `python experiments/plan-check/run.py`.

For every dense trace with a feature: acceptance, AUC, calibration and likeness of neighbouring blocks are measured on
the trace (`avsim.planning.borrow`), and a plan knows nothing else of it. The closed loop serves the trace itself, with
8·C requests and a warmed online-logistic estimator, on the same step costs.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from avsim import estimators
from avsim.costs import load
from avsim.errors import InputError
from avsim.planning.borrow import borrow
from avsim.planning.given import PlanInput
from avsim.planning.plan import make_plan
from avsim.policies import Adaptive, FixedDepth, NoDrafting
from avsim.simulate import Arm, simulate
from avsim.sources import Trace, open_trace
from avsim.workload import Pool, request_sequences, requests_for

HERE = Path(__file__).parent
COST = load("deepseek-v4-flash-tp4-b300")
LOADS = (1, 8, 32, 64, 256)
WHAT = ("adaptive over best fixed or none", "adaptive over none", "best fixed over none")


def looped(trace: Trace, concurrency: int) -> tuple[float, float, float]:
    """Return the three ratios of `WHAT` in a closed loop."""
    reader = estimators.make_online("online-logistic")
    pool = Pool.from_trace(trace, reader.features)
    everyone = np.arange(len(pool.start))
    order = request_sequences([everyone], 8 * concurrency, [[7]])
    before = request_sequences([everyone], requests_for(pool, concurrency, 300), [[3]])
    warm = simulate(pool, Arm(Adaptive(), reader), before, concurrency, COST).states

    def rate(arm: Arm, states: list | None = None) -> float:
        return float(simulate(pool, arm, order, concurrency, COST, states=states).full.throughput_tok_s[0])

    adaptive, none = rate(Arm(Adaptive(), reader), warm), rate(Arm(NoDrafting()))
    fixed = max(rate(Arm(FixedDepth(depth))) for depth in range(1, pool.num_slots + 1))
    return adaptive / max(none, fixed), adaptive / none, fixed / none


def rows(path: Path) -> list[dict[str, str | float]]:
    """Return planned and looped ratios of one trace."""
    trace = open_trace(path)
    found = borrow(trace)
    given = PlanInput(
        found.acceptance, COST, 8192.0, float(found.auc.mean()), 0.0, found.slope, found.offset, found.request_share,
        cost_sd=0.0, overhead_ms=0.0,
    )  # fmt: skip
    lines: list[dict[str, str | float]] = []
    for at in make_plan(given, LOADS).loads:
        fixed = max(one.over_none.middle for one in at.fixed[1:])
        planned = (at.over_tuned.middle, at.over_none.middle, fixed)
        for what, plan, loop in zip(WHAT, planned, looped(trace, at.concurrency), strict=True):
            error = (plan / loop - 1) * 100
            lines.append({"trace": path.name, "auc": round(float(found.auc.mean()), 3), "reqs": at.concurrency,
                          "ratio": what, "plan": round(plan, 4), "loop": round(loop, 4),
                          "error_pct": round(error, 2)})  # fmt: skip
    return lines


def table(lines: list[dict[str, str | float]]) -> str:
    """Return the errors of each ratio by load, over the traces, as Markdown."""
    heads = ["ratio", *(f"{reqs} requests" for reqs in LOADS), "all: rms", "mean", "worst"]
    text = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for what in WHAT:
        error = {reqs: np.array([line["error_pct"] for line in lines if (line["ratio"], line["reqs"]) == (what, reqs)],
                                dtype=float) for reqs in LOADS}  # fmt: skip
        every = np.concatenate(list(error.values()))
        cells = [f"{np.sqrt((one**2).mean()):.2f}" for one in [*error.values(), every]]
        cells += [f"{every.mean():+.2f}", f"{every[np.abs(every).argmax()]:+.2f}"]
        text.append("| " + " | ".join([what, *cells]) + " |")
    return "\n".join(text)


def main() -> None:
    lines = []
    for path in sorted((HERE.parent.parent / "traces").iterdir()):
        try:
            lines += rows(path)
        except InputError as error:
            print(f"left out: {error}")
    with (HERE / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    readme = HERE / "README.md"
    mark = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)
    text = readme.read_text(encoding="utf-8")
    readme.write_text(mark.sub(lambda match: f"{match[1]}{table(lines)}\n{match[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
