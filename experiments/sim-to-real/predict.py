"""Step 3: what avsim's simulator says of every arm at every load, written down before anything is measured."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import settings
import workshop
from profile_steps import load_cost
from settings import Cell
from workshop import Workshop, kv_tokens_per_req, say

from avsim.costs.base import CostModel
from avsim.estimators.base import EstimatorState
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.workload import Pool, requests_for


def predict(shop: Workshop) -> None:
    """Write `predictions.json`, unless it is there.

    Raises:
        SystemExit: something was measured already.
    """
    if shop.predictions_file.exists():
        return
    if shop.blocks:
        raise SystemExit(f"{shop.out}/measured holds measured blocks; predictions must come before them")
    made: dict[str, Any] = {
        "written": settings.now(),
        "settings": settings.sha256([shop.setup.file]),
        "source": settings.source_hash(),
        "traces": {},
        "costs": {},
        "cells": {},
    }
    for name, temperature in shop.setup.conditions:
        key, files = settings.condition_name(name, temperature), shop.trace(name, temperature).iterdir()
        made["traces"][key] = settings.sha256([file for file in files if file.is_file()])
        made["costs"][key] = settings.sha256([shop.cost_file(name, temperature)])
    for cell in shop.setup.cells:
        say(f"predict {cell.name}")
        made["cells"][cell.name] = predict_cell(shop, cell)
    settings.write_json(shop.predictions_file, made)


def predict_cell(shop: Workshop, cell: Cell) -> dict[str, Any]:
    """Simulate every arm of a cell on the same replicates: samples of the calibration requests as large as a block."""
    pool = shop.pool(cell.drafter, cell.temperature)
    cost, overheads = load_cost(shop, cell.drafter, cell.temperature)
    count = min(cell.num_requests, len(pool.start))
    rng = np.random.default_rng([shop.setup.seed, len(pool.start), count])
    total = len(pool.start)
    sequences = np.array([settings.balanced(total, count, rng) for _ in range(shop.setup.replicates)])
    found: dict[str, Any] = {"kv_tokens_per_req": kv_tokens_per_req(pool), "requests": count, "arms": {}}
    base = None
    for spec in cell.arms:
        arm = settings.make_arm(spec)
        pool = shop.pool(cell.drafter, cell.temperature, settings.slots_of(spec, shop.setup.num_slots))
        extra = overheads.get(settings.plain_name(spec))
        arm = replace(arm, **extra) if extra else arm
        state = warm_state(shop, pool, arm, cell, cost)
        states = None if state is None else [state] * len(sequences)
        result = simulate(pool, arm, sequences, cell.concurrency, cost, states=states, engine="numpy", log=True)
        throughput = result.full.throughput_tok_s
        base = throughput if base is None else base
        found["arms"][spec] = summarise(result, throughput / base) | {
            "state": None if state is None else state.to_json()
        }
    return found


def warm_state(shop: Workshop, pool: Pool, arm: Arm, cell: Cell, cost: CostModel) -> EstimatorState | None:
    """Return the estimator after some refits on the calibration trace: what the run is begun with, too."""
    if arm.estimator is None:
        return None
    steps = shop.setup.warm_refits * arm.estimator.refit_interval
    needed = requests_for(pool, cell.concurrency, steps)
    rng = np.random.default_rng([shop.setup.seed, 0x3A])
    order = np.concatenate([rng.permutation(len(pool.start)) for _ in range(-(-needed // len(pool.start)))])
    result = simulate(pool, arm, order[None], cell.concurrency, cost, max_steps=steps, engine="numpy")
    return result.states[0]


def summarise(result: SimulationResult, ratio: np.ndarray) -> dict[str, Any]:
    """Return what is compared with the measurement: means over replicates of the window at full concurrency."""
    full, work = result.full, result.work
    reqs = work.reqs.astype(np.float64)
    return {
        "throughput_tok_s": float(full.throughput_tok_s.mean()),
        "ratio": float(ratio.mean()),
        "ratio_sd": float(ratio.std(ddof=1)),
        "ratios": [round(float(one), 5) for one in ratio],
        "step_ms": float((full.ms / full.steps).mean()),
        "emitted_per_req": float((full.emitted / reqs).mean()),
        "accepted_per_req": float((full.accepted / reqs).mean()),
        "verified_per_req": float((full.admitted / reqs).mean()),
        "drafted_per_req": float((full.drafted / reqs).mean()),
        "seconds": float(result.clock_ms.mean() / 1e3),
    }


if __name__ == "__main__":
    predict(workshop.parse(sys.argv[1]))
