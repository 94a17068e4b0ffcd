"""What comparisons of estimators say in words, the same on the console and in the report."""

from __future__ import annotations

from typing import Any

from avsim.comparison.drift import SCENARIOS, TOLERANCE

__all__ = [
    "SHORT_STANDING",
    "arm_text",
    "bias_of",
    "change_text",
    "headline",
    "labelled_text",
    "marked",
    "marked_spec",
    "marks",
    "notes",
    "recovery_text",
]

SHORT_STANDING = {
    "best": "best",
    "not distinguishable from the best": "≈ best",
    "worse": "worse",
    "not enough requests": "too few",
}


def headline(result: dict[str, Any]) -> str:
    """Return one line that says which trace, which walk, and what kind of result."""
    mark = "WHAT IF: " * result["what_if"] + "SYNTHETIC " * result["synthetic"]
    costs = f" on step costs {result['cost']}" if result["cost"] and result["admission"] != "full" else ""
    who = f" by {result['admission_estimator']}" if result["admission_estimator"] else ""
    served = f"{result['concurrency']} requests at once, " if result["concurrency"] else ""
    many = f", {result['walks']} starting offsets" if result["walks"] > 1 else ""
    return (
        f"{mark}{result['trace']}: {result['admission']} admission{who}{costs}, {served}{result['steps']} steps"
        f"{many}, {result['num_sources']} distinct requests"
    )


def marked(row: dict[str, Any]) -> str:
    """Return an estimator's name with its marks."""
    return row["estimator"] + "*" * (not row["attainable"]) + "†" * (not row["exact"])


def marked_spec(result: dict[str, Any], spec: str) -> str:
    """Return an estimator's spec with the marks that it has among the scores."""
    return next(marked(row) for row in result["rows"] if row["estimator"] == spec)


def arm_text(result: dict[str, Any], row: dict[str, Any]) -> str:
    """Return a simulated arm's name with its marks."""
    if row["estimator"] is None:
        return str(row["arm"]) + "*" * (not row["attainable"])
    marks_of = marked_spec(result, row["estimator"])[len(row["estimator"]) :]
    return f"{row['arm']}{marks_of}"


def marks(result: dict[str, Any]) -> list[str]:
    """Return what the marks in use mean."""
    found = []
    if any(not row["attainable"] for row in result["rows"]):
        found.append("* reads the verdict or what only the target knows, so no engine can run it: a bound")
    lossy = {row["why"] for row in result["rows"] if not row["exact"]}
    found += [f"† LOSSY with this trace's sampled drafts: {why}" for why in sorted(lossy)]
    return found


def change_text(row: dict[str, Any], name: str) -> str:
    """Return a change in % with its interval, or nothing for the reference itself."""
    value, low, high = (row.get(f"{name}{part}_pct") for part in ("", "_low", "_high"))
    if value is None or low is None or high is None:
        return ""
    shown = (f"{round(number, 1) + 0.0:+.1f}".replace("-", "−") for number in (value, low, high))  # no "-0.0"
    return "{} % ({} … {})".format(*shown)


def recovery_text(row: dict[str, Any]) -> str:
    """Return when an estimator was as good again as its twin."""
    if row["scenario"] != "switch":
        return "–"
    return f"not within {row['steps']} steps" if row["recovery_steps"] is None else f"{row['recovery_steps']} steps"


def bias_of(scores: dict[str, Any]) -> float | None:
    """Return mean confidence − share accepted, or None where nothing was scored."""
    return None if not scores["count"] else float(scores["mean_confidence"] - scores["acceptance"])


def labelled_text(result: dict[str, Any]) -> str:
    """Return how often each slot got a label."""
    parts = (
        f"slot {line['slot']}: {line['share_of_blocks'] * 100:.0f} % of blocks, longest gap {line['longest_gap_steps']}"
        for line in result["labelled"]
    )
    return f"labels under this admission: {'; '.join(parts)} steps"


def _greedy(result: dict[str, Any]) -> bool:
    return bool(result["draft_sampling"] == "greedy")


def notes(result: dict[str, Any]) -> list[str]:
    """Return what a reader must know about the numbers."""
    found = [
        "log-loss in nats on every slot that a verdict reaches, verified or not; 'survival' scores the cumulative "
        f"product on verified slots; ECE debiased, {result['ece_bins']} equal-mass bins",
        "intervals: 95 %, from resampled source requests, the walk and what was learned held fixed; standing: model "
        "confidence set at 95 % among estimators that an engine can run without loss",
    ]
    if result["kind"] == "on-policy":
        found.append("on-policy trace: the blocks and labels of the engine's own run")
    if result["left_out"]:
        found.append("throughput and drift are left out: only a dense trace can be served otherwise than it was")
    if any(row["start"] == "cross-fitted" for row in result["rows"]):
        found.append("cross-fitted: learned offline on the other half of the requests, not while serving")
    if result["masked_share"]:
        share = f"{result['masked_share'] * 100:.1f} % of blocks are masked"
        found.append(f"{share}: not scored, and {'' if result['masked'] == 'include' else 'not '}learned from")
    if result["throughput"]:
        found.append(
            "throughput is SIMULATED at full concurrency on half of the requests, after learning on the other half, on "
            f"step costs {result['step_costs']}; AV's own overhead is not charged; faster and slower: each interval by "
            "itself, not allowing for how many arms are compared"
        )
        found.append(
            "budget and allocation regret: in hindsight, per step in the states reached; chance is part of both"
        )
    if result["explain"]:
        found.append(
            "rungs: each change is against the rung above; those above staleness size on live confidences"
            + (", which is lossy with sampled drafts, so staleness comes out too large" * (not _greedy(result)))
        )
    if any(line["rung"] == "chance" for line in result["explain"]):
        found.append(
            "chance and features: the trace knows the probability only where verification reached, elsewhere its mean "
            "stands in, so chance comes out too large and features too small"
        )
    if result["drift"]:
        scenarios = "; ".join(f"{name}: {text}" for name, text in SCENARIOS.items())
        found.append(
            "excess: log-loss above that of a twin that knows each kind of traffic already; recovered: within "
            f"{TOLERANCE * 100:.0f} % of it for good. {scenarios}. In slow and mixed a twin "
            "learns from its own kind only: below 0, sharing has helped more than it has cost"
        )
    return marks(result) + found
