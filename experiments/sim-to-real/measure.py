"""Step 4: the measured run. Blocks of one cell; in a block, all arms take short turns in random order.

A turn lasts until an arm has emitted its quota of tokens, so all arms advance alike through the same requests, and a
machine that slows down does so for all of them. `none again` is `none` once more, with a cache of its own: what it
differs by is the noise of the measurement. Finished blocks stay; a killed run goes on with the next one.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import settings
import workshop
from driver.engine import Engine, Step, measure_until
from driver.sampling import Sampler
from profile_steps import load_cost
from settings import Cell
from workshop import Workshop, say

from avsim.estimators.base import EstimatorState


def quota(concurrency: int) -> int:
    """Return the tokens of one turn."""
    return 8 * concurrency + 8


def measure(shop: Workshop, minutes: float) -> None:
    """Measure every block that is not there yet, as far as the minutes go.

    Raises:
        SystemExit: no predictions, predictions made for other code, or changed since blocks were measured.
    """
    if not shop.predictions_file.exists():
        raise SystemExit("no predictions.json: predict first")
    predictions, digest = settings.read_json(shop.predictions_file), settings.sha256([shop.predictions_file])
    if predictions["source"] != settings.source_hash():
        raise SystemExit("the driver, drafters or prompts have changed since predictions.json; begin a new folder")
    for file in shop.blocks:
        if settings.read_json(file)["predictions_sha256"] != digest:
            raise SystemExit(f"{file.name} was measured against other predictions; begin a new folder")
    end, slow = time.monotonic() + 60 * minutes, 1.0
    for repeat in range(shop.setup.repeats):
        for cell in shop.setup.cells:
            file = shop.out / "measured" / f"{cell.name}-{repeat}.json"
            if file.exists():
                continue
            arms = predictions["cells"][cell.name]["arms"]
            expected_s = sum(arms[arm]["seconds"] for arm in cell.arms)
            if time.monotonic() + slow * expected_s > end:
                say(f"{file.stem} left out: it would take {slow * expected_s:.0f} s")
                continue
            start = time.monotonic()
            block = measure_block(shop, cell, repeat, predictions["cells"][cell.name])
            took_s = time.monotonic() - start
            slow = max(1.0, took_s / expected_s)
            settings.write_json(file, {"predictions_sha256": digest, "seconds": round(took_s, 1)} | block)
            say(f"{file.stem} in {took_s:.0f} s, {took_s / expected_s:.2f} times what was predicted")


def measure_block(shop: Workshop, cell: Cell, repeat: int, predicted: dict[str, Any]) -> dict[str, Any]:
    """Run one block; return its settings and the steps of each arm."""
    sequence = requests_of(shop, cell, repeat)
    rng = np.random.default_rng([shop.setup.seed, repeat, cell.concurrency])
    for request in sequence:
        shop.prompts.computed(request)
    started, loads = settings.now(), list(os.getloadavg())
    engines = {spec: make_engine(shop, cell, spec, sequence, repeat, predicted) for spec in cell.arms}
    turns: dict[str, list[list[Step]]] = {spec: [] for spec in cell.arms}
    gc.collect()
    gc.disable()
    goal = 0
    while any(engine.full for engine in engines.values()):
        goal += quota(cell.concurrency)
        for index in rng.permutation(len(cell.arms)).tolist():
            spec, steps = cell.arms[index], list[Step]()
            measure_until(engines[spec], goal, steps)
            turns[spec].append(steps)
    gc.enable()
    same = compare(engines, cell) if cell.temperature == 0 else None
    return {
        "cell": cell.name, "repeat": repeat, "started": started, "load_average": loads,
        "machine": workshop.describe_machine() | {"clock": shop.clock_name}, "sequence": sequence, "same_output": same,
        "arms": {spec: [[asdict(step) for step in turn] for turn in found] for spec, found in turns.items()},
    }  # fmt: skip


def requests_of(shop: Workshop, cell: Cell, repeat: int) -> list[int]:
    """Return the requests of a block: other ones in each repeat as long as there are any."""
    rng = np.random.default_rng([shop.setup.seed, 0x5E9])
    return settings.balanced(len(shop.prompts.tokens), cell.num_requests, rng, repeat * cell.num_requests)


def make_engine(
    shop: Workshop, cell: Cell, spec: str, sequence: list[int], repeat: int, predicted: dict[str, Any]
) -> Engine:
    """Return an arm's engine, warmed up, with the tables and the estimator state that were predicted with."""
    arm = settings.make_arm(spec)
    cost, _ = load_cost(shop, cell.drafter, cell.temperature)
    most = settings.slots_of(spec, shop.setup.num_slots)
    num_slots = arm.policy.depth(most)
    tables = cost.tables(
        cell.concurrency, cell.concurrency * (num_slots + 1), kv_tokens_per_req=predicted["kv_tokens_per_req"],
        depth=num_slots,
    )  # fmt: skip
    state = predicted["arms"][spec]["state"]

    def make(requests: list[int]) -> Engine:
        return Engine(
            shop.target, shop.drafters[cell.drafter], shop.prompts, requests, arm,
            Sampler(cell.temperature, shop.setup.seed + repeat), concurrency=cell.concurrency,
            num_slots=most, max_tokens=shop.setup.max_tokens, tables=tables,
            state=None if state is None else EstimatorState.from_json(state), clock=shop.clock,
        )  # fmt: skip

    trial = make(sequence[: cell.concurrency])
    for _ in range(2):  # compiles what is not compiled yet
        trial.step()
    return make(sequence)


def compare(engines: dict[str, Engine], cell: Cell) -> dict[str, list[int]]:
    """Return, for each arm, how many outputs begin as plain decoding's, and of how many."""
    plain, found = engines["none"].outputs, {}
    for spec in cell.arms:
        own = engines[spec].outputs
        both = [request for request in own if request in plain]
        length = {request: min(len(own[request]), len(plain[request])) for request in both}
        same = sum(own[request][: length[request]] == plain[request][: length[request]] for request in both)
        found[spec] = [same, len(both)]
    return found


if __name__ == "__main__":
    measure(workshop.parse(sys.argv[1]), float(sys.argv[2]))
