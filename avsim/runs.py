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
from avsim.replay import replay
from avsim.report.open_summary import open_summary
from avsim.report.summary import closed_summary
from avsim.sources import open_trace, validate_trace
from avsim.study import build_arms, max_total_logits, run_closed
from avsim.what_if import check_match

__all__ = ["ReplayRun", "run_replay", "write_run"]

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
    check_match(trace, truth, config.what_if)
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
    found = run_closed(trace, config, arms, progress=progress, workers=workers)
    summary = closed_summary(trace, config, truth, belief, arms, found)
    ordered = [found[concurrency][item.name] for concurrency in config.concurrency for item in arms]
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


def _hash(model: CostModel) -> str:
    return sha256_json(dump(model))
