"""Write tests/golden/vllm/*.json from vLLM's own code: a few cases that the ordinary test suite checks with NumPy.

PYTHONPATH=. "$(python3 -m tests.live.setup | tail -n 1)" tests/live/make_goldens.py
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm_reference as vllm
from budget_workloads import CONFIDENCES, Engine, Pair, Scheduled, curved_tables, flat_tables, knife_edge_tables
from estimator_streams import Stream, draw_temperature, draw_verdict, logistic, two_tokens
from numpy.typing import NDArray

from avsim.costs import CostTables

FOLDER = Path(__file__).parent.parent / "golden" / "vllm"
COMMAND = 'PYTHONPATH=. "$(python3 -m tests.live.setup | tail -n 1)" tests/live/make_goldens.py'


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    coarse = Stream(
        # Enough slots and requests for the order of the kernel's sums to show in the last bit.
        num_slots=9,
        max_num_reqs=9,
        num_reqs=(7, 9, 1),
        num_steps=16,
        refit_interval=4,
        # Multiples of 1/4 keep the file short and are exact in every format.
        logits=lambda rng, shape: (rng.normal(0, 8, (*shape, 6)).round() / 4).astype(np.float32),
        temperature=(0.0, 0.5, 1.0),
        accept=logistic(1.5, 0.5),
    )
    sharp = Stream(
        num_slots=3,
        max_num_reqs=6,
        num_reqs=(5, 6),
        num_steps=12,
        refit_interval=3,
        logits=two_tokens(8, 40),
        accept=logistic(0.1, 0.5),
        seed=1,
    )
    write("estimator_stream", "acceptance_estimator", estimator_stream(coarse))
    write("estimator_sharp", "acceptance_estimator", estimator_stream(sharp))
    write("features", "acceptance_estimator", feature_rows())
    write("budget_engine", "adaptive_verification", engine_steps())
    write("budget_cases", "adaptive_verification", {"cases": budget_cases()})
    write("cost_tables", "adaptive_verification", {"cases": cost_tables()})


def write(name: str, module: str, data: dict[str, Any]) -> None:
    source = {
        "vllm_version": vllm.VLLM_VERSION,
        "source": f"{vllm.SPEC_DECODE.replace('.', '/')}/{module}.py",
        "source_sha256": vllm.source_sha256(module),
        "command": COMMAND,
    }
    text = json.dumps(source | data, allow_nan=False, separators=(",", ":"))
    (FOLDER / f"{name}.json").write_text(text.replace(',"', ',\n"') + "\n", encoding="utf-8")


def estimator_stream(stream: Stream) -> dict[str, Any]:
    """Per step: verdicts, the coefficients after them, then logits and what the kernels made of them."""
    rng = np.random.default_rng(stream.seed)
    theirs = vllm.VllmEstimator(stream.max_num_reqs, stream.num_slots, stream.refit_interval)
    drafted = np.zeros(stream.max_num_reqs, dtype=bool)
    steps = []
    for step in range(stream.num_steps):
        verdict = draw_verdict(stream, rng, step, theirs.features, drafted)
        theirs.step(verdict.slots, verdict.admitted, verdict.accepted, verdict.sampled)
        slope, intercepts = float(theirs.slope[0]), theirs.intercepts.tolist()
        temperature = draw_temperature(stream, rng)
        logits = stream.logits(rng, (len(verdict.slots), stream.num_slots))
        confidence = theirs.predict_block(verdict.slots, torch.from_numpy(logits), temperature)
        drafted[verdict.slots] = True
        steps.append(
            {
                "slots": verdict.slots.tolist(),
                "admitted": verdict.admitted.tolist(),
                "accepted": verdict.accepted.tolist(),
                "slope": slope,
                "intercepts": intercepts,
                "temperature": temperature[verdict.slots].tolist(),
                "logits": logits.tolist(),
                "features": theirs.features[verdict.slots].tolist(),
                "confidence": confidence.tolist(),
            }
        )
    shape = {name: getattr(stream, name) for name in ("num_slots", "max_num_reqs", "refit_interval")}
    return shape | {"steps": steps}


def feature_rows() -> dict[str, Any]:
    """Rows over two vocabulary blocks, as base64 int8: logits are a quarter of it, and −128 stands for −∞."""
    rng = np.random.default_rng(2)
    quarters = np.clip(rng.normal(0, 10, (8, 5000)).round(), -127, 127).astype(np.int8)
    quarters[1, :4096] = -128
    quarters[2, 4096:] = -128
    quarters[3] = -128
    quarters[3, 4500] = 0
    quarters[4, 77] = 100
    quarters[5, 4700] = 120
    quarters[6] = 5
    logits = np.where(quarters == -128, -np.inf, quarters / 4).astype(np.float32)
    temperature = np.array([0.0, 0.7, 1.0, 1.0, 1.0, 1.5, 0.7, 2.0], dtype=np.float32)
    theirs = vllm.VllmEstimator(8, 1, 100)
    theirs.predict_block(np.arange(8), torch.from_numpy(logits[:, None]), temperature)
    return {
        "vocab": 5000,
        "quarters_int8": [base64.b64encode(row.tobytes()).decode() for row in quarters],
        "temperature": temperature.tolist(),
        "features": theirs.features[:, 0].tolist(),
    }


def engine_steps() -> dict[str, Any]:
    """A small engine under churn: which requests are added, scheduled and drafted for, and what vLLM decides."""
    rng = np.random.default_rng(4)
    max_num_reqs, num_slots = 5, 4
    # Draft costs that jump, so that the wrong row of the table would show in the budget.
    draft = np.array([0.0, 0.5, 20.0, 21.0, 60.0, 61.0])
    pair = Pair(max_num_reqs, num_slots, CostTables(draft, curved_tables(rng, max_num_reqs, 60).verify))
    engine = Engine(pair, max_num_reqs, rng)
    steps = []
    for _ in range(40):
        step = engine.next_step()
        if not step:
            continue
        slots = [request.slot for request in step]
        drafted = CONFIDENCES["spread"](rng, (len(step), num_slots))
        record: dict[str, Any] = {
            "added": engine.new,
            "slots": slots,
            "num_target_tokens": [request.num_target_tokens for request in step],
            "num_drafts": [request.num_drafts for request in step],
            "samples": [request.samples for request in step],
            "sizing": pair.manager.sizing[slots].tolist(),
            "live": pair.manager.live[slots].tolist(),
            "drafted": drafted.tolist(),
        }
        if any(record["num_drafts"]):
            decision = pair.decide(step)
            record |= {"budget": decision.budget, "admitted": decision.admitted.tolist()}
        pair.record(step, drafted)
        steps.append(record)
    shape = {"max_num_reqs": max_num_reqs, "num_slots": num_slots}
    return shape | table_lists(pair.tables) | {"steps": steps}


def budget_cases() -> list[dict[str, Any]]:
    """Single decisions: caps, new requests, ties at the cut, several maxima, a prompt beside the drafts."""
    rng = np.random.default_rng(5)
    steps = CostTables(np.zeros(9), np.maximum(np.arange(80.0), 1e-6))
    beside = CostTables(np.zeros(9), 1.0 + 0.6 * np.maximum(np.arange(80) - 7, 0))
    curved = curved_tables(rng, 8, 79)
    flat = flat_tables(8, 79)
    halves = np.full((8, 8), 0.5, dtype=np.float32)
    prompt = Scheduled(7, 6, 0, samples=False)
    return [
        budget_case("new requests", curved, None, 8),
        budget_case("every budget is worth the same", steps, None, 8),
        budget_case("logits cap the budget", flat, CONFIDENCES["spread"](rng, (8, 8)), 8, vocab=1 << 24),
        budget_case("logits leave no room for drafts", flat, CONFIDENCES["spread"](rng, (8, 8)), 8, vocab=1 << 28),
        budget_case("every survival ties", flat, halves, 8, vocab=1 << 23),
        budget_case("some survivals tie", flat, CONFIDENCES["ties"](rng, (8, 8)), 8, vocab=1 << 23),
        budget_case("saturated", curved, CONFIDENCES["saturated"](rng, (8, 8)), 8),
        budget_case("a prompt that does not sample", beside, None, 1, also=prompt),
        budget_case("the last bit decides", flat, CONFIDENCES["spread"](rng, (8, 8)), 8, knife_edge=True),
    ]


def budget_case(
    name: str,
    tables: CostTables,
    confidence: NDArray[np.float32] | None,
    num_reqs: int,
    *,
    vocab: int = 1,
    also: Scheduled | None = None,
    knife_edge: bool = False,
) -> dict[str, Any]:
    """One step of 8-deep drafts, sized by `confidence`, or at 1.0 where the requests are new."""
    rng = np.random.default_rng(len(name))
    limit = vllm.get_max_chunk_logits(vocab)
    pair = Pair(8, 8, tables, max_total_logits=limit)
    step = [Scheduled(slot, 1, 8, samples=True) for slot in range(num_reqs)]
    for slot in range(8):
        pair.add_request(slot, 20)
    if confidence is not None:
        pair.record(step, confidence[:num_reqs])
    pair.record(step, CONFIDENCES["spread"](rng, (num_reqs, 8)) if "tie" not in name else confidence[:num_reqs])
    step += [also] if also else []
    if knife_edge:
        pair.use_tables(knife_edge_tables(pair, step, rng, len(tables.verify) - 1))
    batch, decision = pair.batch(step), pair.decide(step)
    return {
        "name": name,
        "vocab": vocab,
        "max_total_logits": limit,
        "num_target_tokens": int(batch.num_target_tokens[0]),
        "num_sampling": int(batch.num_sampling[0]),
        "num_drafts": batch.num_drafted[0].tolist(),
        "sizing": batch.sizing[:, 0].T.tolist(),
        "live": batch.live[:, 0].T.tolist(),
        "budget": decision.budget,
        "admitted": decision.admitted.tolist(),
    } | table_lists(pair.tables)


def table_lists(tables: CostTables) -> dict[str, list[float]]:
    return {"draft_ms": tables.draft.tolist(), "verify_ms": tables.verify.tolist()}


def cost_tables() -> list[dict[str, Any]]:
    cliff = [(1, 5.0), (2, 4.5), (8, 6.25), (16, 7.125), (24, 40.3), (32, 44.7), (40, 44.1)]
    draft = [(1, 0.9), (2, 1.1), (4, 1.05), (16, 2.7)]
    cases = []
    for capture_limit in (0, 8, 16, 20, 32, 64):
        tables = vllm.build_cost_tables_from_curves(draft, cliff, 24, 60, capture_limit)
        cases.append(
            {"draft": draft, "verify": cliff, "capture_limit": capture_limit} | table_lists(CostTables(*tables))
        )
    single = vllm.build_cost_tables_from_curves([(4, 1.3)], [(8, 7.7)], 9, 12, 8)
    cases.append({"draft": [(4, 1.3)], "verify": [(8, 7.7)], "capture_limit": 8} | table_lists(CostTables(*single)))
    return cases


if __name__ == "__main__":
    main()
