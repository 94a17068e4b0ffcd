"""What is deployed, without an engine: counting on a device, two estimators side by side, ranks that must agree."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from avsim import estimators
from avsim.deploy.agree import agree
from avsim.deploy.bundle import Bundle
from avsim.deploy.estimator import DeployedEstimator
from avsim.deploy.ledger import Ledger, counts_document
from avsim.deploy.trial import try_out
from avsim.kernels import device_estimator
from avsim.kernels.ops.tally import CELLS, SUMS, tally
from avsim.metrics.calibration import Calibration
from avsim.types import observe

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
K, R = 3, 6
FACTS = {
    "num_speculative_tokens": K,
    "target": "t",
    "drafter": "d",
    "drafter_kind": "eagle",
    "draft_sampling": "greedy",
    "acceptance_rule": "standard",
}


def on_device(array, kind=np.int32):
    return torch.from_numpy(np.asarray(array, dtype=kind)).to(DEVICE)


def verdicts(rng, rows, slots=K):
    """M, A and what the engine says of them; some requests are within their prompt."""
    accepted = rng.integers(0, slots + 1, rows)
    admitted = np.minimum(slots, accepted + rng.integers(0, 3, rows))
    prompt = rng.random(rows) < 0.15
    admitted, accepted = np.where(prompt, 0, admitted), np.where(prompt, 0, accepted)
    return admitted, accepted, np.where(prompt, 0, accepted + 1), admitted - accepted


@pytest.mark.parametrize("rows", [(0,), (1, 2, 5), (300, 600, 256)])
def test_the_tally_counts_what_numpy_counts(rows):
    rng, most, slots = np.random.default_rng(len(rows)), 700, 5
    cells = torch.zeros((slots, 2, CELLS), dtype=torch.int32, device=DEVICE)
    sums = torch.zeros((slots, len(SUMS)), dtype=torch.float64, device=DEVICE)
    scored, expected = Calibration(slots), np.zeros((slots, len(SUMS)))
    for count in rows:
        # One row of the table is wider than K, as a slice of a larger one would be.
        table = rng.random((most, slots + 1)).astype(np.float32)
        table[:3, 0] = [0.0, 1.0, 1 - 2.0**-24]
        batch = rng.permutation(most)[:count]
        admitted, accepted, sampled, rejected = verdicts(rng, count, slots)
        left_out = rng.random(count) < 0.1
        predictions = on_device(table, np.float32)[:, :slots]
        given = [on_device(array) for array in (np.where(left_out, -1, batch), sampled, rejected)]
        tally(cells, sums, predictions, *given)
        kept = ~left_out
        p = table[batch[kept], :slots].T
        observed, label = observe(admitted[kept], accepted[kept], slots)
        scored.add(p, label, observed)
        verified = np.arange(slots)[:, None] < admitted[kept]
        # The kernel multiplies in float32.
        survival = np.multiply.accumulate(p, axis=0, dtype=np.float32)
        columns = (verified, survival * verified, observed, label & observed, p * observed)
        expected += np.stack([column.sum(axis=1, dtype=np.float64) for column in columns], axis=1)
    np.testing.assert_array_equal(cells.cpu().numpy(), scored.counts)
    np.testing.assert_allclose(sums.cpu().numpy(), expected, rtol=len(rows) * most * 2.0**-53)


def test_a_confidence_that_is_no_number_is_counted_apart():
    ledger = Ledger({"avsim": torch.full((R, K), torch.nan, device=DEVICE)}, 1)
    ledger.grade(on_device([2]), on_device([2]), on_device([1]))
    found = counts_document(ledger.now(), None)
    assert found["slots"] == {"verified": [1, 1, 0], "labelled": [1, 1, 0], "accepted": [1, 0, 0]}
    assert found["estimators"]["avsim"]["unscored"] == 2
    assert found["estimators"]["avsim"]["confidence_sum"] == [0, 0, 0]


def test_counts_arrive_every_interval_and_do_not_wrap_around():
    ledger = Ledger({"avsim": torch.full((R, K), 0.5, device=DEVICE)}, 3)
    step = (on_device([0, 1]), on_device([2, 1]), on_device([0, 1]))
    ledger.clear()
    table = ledger._tables["avsim"]
    table.cells.fill_(-3)  # as if they had been counted up to 2³² − 3
    table.seen.fill(np.uint32(2**32 - 3))
    seen = []
    for _ in range(8):
        ledger.grade(*step)
        seen.append(ledger.arrived())
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    known = [counts for counts in seen if counts is not None]
    assert [counts.host.steps for counts in known] == [3, 6]
    assert known[0].cells["avsim"].sum() == 3 * 2
    assert ledger.now().sums["avsim"][:, 0].tolist() == [16, 0, 0]


def test_time_counts_only_between_steps_with_work():
    ledger = Ledger({"avsim": torch.full((R, K), 0.5, device=DEVICE)}, 100)
    tables = (np.array([0.0, 1.0, 2.0]), np.arange(20.0))

    def step(requests, drafts=True):
        if drafts:
            plan = (dict.fromkeys(requests, K), dict.fromkeys(requests, 1), 4)
            ledger.plan(SimpleNamespace(_batch_budget=plan, cost_tables=tables), dict.fromkeys(requests, 1 + K))
        ledger.grade(on_device([0]), on_device([1]), on_device([0]))

    for requests, drafts in (("a", True), ("ab", True), ("ab", False), ("ab", True), ("b", True), ("c", True)):
        step(requests, drafts)
    # a→ab and ab→b; not the first, none beside a step without a budget, and not c, before which nothing was left.
    assert ledger.host.timed_steps == 2
    assert ledger.host.predicted_ms == (2 + 2 + 4) + (1 + 1 + 4)
    assert ledger.host.measured_ms > 0
    assert (ledger.host.steps, ledger.host.scheduled_drafts, ledger.host.budget) == (6, 7 * K, 5 * 4)


def bundle(spec="multi-logistic:refit_interval=4", **changes):
    estimator = estimators.make(spec)
    return Bundle(estimator=estimator, state=estimator.start(K), **FACTS | changes)


class Theirs:
    """In vLLM's place: says 0.25 everywhere, and notes its calls."""

    def __init__(self):
        self.predictions = torch.zeros((R, K), device=DEVICE)
        self.steps = 0

    def predict(self, logits, slots, draft_step, confidence, temperature):
        confidence[: len(slots), int(draft_step)] = 0.25

    def step(self, *verdict):
        self.steps += 1


