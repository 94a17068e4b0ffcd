"""Bundles in a real engine on Model Runner V2, under Triton's interpreter.

Runs in the environment that `setup_v2.py` makes, which has Triton.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import MODELS, REPOSITORY, Run, engine_environment
from prompts import PROMPTS

from avsim.comparison.scoring import predict_walk
from avsim.comparison.walk import recorded_walk
from avsim.deploy.bundle import read_bundle, write_bundle
from avsim.deploy.make import make_bundle
from avsim.estimators.base import advance

K = 3
CUT = {"method": "draft_model", "model": str(MODELS / "first-26-layers"), "num_speculative_tokens": K}
# Every token costs, so that the budget binds with few requests too.
COSTS = {"draft_ms": [[1, 1.5], [8, 2.0]], "verify_ms": [[n, 2.5 + 0.8 * n] for n in range(1, 33)]}
TRACE = REPOSITORY / "traces/smollm2-adaptive-live"
NAMES = {"target": "target", "drafter": "first-26-layers"}
REFIT = 4
COLD = f"online-logistic:feature=log_odds_f32,sums=float32,refit_interval={REFIT}"
WARM = f"multi-logistic:refit_interval={REFIT}"
JOB = {
    "model": str(MODELS / "target"),
    "speculative": CUT,
    "prompts": PROMPTS[:5],
    "max_num_seqs": 4,
    "max_tokens": 10,
    "adaptive": COSTS,
    "refit_interval": REFIT,
}
# Name: what the job changes, bundle, mode.
RUNS = {
    "plain": ({"speculative": None, "adaptive": None, "refit_interval": None}, None, None),
    "own": ({}, None, None),
    "cold": ({}, "cold", "on"),
    "warm": ({}, "warm", "on"),
    "shadow": ({"use_then": "avsim"}, "warm", "shadow"),
    "altered": ({}, "altered", "on"),
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    write_bundle(make_bundle([TRACE], COLD, cold=True, **NAMES), folder / "cold.json")
    write_bundle(make_bundle([TRACE], WARM, **NAMES), folder / "warm.json")
    data = json.loads((folder / "warm.json").read_text())
    data["estimator"]["state"]["params"]["mean"]["values"][0] += 1.0
    (folder / "altered.json").write_text(json.dumps(data))
    return folder


@pytest.fixture(scope="module")
def deployed(package, bundles, tmp_path_factory):
    """Start every run, two at a time; `deployed(name)` waits for one."""
    folder = tmp_path_factory.mktemp("deployed")
    with ThreadPoolExecutor(2) as pool:
        started = {name: pool.submit(run_engine, name, folder / name, package, bundles) for name in RUNS}
        yield lambda name: started[name].result()
        pool.shutdown(cancel_futures=True)


def run_engine(name, folder, package, bundles):
    changes, bundle, mode = RUNS[name]
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(JOB | changes))
    environment = engine_environment(package)
    if bundle is not None:
        environment |= {
            "AVSIM_DEPLOY": str(bundles / f"{bundle}.json"),
            "AVSIM_DEPLOY_MODE": mode,
            "AVSIM_DEPLOY_REPORT": str(folder / "report.json"),
        }
    if name == "cold":
        environment["AVSIM_DEPLOY_ALLOCATE"] = "avsim"
    if name == "warm":
        environment["AVSIM_TRACE_DIR"] = str(folder / "capture")
    words = [sys.executable, str(REPOSITORY / "tests/live_engine/run_engine_v2.py"), str(folder / "job.json")]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return Run(folder, environment, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr)


def report(run):
    return json.loads((run.folder / "report.json").read_text())


def test_the_same_estimator_decides_as_vllms_own(deployed):
    """From a cold start, with vLLM's feature and its order of sums, every step and every request gets the same.

    avsim's kernel allocates, too; no survivals tie here.
    """
    own, mine = deployed("own").said, deployed("cold").said
    assert "online-logistic" in deployed("cold").log
    assert "its rule allocates" in deployed("cold").log
    assert own["estimator"]["refits"] == mine["estimator"]["refits"] == 2
    assert len(set(own["budgets"])) > 3
    assert mine["budgets"] == own["budgets"]
    for ours, theirs in zip(mine["observed"], own["observed"], strict=True):
        assert [entry["admitted"] for entry in ours] == [entry["admitted"] for entry in theirs]
    params = mine["estimator"]["params"]
    # Two refits of a few dozen rounded terms each, in float32, which need not be associated alike.
    assert params["slope"]["values"] == pytest.approx([own["estimator"]["slope"]], rel=64 * 2.0**-24)
    assert params["intercepts"]["values"] == pytest.approx(own["estimator"]["intercepts"], rel=64 * 2.0**-24)


@pytest.mark.parametrize("name", ["own", "cold", "warm", "shadow", "altered"])
def test_greedy_output_is_that_without_speculation(deployed, name):
    plain, said = deployed("plain").said, deployed(name).said
    assert said["output_ids"] == plain["output_ids"]
    assert sum(said["budgets"]) < said["counters"]["num_draft_tokens"]


def test_counters_are_what_a_replay_of_the_run_predicts(deployed, bundles):
    run, bundle = deployed("warm"), read_bundle(bundles / "warm.json")
    counted, trace = report(run), run.trace
    table, walk = recorded_walk(trace, bundle.estimator.features)
    # Every step counts towards a refit; the trace's blocks begin after those that only read prompts.
    state, before = bundle.state, int(run.blocks.step[0]) - int(trace.steps()["step"].min())
    for _ in range(before):
        state = advance(bundle.estimator, state, None, 1)
    confidence, end = predict_walk(bundle.estimator, table, walk, start=state)
    recorded = np.array(run.blocks.features["confidence"])
    # A confidence is one rounding of a sigmoid whose argument is a sum of six terms, of at most 16 in all.
    np.testing.assert_allclose(recorded, confidence, atol=(0.25 * 6 * 16 + 1) * 2.0**-24)
    accepted, reached = table.verdicts(walk.rows)
    verified = np.arange(K)[:, None] < walk.num_admitted
    assert counted["slots"] == {
        "verified": verified.sum(axis=1).tolist(),
        "labelled": reached.sum(axis=1).tolist(),
        "accepted": (accepted & reached).sum(axis=1).tolist(),
    }
    found, rows = counted["estimators"]["avsim"], len(walk.rows)
    wide = confidence.astype(np.float64)
    slack = rows * 2e-6
    assert found["confidence_sum"] == pytest.approx((wide * reached).sum(axis=1), abs=slack)
    assert found["expected_accepted"] == pytest.approx((wide.cumprod(axis=0) * verified).sum(axis=1), abs=K * slack)
    assert counted["drafts"]["budget"] == counted["drafts"]["verified"] == walk.num_admitted.sum()
    assert counted["drafts"]["scheduled"] == run.said["counters"]["num_draft_tokens"]
    assert counted["steps"] == trace.steps().height
    assert counted["refits"] == end.refits - bundle.state.refits > 0
    assert counted["step_time"]["predicted_ms"] > 0
    assert counted["step_time"]["measured_ms"] > 0


def test_in_shadow_vllm_decides_until_told_otherwise(deployed):
    own, said = deployed("own").said, deployed("shadow").said
    assert said["budgets"] == own["budgets"]
    assert said["estimator"] == own["estimator"]
    first, then = said["report"][0], said["then"]["report"][0]
    assert (first["decides"], first["mode"], then["decides"]) == ("vllm", "shadow", "avsim")
    assert set(first["estimators"]) == {"avsim", "vllm"}
    sums = [first["estimators"][who]["confidence_sum"] for who in ("avsim", "vllm")]
    assert sums[0] != pytest.approx(sums[1], rel=1e-3)
    entries = [entry for request in said["observed"] for entry in request]
    assert first["drafts"]["accepted"] == sum(entry["accepted"] for entry in entries)
    assert first["drafts"]["verified"] == sum(entry["admitted"] for entry in entries)


def test_avsim_takes_over_while_the_engine_runs(deployed):
    said = deployed("shadow").said
    assert said["used"] == [{"decides": "avsim", "error": None}]
    assert said["then"]["budgets"] != said["budgets"]
    assert said["then"]["output_ids"] == said["output_ids"]


def test_metrics_are_those_of_the_report(deployed):
    said = deployed("shadow").said["then"]
    counted, metrics = said["report"][0], said["metrics"]
    assert metrics["avsim_steps_total 0"] == counted["steps"]
    assert metrics["avsim_verified_drafts_total 0"] == counted["drafts"]["verified"]
    assert metrics["avsim_decides 0 avsim"] == 1
    for who in ("avsim", "vllm"):
        total = counted["estimators"][who]["confidence_sum"]
        assert [metrics[f"avsim_confidence_total 0 {who} {slot}"] for slot in range(K)] == pytest.approx(total)


def test_an_altered_bundle_is_refused_and_the_engine_runs_on(deployed):
    run = deployed("altered")
    lines = [line for line in run.log.splitlines() if "not deployed" in line]
    assert len(lines) == 1
    assert "altered.json: altered" in lines[0]
    assert run.said["budgets"] == deployed("own").said["budgets"]
    assert not (run.folder / "report.json").exists()


WORKER = """
from avsim.deploy.prometheus import make_metrics
def document(steps):
    who = {"confidence_sum": [1.5 * steps], "expected_accepted": [2.5 * steps], "calibration_slope": 0.9 * ENGINE,
           "window_calibration_slope": None}
    return {"steps": steps, "refits": 1, "drafts": {"scheduled": 3, "verified": 2, "accepted": 1},
            "step_time": {"steps": 1, "predicted_ms": 2.0, "measured_ms": 3.0}, "decides": "avsim",
            "slots": {"labelled": [2], "accepted": [1]}, "window": {"starved": []}, "estimators": {"avsim": who}}
metrics = make_metrics(ENGINE)
metrics.update(document(10))
metrics.update(document(30))
"""
SERVER = """
from prometheus_client import generate_latest
from vllm.v1.metrics.prometheus import get_prometheus_registry
print(generate_latest(get_prometheus_registry()).decode())
"""


def test_metrics_of_workers_reach_the_server_through_the_folder(tmp_path):
    """What docs/deploy.md says of PROMETHEUS_MULTIPROC_DIR, with vLLM's own registry."""
    paths = {"PYTHONPATH": str(REPOSITORY), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def run(code, **environment):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for engine in (0, 1):
        run(WORKER.replace("ENGINE", str(engine)), **paths)
    served = run(SERVER, **paths).splitlines()
    for engine in ("0", "1"):
        assert f'avsim_steps_total{{engine="{engine}"}} 30.0' in served
        assert f'avsim_confidence_total{{engine="{engine}",estimator="avsim",slot="0"}} 45.0' in served
    assert 'avsim_calibration_slope{engine="1",estimator="avsim"} 0.9' in served
    assert "avsim_steps" not in run(SERVER, PYTHONPATH=str(REPOSITORY))
