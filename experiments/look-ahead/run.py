"""Is a dense replay of sampled drafts under stale sizing biased? A toy's replay against its real loop.

Run from the repository's root, with torch installed: `PYTHONPATH=. python experiments/look-ahead/run.py` (ten minutes
on two busy cores). Writes results.csv, law.csv and the tables of the README.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from markov import LAW_BINS, K, Markov, calibrate, dense_trace, serve, tracer_agrees
from scipy import stats

from avsim.costs import CostCard, CostModel, CurveCost, LinearCost
from avsim.estimators.base import EstimatorState
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.policies import Adaptive, FixedDepth, Policy, StepBatch
from avsim.simulate import Arm, simulate
from avsim.types import F32Array, IntArray, observe
from avsim.workload import Pool

HERE = Path(__file__).parent
LOADS = (1, 2, 4, 8)
REPLICATES, REQUESTS = 14, 512  # of each; requests are fresh in every replicate
REAL_PER_REPLICATE = 2  # the real loop is the cheaper one, so it serves more requests
MODELS = {"plain": Markov("plain", 1), "forking": Markov("forking", 2)}
CARD = CostCard("made-up", "", "", "synthetic", "made up for this experiment")
CONTROL, STALE, HIDDEN, LIVE = "fixed:3", "adaptive, lag 1", "adaptive, lag 1, trimmed hidden", "adaptive, lag 0"
SETTINGS = {
    ("plain", "linear"): (CONTROL, STALE),
    ("forking", "linear"): (CONTROL, STALE, HIDDEN),
    ("forking", "staircase"): (CONTROL, STALE, HIDDEN, LIVE),
}
COLUMNS = (
    "model", "cost", "policy", "concurrency", "throughput_ratio", "low", "high",
    "al_ratio", "al_low", "al_high", "al_real", "al_simulated", "verified_per_req_real", "verified_per_req_simulated",
    "real_over_lag1", "real_over_lag1_low", "real_over_lag1_high",
)  # fmt: skip
LAW_COLUMNS = ("model", "cost", "policy", "concurrency", "tokens", "mean_shift", "shift_se", "chi2_p")


@dataclass(frozen=True)
class HideTrimmed(Adaptive):
    """`adaptive` that sizes the slots behind the first trimmed one of the block before by the slot's mean confidence.

    It keeps state from step to step, so one instance serves one run.
    """

    name: ClassVar[str] = "adaptive:hide-trimmed"
    mean: F32Array = field(kw_only=True)
    _before: list[IntArray] = field(default_factory=list)

    def admit(self, step: StepBatch) -> IntArray:
        sizing = step.sizing
        if self._before:
            slot = np.arange(len(sizing))[:, None, None]
            fresh = (sizing == 1).all(axis=0)  # a new request, sized at 1
            hidden = (slot > self._before.pop()) & ~fresh
            sizing = np.where(hidden, self.mean[:, None, None], sizing)
        changed = StepBatch(
            step.live, sizing, step.num_drafted, step.num_reqs, step.num_sampling, step.num_target_tokens, step.tables
        )
        admitted = super().admit(changed)
        self._before.append(admitted)
        return admitted


@dataclass(frozen=True)
class Frozen:
    """The calibrated estimator, which never learns: `online-logistic` without a refit, and its confidences."""

    estimator: OnlineLogistic
    state: EstimatorState
    confidence: F32Array
    mean: F32Array
    acceptance: tuple[float, ...]


def frozen(model: Markov, folder: Path) -> Frozen:
    """Calibrate on a trace of its own, and tabulate the confidence of every context."""
    pool = Pool.from_trace(dense_trace(folder / "calibration", model, 2 * REQUESTS, 999), ["log_odds"])
    feature = pool.features["log_odds"]
    observed, label = observe(pool.num_recorded, pool.num_accepted, K, pool.unfit)
    slope, intercepts = calibrate(feature, observed, label)
    estimator = OnlineLogistic(refit_interval=1 << 40)
    params = {"slope": np.array([slope], dtype=np.float32), "intercepts": intercepts.astype(np.float32)}
    state = EstimatorState(params, estimator.zero_stats(K))
    everywhere = {"log_odds": np.broadcast_to(model.log_odds, (K, len(model.log_odds)))}
    confidence = estimator.predict(params, everywhere, (K, len(model.log_odds)))
    mean = estimator.predict(params, {"log_odds": feature}, feature.shape).mean(axis=1, dtype=np.float64)
    rates = tuple(float(label[k][observed[k]].mean()) for k in range(K))
    return Frozen(estimator, state, confidence, mean.astype(np.float32), rates)


def policy_of(arm: str, how: Frozen) -> Policy:
    if arm == CONTROL:
        return FixedDepth(3)
    return HideTrimmed(mean=how.mean) if arm == HIDDEN else Adaptive()


def lag_of(arm: str) -> int:
    return 0 if arm == LIVE else 1


def cost_of(name: str, load: int) -> CostModel:
    """Return 2 ms per request and 1 ms per token; the staircase pads tokens to 1, 2, 4 or 6 times the load.

    It grows with the load, so that what a slot is worth does not change with it.
    """
    if name == "linear":
        return LinearCost(fixed_ms=2.0 * load, per_token_us=1000.0, card=CARD)
    verify = tuple((size * load, (1.0 + size) * load) for size in (1, 2, 4, 6))
    return CurveCost(verify=verify, draft=((load, float(load)),), card=CARD)


def lanes_of(load: int) -> int:
    """Return how many engines share a replicate's requests: each serves 16 per seat."""
    return REQUESTS // (16 * load)