def deploy(held, *, shadow, ledger=True):
    mine, theirs = device_estimator(held.estimator, R, K, DEVICE), Theirs()
    mine.load(held.state)
    book = Ledger({"avsim": mine.predictions}, 4) if ledger else None
    return DeployedEstimator(held, mine, theirs, shadow=shadow, ledger=book)


def draft(deployed, confidence, batch=(4, 1), seed=0):
    rng = np.random.default_rng(seed)
    for slot in range(K):
        logits = torch.from_numpy(rng.normal(0, 3, (len(batch), 50)).astype(np.float32)).to(DEVICE)
        step = torch.tensor(slot, device=DEVICE)
        deployed.predict(logits, on_device(batch), step, confidence, torch.zeros(R, device=DEVICE))


def test_the_flag_says_whose_confidences_are_handed_on():
    deployed = deploy(bundle(), shadow=True)
    confidence = torch.full((R, K), 0.9, device=DEVICE)
    draft(deployed, confidence)
    assert (confidence[:2] == 0.25).all()
    assert (confidence[2:] == 0.9).all()
    held = deployed.mine.predictions[[4, 1]]
    assert ((held > 0) & (held != 0.25)).all()
    assert deployed.use("avsim") is None
    draft(deployed, confidence)
    assert torch.equal(confidence[:2], held)
    assert deployed.use("vllm") is None
    draft(deployed, confidence)
    assert (confidence[:2] == 0.25).all()
    assert "neither" in deployed.use("both")


