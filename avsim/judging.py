"""From simulated arms to what can be said of them: verdicts, the price of a wrong belief, and the cliff's share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from avsim.config import ReplayConfig
from avsim.loads import Load
from avsim.metrics.economy import Engine, savings
from avsim.metrics.intervals import CONFIDENCE, ratio_interval
from avsim.metrics.serving import Measures, grows
from avsim.metrics.verdict import LOWER_IS_BETTER, MIN_SOURCES, Metric, Verdict, judge, judge_ratios, with_overhead
from avsim.simulate import Totals, Work
from avsim.study import Halves, NamedArm
from avsim.study_run import StudyResult
from avsim.types import F64Array, IntArray

__all__ = [
    "Rival",
    "belief_costs",
    "cliff_reached",
    "cliff_shares",
    "pick_measures",
    "rivals",
    "saturated",
    "savings_at_load",
    "verdicts_at_load",
]


@dataclass(frozen=True, slots=True)
class Rival:
    """What a policy is compared with: the policy's own runs and the rival's, paired.

    Attributes:
        against: how the rival is called.
        mine, theirs: on the same samples.
        num_sources: distinct source requests behind run 0.
        hindsight: the rivals among which one was chosen, on all requests; empty where nothing was chosen.
    """

    against: str
    mine: Measures
    theirs: Measures
    num_sources: int
    hindsight: tuple[Measures, ...] = ()


def pick_measures(measures: Sequence[Measures], choice: IntArray) -> Measures:
    """Return, for every run, the measures of the arm chosen for it; `choice` is `[runs]`."""

    def pick(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Totals | Work):
            names = [item.name for item in fields(values[0])]
            return type(values[0])(**{name: pick([getattr(value, name) for value in values]) for name in names})
        return np.stack(values)[choice, np.arange(len(choice))]

    return Measures(**{item.name: pick([getattr(one, item.name) for one in measures]) for item in fields(Measures)})


def value_of(metric: Metric, measures: Measures) -> F64Array:
    """Return a metric of each run."""
    if metric == "throughput":
        return measures.totals.throughput_tok_s
    return measures.tpot_ms if metric == "mean TPOT" else measures.ttft_p95_ms


def first_metric(load: Load) -> Metric:
    """Return what arms are compared by first: with arrivals of their own, throughput is theirs and not the arm's."""
    return "throughput" if load.process is None else "mean TPOT"


def rivals(
    item: NamedArm,
    own: Halves,
    halves: Mapping[str, Halves],
    fixed: Sequence[str],
    num_sources: tuple[int, int],
    load: Load,
) -> list[Rival]:
    """Return what an arm is compared with: `none`, and the best fixed depth.

    The best depth is chosen on the calibration half and compared on the judged half, again in every replicate.

    Args:
        own: the arm's results.
        halves: those of the arms to compare with.
        fixed: names of the fixed depths.
        num_sources: distinct source requests in the whole pool and in the judged half.
    """
    found = []
    if "none" in halves and item.name != "none":
        found.append(Rival("none", own.whole, halves["none"].whole, num_sources[0]))
    if fixed:
        metric = first_metric(load)
        chosen_on = [calibration for name in fixed if (calibration := halves[name].calibration)]
        values = np.array([value_of(metric, calibration) for calibration in chosen_on])
        best = values.argmin(axis=0) if metric in LOWER_IS_BETTER else values.argmax(axis=0)
        chosen = pick_measures([halves[name].judged for name in fixed], best)
        against = f"best fixed ({fixed[best[0]]})"
        whole = tuple(halves[name].whole for name in fixed)
        found.append(Rival(against, own.judged, chosen, num_sources[1], whole))
    return found


def verdicts_at_load(
    arms: Sequence[NamedArm], result: StudyResult, load: Load, num_sources: tuple[int, int], config: ReplayConfig
) -> list[Verdict]:
    """Judge each judged arm against `none`, and against the best fixed depth."""
    halves = {name: found.halves for name, found in result.arms[load.name].items()}
    fixed = [item.name for item in arms if item.fixed]
    found = []
    for item in arms:
        if not item.judged or item.name == "none":
            continue
        for rival in rivals(item, halves[item.name], halves, fixed, num_sources, load):
            if load.process is None:
                found.append(_closed_verdict(item, rival, halves[item.name].whole, config))
            else:
                varied = result.variants.get(("overhead", load.name, item.name))
                found += _open_verdicts(item, rival, varied)
    return found


def _closed_verdict(item: NamedArm, rival: Rival, whole: Measures, config: ReplayConfig) -> Verdict:
    reads = item.arm.policy.uses_confidence
    mine, theirs = rival.mine.totals, rival.theirs.totals
    known = config.overhead_is_known or not reads
    per_step = float(rival.mine.work.reqs[0] / mine.steps[0]) * item.arm.overhead_us_per_req * 1e-3
    verdict = judge(
        item.name, rival.against, mine, theirs, rival.num_sources, 0.0 if known else None,
        included_ms=item.arm.overhead_ms + per_step,
    )  # fmt: skip
    if not rival.hindsight:
        return verdict
    ceiling = max(float(one.totals.throughput_tok_s[0]) for one in rival.hindsight)
    return replace(verdict, hindsight_ratio=float(with_overhead(whole.totals, 0.0)[0]) / ceiling)