def measures(ms, emitted, blocks, admitted, accepted) -> np.ndarray:
    """Return throughput, AL and verified slots per request and step of one replicate."""
    ms, emitted, blocks, admitted, accepted = (np.sum(a) for a in (ms, emitted, blocks, admitted, accepted))
    return np.array([emitted / ms * 1e3, 1 + accepted / blocks, admitted / blocks])


def simulated(
    model: Markov, how: Frozen, costs: dict[str, tuple[str, ...]], seed: int, folder: Path
) -> dict[tuple, np.ndarray]:
    """Walk one dense trace at all loads under all arms."""
    pool = Pool.from_trace(dense_trace(folder / f"{seed}", model, REQUESTS, seed), ["log_odds"])
    order, found = np.random.default_rng([seed, 5]).permutation(REQUESTS), {}
    for cost, arms in costs.items():
        for load in LOADS:
            sequences = order.reshape(lanes_of(load), -1)
            for arm in arms:
                one = Arm(policy_of(arm, how), how.estimator, lag_of(arm))
                states = [how.state] * len(sequences)
                total = simulate(pool, one, sequences, load, cost_of(cost, load), states=states).full
                found[cost, load, arm] = measures(total.ms, total.emitted, total.blocks, total.admitted, total.accepted)
    return found


def real(model: Markov, how: Frozen, cost: str, load: int, arm: str, seed: list[int]) -> tuple[np.ndarray, IntArray]:
    """Serve all replicates side by side; return their measures `[replicates, 3]` and the test of the law."""
    lanes, rng = lanes_of(load), np.random.default_rng(seed)
    count, replicates = REQUESTS // lanes, REPLICATES * REAL_PER_REPLICATE
    done = serve(
        model,
        policy_of(arm, how),
        how.confidence,
        lag_of(arm),
        load,
        lanes * replicates,
        count,
        cost_of(cost, load),
        rng,
    )
    by_replicate = [
        column.reshape(replicates, lanes)
        for column in (done.ms, done.emitted, done.blocks, done.admitted, done.accepted)
    ]
    return np.array([measures(*parts) for parts in zip(*by_replicate, strict=True)]), done.law


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of two means and its 95 % interval from independent replicates (Welch, on logarithms)."""
    a, b = np.log(above), np.log(below)
    test = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return tuple(float(np.exp(x)) for x in (a.mean() - b.mean(), test.low, test.high))


def law_row(counts: IntArray) -> tuple[int, float, float, float]:
    """Return tokens, the mean of u − ½ with its standard error, and the χ² test's p."""
    total = int(counts.sum())
    middle = (np.arange(LAW_BINS) + 0.5) / LAW_BINS
    return (
        total,
        float(counts @ middle / total - 0.5),
        float((12 * total) ** -0.5),
        float(stats.chisquare(counts).pvalue),
    )