def test_alone_it_cannot_be_switched_and_vllms_does_not_learn():
    deployed = deploy(bundle(), shadow=False)
    deployed.step(on_device([0]), on_device([1]), on_device([0]))
    assert deployed.theirs.steps == 0
    assert deployed.use("avsim") is None
    assert "AVSIM_DEPLOY_MODE=shadow" in deployed.use("vllm")


@pytest.mark.parametrize("shadow", [True, False])
@pytest.mark.parametrize("method", ["predict", "step", "reset"])
def test_a_failure_leaves_vllms_estimator_in_charge(shadow, method, monkeypatch, caplog):
    deployed = deploy(bundle(), shadow=shadow)
    if shadow:
        deployed.use("avsim")

    def broken(*args):
        raise RuntimeError("broken")

    monkeypatch.setattr(deployed.mine, method, broken)
    confidence = torch.zeros((R, K), device=DEVICE)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            deployed.begin_request(1, "request")
            deployed.step(on_device([4, 1]), on_device([1, 1]), on_device([0, 0]))
            draft(deployed, confidence)
    assert (confidence[:2] == 0.25).all()
    assert deployed.decides == "vllm"
    assert deployed.theirs.steps >= 1
    assert len(caplog.messages) == 1
    assert "vLLM's goes on" in caplog.text
    assert "is off" in (deployed.use("avsim") or "") or not shadow


@pytest.mark.parametrize("method", ["plan", "grade", "clear"])
def test_a_failure_to_count_changes_no_decision(method, monkeypatch, caplog):
    """Only the first rank counts, so what befalls its counters must not part it from the others."""
    deployed, watched = deploy(bundle(), shadow=False), manager()
    deployed.watch(watched, build)

    def broken(*args):
        raise RuntimeError("broken")

    monkeypatch.setattr(deployed.ledger, method, broken)
    confidence = torch.zeros((R, K), device=DEVICE)
    watched.add_request(2)
    for _ in range(2):
        watched.get_num_tokens({}, {})
        deployed.step(on_device([2]), on_device([1]), on_device([0]))
        draft(deployed, confidence)
    assert (deployed.failed, deployed.decides, deployed.ledger) == (None, "avsim", None)
    assert deployed.steps == 2
    assert torch.equal(confidence[0], deployed.mine.predictions[4])
    assert len(caplog.messages) == 1
    assert "no more counters" in caplog.text


def test_serving_begins_with_the_first_real_request():
    held = bundle()
    deployed = deploy(held, shadow=False)
    confidence = torch.zeros((R, K), device=DEVICE)
    for name in ("_warmup_0_", "_v2_mixed_warmup_decode_"):
        deployed.begin_request(1, name)
        draft(deployed, confidence)
        deployed.step(on_device([4, 1]), on_device([2, 3]), on_device([1, 0]))
    assert deployed.mine.memory.any()
    deployed.begin_request(4, "request")
    state = deployed.mine.state()
    assert (state.steps_since_refit, state.refits, deployed.steps) == (0, 0, 0)
    np.testing.assert_array_equal(state.stats["slots"], held.state.stats["slots"])
    assert not deployed.mine.memory.any()
    assert not deployed.mine.predictions.any()
    draft(deployed, confidence)
    deployed.step(on_device([4, 1]), on_device([2, 3]), on_device([1, 0]))
    assert deployed.ledger.now().sums["avsim"][:, 3].sum() == 3
    kept = deployed.mine.memory[1].clone()
    deployed.begin_request(4, "another")
    assert not deployed.mine.memory[4].any()
    assert torch.equal(deployed.mine.memory[1], kept)
    assert kept.any()


def manager(limit=0):
    """In the place of vLLM's, with a profile of its own."""
    found = SimpleNamespace(cost_tables=None, _cudagraph_limit=limit)
    found.req_states = SimpleNamespace(index_to_req_id={2: "request"})
    found.add_request = lambda req_idx: None
    found.get_num_tokens = lambda requests, drafts: 0
    found.set_cost_curves = lambda draft, verify: setattr(found, "cost_tables", (np.zeros(3), np.ones(9)))
    return found


def build(draft_curve, verify_curve, reqs, tokens, limit):
    return np.full(reqs + 1, draft_curve[0][1]), np.full(tokens + 1, verify_curve[-1][1])


