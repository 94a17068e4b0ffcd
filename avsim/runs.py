"""A run from its config to its folder: load, simulate, summarise, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from avsim.config import ReplayConfig
from avsim.costs import CostModel, dump, load
from avsim.errors import InputError
from avsim.manifest import check_hashes, json_text, make_manifest, sha256_json, write_folder
from avsim.registry import suggest
from avsim.replay import replay
from avsim.report.chrome_trace import chrome_trace
from avsim.report.open_summary import open_summary
from avsim.report.summary import served_summary
from avsim.sources import open_trace, validate_trace
from avsim.study import NamedArm, build_arms, make_study, max_total_logits
from avsim.study_run import run_study
from avsim.what_if import check_match

__all__ = ["ReplayRun", "pick_traced", "run_replay", "traced_run", "write_run"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What a replay produced."""

    config: ReplayConfig
    manifest: dict[str, Any]
    summary: dict[str, Any]
    steps: pl.DataFrame | None
    calibration: pl.DataFrame | None


def run_replay(
    config: ReplayConfig,
    *,
    progress: Progress = lambda done, total, what: None,
    workers: int | None = None,
    expect: dict[str, Any] | None = None,
) -> ReplayRun:
    """Run a replay.

    Args:
        config: what to run.
        progress: called with (arms done, arms in all, what was done).
        workers: processes of a closed loop; None for one per core. The result does not depend on it.
        expect: a manifest whose inputs must be the ones at hand.

    Raises:
        InputError: bad config or inputs.
    """
    trace = open_trace(config.trace)
    truth = load(config.cost)
    belief = load(config.belief) if config.belief else None
    inputs = {"trace": str(trace.card.content_hash), "cost": _hash(truth)}
    if belief is not None:
        inputs["belief"] = _hash(belief)
    if expect is not None:
        validate_trace(config.trace)  # the card's hash is worth something only if the tables still have it
        check_hashes(expect, inputs)
    check_match(trace, truth, config.what_if, num_slots=config.num_slots)
    slots = config.num_slots or trace.card.num_speculative_tokens
    if slots > trace.card.num_speculative_tokens:
        raise InputError(
            f"{trace.path}: K = {slots} asked for, but the trace holds K = {trace.card.num_speculative_tokens}"
        )
    arms = build_arms(config, slots)
    manifest = make_manifest("replay", config.to_json(), inputs)
    if config.loop == "open":
        vocab = config.vocab or truth.card.vocab_size or trace.card.vocab_size
        results = replay(
            trace,
            [item.arm for item in arms],
            truth,
            belief=belief,
            num_slots=config.num_slots,
            max_total_logits=max_total_logits(vocab),
            warm_refits=config.warm_refits,
        )
        progress(len(arms), len(arms), "open loop")
        return ReplayRun(config, manifest, open_summary(trace, config, truth, belief, arms, results), None, None)
    study, loads = make_study(trace, config, arms)
    found = run_study(study, loads, arms, progress=progress, workers=workers)
    summary = served_summary(trace, config, study, arms, found)
    ordered = [found.arms[load.name][item.name] for load in loads for item in arms]
    reliability = [item.reliability for item in ordered if item.reliability is not None]
    steps = pl.concat([item.steps for item in ordered])
    return ReplayRun(config, manifest, summary, steps, pl.concat(reliability) if reliability else None)


def write_run(run: ReplayRun, path: Path, *, overwrite: bool = False) -> None:
    """Write a run folder as a whole: manifest, config, summary, per-step and calibration tables, HTML report.

    Raises:
        InputError: the folder exists or cannot be written.
    """
    from avsim.report.html import html_report

    report = html_report(run.summary, run.manifest, run.calibration)

    def fill(folder: Path) -> None:
        (folder / "manifest.json").write_text(json_text(run.manifest), encoding="utf-8")
        (folder / "config.toml").write_text(run.config.to_toml(), encoding="utf-8")
        (folder / "summary.json").write_text(json_text(run.summary), encoding="utf-8")
        (folder / "report.html").write_text(report, encoding="utf-8")
        if run.steps is not None:
            run.steps.write_parquet(folder / "steps.parquet", compression="zstd")
        if run.calibration is not None:
            run.calibration.write_parquet(folder / "calibration.parquet", compression="zstd")

    write_folder(path, fill, overwrite=overwrite)


def pick_traced(config: ReplayConfig, wanted: str | None) -> tuple[NamedArm, str, list[NamedArm]]:
    """Return the arm and the load whose steps are to be traced, and all arms.

    Args:
        wanted: `ARM` or `ARM@LOAD`, by the names in the tables; None for the first judged arm and the last load.

    Raises:
        InputError: no such arm or load, or recorded batches.
    """
    if config.loop == "open":
        raise InputError("a trace of steps is made of the simulated engine, which --loop open does without")
    slots = config.num_slots or open_trace(config.trace).card.num_speculative_tokens
    arms = build_arms(config, slots)
    loads = list(config.arrivals or map(str, config.concurrency))
    name, _, load = (wanted or "").rpartition("@") if "@" in (wanted or "") else (wanted or "", "", loads[-1])
    if load not in loads:
        raise InputError(f"no load {load!r} to trace{suggest(load, loads)}")
    found = [item for item in arms if (item.name == name if name else item.judged)]
    if not found:
        raise InputError(f"no arm {name!r} to trace{suggest(name, [item.name for item in arms])}")
    return found[0], load, arms


def traced_run(config: ReplayConfig, wanted: str | None) -> str:
    """Simulate the main run of one arm at one load and return its steps in the Trace Event Format, as JSON text.

    Raises:
        InputError: see `pick_traced`.
    """
    item, name, arms = pick_traced(config, wanted)
    study, loads = make_study(open_trace(config.trace), config, arms)
    load = next(load for load in loads if load.name == name)
    times, log = study.first_run(item, load)
    return chrome_trace(log, times, f"{item.name} at {name}", study.pool)


def _hash(model: CostModel) -> str:
    return sha256_json(dump(model))
