"""Step 2: what the driver's steps cost on this machine, and what avsim's decisions themselves cost in it."""

from __future__ import annotations

import sys

import numpy as np
import settings
import workshop
from driver.deciding import Deciding
from driver.runner import DriverRunner
from driver.sampling import draft_features
from step_cost import ColdTimer, DriverCost, fit, measure_draft, measure_verify
from workshop import Workshop, kv_tokens_per_req, say

from avsim import costs
from avsim.costs.base import CostCard
from avsim.costs.profile.measure import Measured

# Tiles hold six rows, so 6 → 7, 12 → 13, … are steps up: both sides of the first of them.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 18, 19, 24, 25, 30, 36, 48, 64, 80, 96)
CONTEXTS = (64, 192)
CONTEXT = 160
STEPS = 25


def profile(shop: Workshop) -> None:
    """Measure every drafter and temperature that has no cost file yet; target steps once for all drafters."""
    for temperature in sorted({temperature for _, temperature in shop.setup.conditions}):
        names = [name for name, own in shop.setup.conditions if own == temperature]
        names = [name for name in names if not shop.cost_file(name, temperature).exists()]
        cells = [cell for cell in shop.setup.cells if cell.temperature == temperature]
        most = max(cell.concurrency for cell in cells)
        runners = {
            name: DriverRunner(shop.target, shop.drafters[name], temperature, shop.setup.num_slots, most)
            for name in names
        }
        if runners:
            say(f"profile target steps at T = {temperature:g}")
            sizes = tuple(n for n in SIZES if n <= most * (shop.setup.num_slots + 1))
            verify = measure_verify(
                runners[names[0]], sizes, CONTEXTS, shop.setup.profile_repeats, shop.setup.profile_minutes, shop.clock,
                lambda *_: None,
            )  # fmt: skip
        for name, runner in runners.items():
            say(f"profile {settings.condition_name(name, temperature)}")
            profile_drafter(shop, name, runner, verify, most)


def profile_drafter(shop: Workshop, name: str, runner: DriverRunner, verify: Measured, most: int) -> None:
    """Measure a drafter's steps and the decisions of its arms; write the cost file."""
    temperature = runner.sampler.temperature
    file = shop.cost_file(name, temperature)
    reqs = tuple(n for n in (1, 2, 4, 8, 16, 32) if n <= most)
    timer = ColdTimer(runner.verify((1,), CONTEXT), shop.clock)
    draft = measure_draft(runner, reqs, CONTEXT, shop.setup.profile_repeats, timer)
    about = runner.describe()
    card = CostCard(
        name=f"sim-to-real-{file.stem}", model=about["model"], hardware=about["hardware"], kind="measured",
        source=f"experiments/sim-to-real, {settings.now()}", num_speculative_tokens=shop.setup.num_slots,
        vocab_size=int(about["vocab_size"]), drafter_kind="eagle",
        notes=f"Steps of this experiment's driver, {about['includes']} included.",
    )  # fmt: skip
    cost, quality = fit(verify, draft, runner, card)
    here = [cell for cell in shop.setup.cells if (cell.drafter, cell.temperature) == (name, temperature)]
    arms = sorted({settings.plain_name(arm) for cell in here for arm in cell.arms} - {"none"})
    overheads = {spec: overhead(shop, spec, name, temperature, cost, reqs, timer) for spec in arms}
    samples = {
        "verify": [
            {"tokens": cell.num_tokens, "context": cell.context, "ms": ms.tolist()}
            for cell, ms in zip(verify.cells, verify.ms, strict=True)
        ],
        "draft": [{"depth": d, "requests": r, "rows": n, "ms": ms} for (d, r, n), ms in draft.items()],
    }
    document = costs.dump(cost) | {
        "quality": quality, "overheads": overheads,
        "measured": about | workshop.describe_machine() | {"clock": shop.clock_name},
    }  # fmt: skip
    settings.write_json(file.with_name(f"{file.stem}-samples.json"), samples)
    settings.write_json(file, document)


def overhead(
    shop: Workshop, spec: str, name: str, temperature: float, cost: DriverCost, reqs: tuple[int, ...], timer: ColdTimer
) -> dict[str, float]:
    """Time an arm's decisions alone, features included; return what they cost per step and per request.

    Medians of steps after a target step, with the refit's share added; a line through the request counts.
    """
    arm, rng = settings.make_arm(spec), np.random.default_rng(0)
    most = settings.slots_of(spec, shop.setup.num_slots)
    tokens_per_req = kv_tokens_per_req(shop.pool(name, temperature))
    middle = []
    for count in reqs:
        num_slots = arm.policy.depth(most)
        tables = cost.tables(count, count * (num_slots + 1), kv_tokens_per_req=tokens_per_req, depth=num_slots)
        deciding = Deciding(arm, most, count, tables, None)
        everybody, nobody = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
        logits = rng.standard_normal((count, len(shop.drafters[name].vocab)), dtype=np.float32) * 3
        times = []
        for step in range(STEPS + 3):
            timer.between()
            start = shop.clock()
            depth = deciding.plan(everybody, nobody, np.full(count, step))
            features = {key: np.zeros((num_slots, count), dtype=np.float32) for key in deciding.features}
            for slot in range(depth if features else 0):
                for key, line in draft_features(logits, temperature).items():
                    if key in features:
                        features[key][slot] = line
            admitted = deciding.admit(depth, features)
            accepted = rng.integers(0, admitted + 1)
            deciding.observe(accepted, accepted + 1, 1.0)
            times.append(1e3 * (shop.clock() - start))
        refit_ms = 0.0
        if deciding.estimator is not None and deciding.state is not None:
            start = shop.clock()
            deciding.estimator.refit(deciding.state.params, deciding.state.stats)
            refit_ms = 1e3 * (shop.clock() - start) / deciding.estimator.refit_interval
        middle.append(float(np.median(times[3:])) + refit_ms)
    slope = max(float(np.polyfit(reqs, middle, 1)[0]), 0.0) if len(reqs) > 1 else 0.0
    return {"overhead_ms": max(float(np.mean(middle) - slope * np.mean(reqs)), 0.0), "overhead_us_per_req": 1e3 * slope}


def load_cost(shop: Workshop, drafter: str, temperature: float) -> tuple[DriverCost, dict[str, dict[str, float]]]:
    """Return a measured cost model, and the overheads of each arm."""
    data = settings.read_json(shop.cost_file(drafter, temperature))
    return DriverCost.from_json(data, CostCard(**data["card"])), data["overheads"]


if __name__ == "__main__":
    profile(workshop.parse(sys.argv[1]))