@pytest.mark.parametrize("limit", [0, 8, 16])
def test_cost_tables_follow_who_decides(limit, caplog):
    table = {"engine": {}, "capture_limit": 8, "draft": [[1, 5.0]], "verify": [[1, 6.0], [8, 7.0]]}
    deployed, watched = deploy(bundle(cost_table=table), shadow=True), manager(limit)
    deployed.watch(watched, build)
    watched.set_cost_curves([], [])
    assert watched.cost_tables[1].tolist() == [1.0] * 9
    deployed.use("avsim")
    if limit == 16:
        assert "largest captured size of 8, the engine's is 16" in caplog.text
        assert watched.cost_tables[1].tolist() == [1.0] * 9
        return
    assert [column.tolist() for column in watched.cost_tables] == [[5.0] * 3, [7.0] * 9]
    deployed.use("vllm")
    assert watched.cost_tables[0].tolist() == [0.0] * 3


def test_a_manager_tells_of_new_requests():
    deployed, watched = deploy(bundle(), shadow=False), manager()
    deployed.watch(watched, build)
    deployed.mine.memory.fill_(1.0)
    watched.add_request(2)
    assert deployed.serving
    deployed.mine.memory.fill_(1.0)
    watched.add_request(2)
    assert deployed.mine.memory.sum(dim=1).tolist() == [3.0, 3.0, 0.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize("spec", ["multi-logistic", "online-logistic:feature=log_odds_f32", "isotonic"])
def test_a_trial_leaves_no_trace_and_finds_wrong_kernels(spec, monkeypatch):
    held = bundle(spec)
    mine = device_estimator(held.estimator, R, K, DEVICE)
    try_out(mine, held.estimator, held.state, 1000, torch.bfloat16)
    state = mine.state()
    assert (state.steps_since_refit, state.refits) == (0, 0)
    assert not mine.predictions.any()
    predict = mine.predict

    def wrong(logits, *args):
        predict(logits * 0.9, *args)

    monkeypatch.setattr(mine, "predict", wrong)
    with pytest.raises(RuntimeError, match="NumPy gives"):
        try_out(mine, held.estimator, held.state, 1000, torch.float32)


def test_a_law_that_is_not_numpys_is_noticed(monkeypatch):
    held = bundle("online-logistic")
    mine = device_estimator(held.estimator, R, K, DEVICE)
    load = mine.load

    def wrong(state):
        load(state)
        mine.law.intercepts.add_(0.1)

    monkeypatch.setattr(mine, "load", wrong)
    with pytest.raises(RuntimeError, match="the kernels give confidence"):
        try_out(mine, held.estimator, held.state, 1000, torch.float32)


@pytest.mark.parametrize("name", ["online-logistic", "multi-logistic", "isotonic", "beta-bernoulli"])
def test_nothing_is_left_to_compile_while_serving(name):
    script = Path(__file__).with_name("launches.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    words = [sys.executable, str(script), f"deployed:{name}"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    asked = json.loads(done.stdout)
    assert len(asked) >= 5
    assert not any(asked.values()), asked


def test_all_ranks_deploy_or_none_does():
    cases = [
        (("x", None), ("x", None)),
        (("x", None), ("y", None)),
        (("x", None), ("x", "its K is 5")),
        (("x", None), None),  # not switched on there
    ]
    held = torch.distributed.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)

    def ask(rank):
        store = torch.distributed.TCPStore("127.0.0.1", held.port, None, False, timedelta(seconds=60))
        proposals = [case[rank] for case in cases if case[rank] is not None]
        return [agree(store, rank, (0, 1), *proposal, wait_s=3.0) for proposal in proposals]

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(ask, (0, 1)))
    assert said[0][:3] == said[1]
    assert said[0][0] is None
    assert "different bundles" in said[0][1]
    assert said[0][2] == "rank 1: its K is 5"
    assert "rank 1 has not said" in said[0][3]


def test_a_rank_alone_asks_nobody():
    assert agree(None, 3, (3,), "x", None) is None
    assert agree(None, 3, (3,), "x", "no kernels") == "no kernels"