def table(rows: list[dict], cell: Callable[[dict], str]) -> str:
    """Return Markdown: one line per setting and policy, one column per load."""
    head = ["model", "cost", "policy", *(f"{load} request{'s' * (load > 1)}" for load in LOADS)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for (model, cost), arms in SETTINGS.items():
        for arm in arms:
            mine = [row for row in rows if (row["model"], row["cost"], row["policy"]) == (model, cost, arm)]
            lines.append("| " + " | ".join([model, cost, arm, *map(cell, mine)]) + " |")
    return "\n".join(lines)


def bias(row: dict) -> str:
    return "{:+.2f} % ({:+.2f} … {:+.2f})".format(*((row[key] - 1) * 100 for key in COLUMNS[4:7]))


def course(row: dict) -> str:
    return "{:.3f} / {:.3f}, {:.2f} / {:.2f}".format(*(row[key] for key in COLUMNS[10:14]))


def against_lag1(row: dict) -> str:
    if row["policy"] == STALE:
        return "reference"
    return "{:+.2f} % ({:+.2f} … {:+.2f})".format(*((row[key] - 1) * 100 for key in COLUMNS[14:]))


def law(row: dict) -> str:
    return f"{row['mean_shift'] / row['shift_se']:+.1f}, p = {row['chi2_p']:.2g}"


def write(name: str, columns: tuple[str, ...], rows: list[dict]) -> None:
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(
            {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
            for row in rows
        )


def main() -> None:
    results, laws, rates, start = [], [], [], time.perf_counter()
    served: dict[tuple, tuple[np.ndarray, IntArray]] = {}
    for number, (name, model) in enumerate(MODELS.items()):
        costs = {cost: arms for (which, cost), arms in SETTINGS.items() if which == name}
        if tracer_agrees(model) != 1:
            raise SystemExit(f"{name}: the blocks drawn here are not those of avsim's dense tracer")
        with tempfile.TemporaryDirectory() as folder:
            how = frozen(model, Path(folder))
            rates.append(
                f"`{name}`: conditional acceptance per slot {', '.join(f'{rate:.2f}' for rate in how.acceptance)}; "
                f"fitted slope {float(how.state.params['slope'][0]):.2f}; mean confidence per slot "
                f"{', '.join(f'{value:.2f}' for value in how.mean)}"
            )
            print(rates[-1], file=sys.stderr)
            walked = defaultdict(list)
            for replicate in range(REPLICATES):
                for key, value in simulated(model, how, costs, 1000 * (number + 1) + replicate, Path(folder)).items():
                    walked[key].append(value)
                print(f"{name}: trace {replicate + 1} at {time.perf_counter() - start:.0f} s", file=sys.stderr)
        for cost, arms in costs.items():
            for at, arm in enumerate(arms):
                for load in LOADS:
                    served[arm, load] = real(model, how, cost, load, arm, [number, at, load, len(cost)])
            for arm in arms:
                for load in LOADS:
                    truth, counts = served[arm, load]
                    change = ratio(truth[:, 0], served[STALE, load][0][:, 0])
                    guess = np.array(walked[cost, load, arm])
                    fast, longer = ratio(guess[:, 0], truth[:, 0]), ratio(guess[:, 1], truth[:, 1])
                    means = (truth[:, 1].mean(), guess[:, 1].mean(), truth[:, 2].mean(), guess[:, 2].mean())
                    where = (name, cost, arm, load)
                    results.append(
                        dict(zip(COLUMNS, (*where, *fast, *longer, *map(float, means), *change), strict=True))
                    )
                    laws.append(dict(zip(LAW_COLUMNS, (*where, *law_row(counts)), strict=True)))
                    print(results[-1], laws[-1], f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    write("results.csv", COLUMNS, results)
    write("law.csv", LAW_COLUMNS, laws)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    models = "\n".join(f"- {line}" for line in rates)
    parts = {
        "table": table(results, bias),
        "loop": table(results, course),
        "real": table(results, against_lag1),
        "law": table(laws, law),
        "models": models,
    }
    for mark, body in parts.items():
        pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
        text = pattern.sub(lambda found, body=body: f"{found[1]}{body}\n{found[2]}", text)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