def _open_verdicts(item: NamedArm, rival: Rival, varied: Halves | None) -> list[Verdict]:
    found = []
    metrics: tuple[Metric, ...] = ("mean TPOT", "p95 TTFT", "throughput")
    for metric in metrics:
        mine, theirs = value_of(metric, rival.mine), value_of(metric, rival.theirs)
        if metric == "throughput" and not (grows(rival.mine) or grows(rival.theirs)):
            continue  # it is that of the arrivals
        if not ((mine > 0).all() and (theirs > 0).all()):
            continue  # nobody waited for a first token, say
        doubtful = None
        if varied is not None:
            doubtful = value_of(metric, varied.judged if rival.hindsight else varied.whole) / theirs
        found.append(judge_ratios(item.name, rival.against, metric, mine / theirs, rival.num_sources, doubtful))
    return found


def savings_at_load(
    arms: Sequence[NamedArm], result: StudyResult, load: Load, num_sources: tuple[int, int], engine: Engine
) -> list[dict[str, Any]]:
    """Return what each judged arm spends per token, over what `none` and the best fixed depth spend."""
    halves = {name: found.halves for name, found in result.arms[load.name].items()}
    fixed = [item.name for item in arms if item.fixed]
    found = []
    for item in arms:
        if item.judged and item.name != "none":
            against = rivals(item, halves[item.name], halves, fixed, num_sources, load)
            found += savings(item.name, [(rival.against, rival.mine, rival.theirs) for rival in against], engine)
    return found


def saturated(result: StudyResult, load: Load) -> list[str]:
    """Return the arms whose queue grew while requests arrived."""
    if load.process is None:
        return []
    return [name for name, found in result.arms[load.name].items() if grows(found.halves.whole)]


def belief_costs(arms: Sequence[NamedArm], result: StudyResult, load: Load) -> list[dict[str, Any]]:
    """Return what each judged arm loses because it reads a wrong cost table: believed over true, with an interval."""
    found = []
    for item in arms:
        varied = result.variants.get(("true-belief", load.name, item.name))
        if varied is None:
            continue
        metric = first_metric(load)
        mine = value_of(metric, result.arms[load.name][item.name].halves.whole)
        ratios = mine / value_of(metric, varied.whole)
        interval = ratio_interval(float(ratios[0]), np.asarray(ratios[1:]))
        found.append(
            {
                "policy": item.name,
                "metric": metric,
                "ratio": interval.ratio,
                "low": interval.low,
                "high": interval.high,
                "word": _word(metric, interval.low, interval.high),
            }
        )
    return found


def _word(metric: Metric, low: float, high: float) -> str:
    if low == high == 1:
        return "no difference"
    if low <= 1 <= high:
        return "not distinguishable"
    return "costs" if (low > 1) == (metric in LOWER_IS_BETTER) else "helps"


def cliff_shares(
    arms: Sequence[NamedArm], result: StudyResult, load: Load, num_sources: tuple[int, int], verdicts: Sequence[Verdict]
) -> list[dict[str, Any]]:
    """Split each gain into cliff avoidance and the rest.

    With r the ratio of the metric, and r' the same where the cost model goes on past the capture limit as before:
    share of cliff avoidance = 1 − log r' / log r. Its interval is normal, from the spread over replicates. It is given
    for gains only; below none the cliff's part is not a share of anything.
    """
    kind = "no-cliff"
    halves = {name: found.halves for name, found in result.arms[load.name].items()}
    flat = {name: result.variants.get((kind, load.name, name), found) for name, found in halves.items()}
    if not any((kind, load.name, name) in result.variants for name in halves):
        return []
    fixed = [item.name for item in arms if item.fixed]
    metric = first_metric(load)
    gains = {(v.policy, v.against) for v in verdicts if v.word.startswith("gain") and v.metric == metric}
    found = []
    for item in arms:
        if not item.judged or item.name == "none":
            continue
        pairs = zip(
            rivals(item, halves[item.name], halves, fixed, num_sources, load),
            rivals(item, flat[item.name], flat, fixed, num_sources, load),
            strict=True,
        )
        for with_cliff, without in pairs:
            if min(with_cliff.num_sources, without.num_sources) < MIN_SOURCES:
                continue
            cliff, plain = (_log_gain(rival, metric) for rival in (with_cliff, without))
            share = None
            if (item.name, with_cliff.against) in gains:
                share = _share(cliff, plain)
            interval = ratio_interval(float(np.exp(plain[0])), np.exp(plain[1:]))
            found.append(
                {
                    "policy": item.name,
                    "against": with_cliff.against,
                    "against_without_cliff": without.against,
                    "metric": metric,
                    "gain_ratio": float(np.exp(cliff[0])),
                    "gain_ratio_without_cliff": interval.ratio,
                    "low_without_cliff": interval.low,
                    "high_without_cliff": interval.high,
                    "share_pct": share,
                }
            )
    return found


def cliff_reached(result: StudyResult, load: Load, limit: int | None) -> bool | None:
    """Return whether a step of a load passed the capture limit, or would have untrimmed; None where there is none."""
    if limit is None:
        return None
    return any(kind == "no-cliff" and name == load.name for kind, name, _ in result.variants)


def _log_gain(rival: Rival, metric: Metric) -> F64Array:
    ratios = np.log(value_of(metric, rival.mine) / value_of(metric, rival.theirs))
    return -ratios if metric in LOWER_IS_BETTER else ratios


def _share(cliff: F64Array, plain: F64Array) -> dict[str, float]:
    shares = 100 * (1 - plain / cliff)
    half = float(ndtri(0.5 + CONFIDENCE / 2)) * float(shares[1:].std(ddof=1))
    return {"value": float(shares[0]), "low": float(shares[0]) - half, "high": float(shares[0]) + half}
