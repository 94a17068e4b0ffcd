"""Every estimator with kernels beside its NumPy form, step by step; and all kernels through the compiler for sm_90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import vllm_reference  # noqa: F401  sets up Triton before anything imports it

from avsim import estimators
from avsim.errors import InputError
from avsim.kernels import ON_DEVICE, device_estimator
from avsim.testing.kernel_parity import Parity, check_kernel_parity

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPECS = (
    "online-logistic",
    "online-logistic:feature=log_odds_f32,sums=float32",
    "bayes-logistic",
    "bayes-logistic:feature=log_odds_f32",
    "request-adaptive",
    "multi-logistic",
    "multi-logistic:history=false",
    "multi-logistic:logits=false",
    "isotonic",
    "isotonic:shared=true,discount=0.5",
    "beta-bernoulli",
)


def make(spec: str, refit_interval: int = 6) -> estimators.Estimator:
    return estimators.make(f"{spec}{',' if ':' in spec else ':'}refit_interval={refit_interval}")


def test_every_estimator_with_kernels_is_checked() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(ON_DEVICE)


@pytest.mark.parametrize("spec", SPECS)
def test_kernels_do_what_numpy_does(spec: str) -> None:
    parity = check_kernel_parity(make(spec), device=DEVICE, vocab=300, num_steps=20, seed=1)
    assert parity.holds, parity.failures
    assert parity.refits == 3
    assert parity.requests > 8
    # What was compared: features, confidence, sums or counts, and what a refit gave.
    kinds = {what.partition(".")[0] for what in parity.worst}
    assert kinds >= {"feature", "confidence", "stats", "params", "confidence handed on"}
    assert ("memory" in kinds) == (make(spec).memory_size > 0)


@pytest.mark.parametrize("case", [{"dtype": "bfloat16"}, {"one_pass": True}, {"num_slots": 1, "max_num_reqs": 1}])
def test_kernels_do_what_numpy_does_in_other_shapes(case: dict) -> None:
    parity = check_kernel_parity(make("multi-logistic"), device=DEVICE, vocab=9_000, num_steps=10, **case)
    assert parity.holds, parity.failures


def test_a_replayed_state_is_gone_on_from() -> None:
    estimator = make("bayes-logistic")
    start = estimator.start(4)
    mean = start.params["mean"] + np.linspace(-0.3, 0.4, len(start.params["mean"]))
    moved = estimators.EstimatorState(dict(start.params) | {"mean": mean, "coefficients": mean}, start.stats, 5, 3)
    parity = check_kernel_parity(estimator, device=DEVICE, vocab=50, num_steps=12, state=moved)
    assert parity.holds, parity.failures
    assert parity.refits == 2  # after 1 step, and after 6 more


@pytest.mark.parametrize("broken", ["intercepts", "weights"])
def test_a_kernel_that_is_slightly_off_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = make("online-logistic")
    device_class = type(device_estimator(estimator, 1, 1, torch.device(DEVICE)))
    refit = device_class._refit

    def off(self: object) -> None:
        refit(self)  # type: ignore[arg-type]
        getattr(self.law, broken).mul_(1 + 1e-4)  # type: ignore[attr-defined]

    monkeypatch.setattr(device_class, "_refit", off)
    parity = check_kernel_parity(estimator, device=DEVICE, vocab=50, num_steps=12)
    assert not parity.holds
    assert "params" in parity.failures[0]


def test_differences_are_measured_by_what_rounding_allows() -> None:
    parity = Parity()
    parity.compare("x", np.array([1.0, np.nan, np.inf]), np.array([1.0 + 1e-7, np.nan, np.inf]), 2e-7)
    assert parity.holds
    assert parity.worst["x"] == pytest.approx(0.5)
    parity.compare("x", np.array([1.0, 2.0]), np.array([1.0, np.nan]), 2e-7)
    assert parity.failures[0].startswith("x[1] in step 0")


def test_an_estimator_without_kernels_is_refused() -> None:
    with pytest.raises(InputError, match="position-rate has no kernels; those that have: online-logistic"):
        device_estimator(estimators.make("position-rate"), 4, 3, torch.device("cpu"))


def test_all_kernels_compile_for_sm_90() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("sm90.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert len({entry["kernel"] for entry in compiled}) >= 10
    assert all(entry["cubin_bytes"] > 0 and entry["shared_bytes"] <= 227 * 1024 for entry in compiled)
