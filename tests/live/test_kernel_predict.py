"""Draft logits to confidences: the fused kernels against vLLM's own, against NumPy, and in both of their shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vllm_reference as vllm
from logit_rows import DEVICE, F32, INTERPRETED, UNIT, adversarial, assert_near, assert_same_bits, bounds

from avsim import estimators
from avsim.estimators.base import MEMORY
from avsim.estimators.beta_bernoulli import _BIN_OF_HALF, _LOWEST_HALF
from avsim.estimators.isotonic import CENTRES
from avsim.kernels.laws import GridLaw, LinearLaw
from avsim.kernels.ops import predict as ops
from avsim.kernels.reference import logits as reference

Rng = np.random.Generator
K = 3
NAMES = ("log_odds", "entropy", "margin")
only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="vLLM's estimator is run by the interpreter")


@pytest.fixture(autouse=True)
def _without_numpy_warnings() -> Iterator[None]:
    """A kernel divides by zero without a word; the interpreter's NumPy would warn."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(params=["split", "persistent"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test in both shapes, whichever the rows would call for."""
    monkeypatch.setattr(ops, "is_persistent", lambda rows, vocab: request.param == "persistent")
    return request.param


class Run:
    """A predictor with outputs that are poisoned before each call."""

    def __init__(self, law: LinearLaw | GridLaw, max_num_reqs: int, num_slots: int = K):
        self.law = law
        self.features = torch.empty((len(law.features), max_num_reqs, num_slots), device=DEVICE)
        self.predictions = torch.empty((max_num_reqs, num_slots), device=DEVICE)
        self.confidence = torch.empty((max_num_reqs, num_slots), device=DEVICE)
        self.predictor = ops.Predictor(DEVICE)

    def __call__(self, logits: torch.Tensor, slots: Any, step: Any, temperature: F32) -> Run:
        for output in (self.features, self.predictions, self.confidence):
            output.fill_(torch.nan)
        slots, step = (torch.as_tensor(value, device=DEVICE) for value in (slots, step))
        temperatures = torch.from_numpy(temperature).to(DEVICE)
        outputs = (self.features, self.predictions)
        self.predictor(logits.to(DEVICE), slots, step, self.confidence, temperatures, self.law, *outputs)
        return self


def on_device(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(DEVICE)


def in_numpy(law: LinearLaw | GridLaw) -> LinearLaw | GridLaw:
    tensors = ("table",) if isinstance(law, GridLaw) else ("weights", "intercepts", "memory", "memory_weights")
    return replace(law, **{name: None if (t := getattr(law, name)) is None else t.cpu().numpy() for name in tensors})


def online(slope: float = 0.5, intercepts: Any = (-0.2, 0.1, 0.4)) -> LinearLaw:
    return LinearLaw(("log_odds_f32",), on_device([slope]), on_device(intercepts))


def several(rng: Rng, max_num_reqs: int = 0, memory_size: int = 3) -> LinearLaw:
    """All features, and a memory where there are requests to keep it for."""
    weights, intercepts = on_device(rng.normal(0, 0.5, 3)), on_device(rng.normal(0, 0.5, K))
    if not max_num_reqs:
        return LinearLaw(NAMES, weights, intercepts)
    memory = on_device(rng.normal(0, 0.5, (max_num_reqs, memory_size)))
    return LinearLaw(NAMES, weights, intercepts, memory, on_device(rng.normal(0, 1, memory_size)))


def grid(rng: Rng, *, interpolate: bool = True) -> GridLaw:
    return GridLaw(on_device(np.sort(rng.random((K, 64)), axis=1)), -5.0, 3.0, interpolate)


# --- vLLM's own kernels ---------------------------------------------------------------------------------------------


@only_interpreted
@pytest.mark.parametrize("vocab", [1, 2, 60, 4097, 9000])
@pytest.mark.parametrize("one_pass", [False, True])
def test_bits_are_those_of_vllm(vocab: int, one_pass: bool, shape: str) -> None:
    rng = np.random.default_rng(vocab)
    slots, temperature = np.array([3, 0, 2]), np.array([0.0, 1.0, 0.7, 1.6], dtype=np.float32)
    theirs = vllm.VllmEstimator(4, K, 100)
    theirs.inner.slope.fill_(0.813)
    theirs.inner.intercepts.copy_(torch.tensor([-0.31, 0.07, 0.9]))
    run = Run(online(0.813, [-0.31, 0.07, 0.9]), 4)
    for scale in (0.3, 12):
        logits = torch.from_numpy(rng.normal(0, scale, (3, K, vocab)).astype(np.float32))
        predict = theirs.predict_block if one_pass else theirs.predict
        confidence = torch.from_numpy(predict(slots, logits, temperature))
        if one_pass:
            found = run(logits.reshape(3 * K, vocab), slots.repeat(K), np.tile(np.arange(K), 3), temperature)
            found = found.confidence[:3].clone()
        else:
            found = torch.stack(
                [run(logits[:, k], slots, k, temperature).confidence[:3, k].clone() for k in range(K)], dim=1
            )
        assert_same_bits(found, confidence)
        at = slice(None) if one_pass else K - 1  # the outputs hold the last call only
        assert_same_bits(run.features[0, slots][:, at], torch.from_numpy(theirs.features[slots])[:, at])
        assert_same_bits(run.predictions[slots][:, at], torch.from_numpy(theirs.predictions[slots])[:, at])


# --- one computation, two shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 2, 4095, 4096, 4097, 12_300])
@pytest.mark.parametrize("names", [NAMES, ("log_odds",), ("log_odds_f32",), ("log_odds_f32", *NAMES)])
def test_both_shapes_give_the_same_bits(vocab: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(vocab)
    law = LinearLaw(names, on_device(rng.normal(0, 1, len(names))), on_device(rng.normal(0, 1, K)))
    rows = torch.from_numpy(rng.normal(0, 4, (3, vocab)).astype(np.float32))
    rows[1, vocab // 2] = rows[1].max()
    rows[2, vocab // 3] = torch.nan
    dtype = [torch.float32, torch.float16, torch.bfloat16][vocab % 3]
    temperature = np.float32([0, 0.7, 1.2])
    runs = []
    for persistent in (False, True):
        monkeypatch.setattr(ops, "is_persistent", lambda rows, vocab, it=persistent: it)
        runs.append(Run(law, 3)(rows.to(dtype), [2, 0, 1], 1, temperature))
    for name in ("features", "predictions", "confidence"):
        assert_same_bits(getattr(runs[1], name), getattr(runs[0], name))
    assert runs[0].confidence[:2, 1].isfinite().all()


def test_the_shape_is_chosen_by_the_shape_of_the_logits() -> None:
    assert [ops.is_persistent(rows, 128_256) for rows in (1, 64, 1055, 1056, 4096)] == [False, False, False, True, True]
    assert [ops.is_persistent(1, vocab) for vocab in (1, 8192, 8193)] == [True, True, False]


# --- the laws -------------------------------------------------------------------------------------------------------


LAWS: dict[str, Callable[[Rng], LinearLaw | GridLaw]] = {
    "one-feature": lambda rng: LinearLaw(("log_odds",), on_device([0.7]), on_device([0.1, 0.2, 0.3])),
    "several": several,
    "memory": lambda rng: several(rng, 90),
    "one-number-kept": lambda rng: several(rng, 90, memory_size=1),
    "grid": grid,
    "grid-without-interpolation": lambda rng: grid(rng, interpolate=False),
}


@pytest.mark.parametrize("name", LAWS)
def test_p_is_that_of_the_reference(name: str, shape: str) -> None:
    rng = np.random.default_rng(1)
    law = LAWS[name](rng)
    rows = np.concatenate([rng.normal(0, scale, (22, 90)) for scale in (0.5, 3, 20)])[:65].astype(np.float32)
    slots, steps = rng.permutation(90)[:65], rng.integers(0, K, 65)
    temperature = rng.choice(np.float32([0, 0.7, 1, 1.6, -1]), 90)
    run = Run(law, 90)
    # Rows with steps of their own are K per request, so 65 of them belong to 22 requests.
    run(torch.from_numpy(rows), slots, steps, temperature)
    found = dict(zip(law.features, run.features[:, slots, steps].cpu().numpy(), strict=True))
    for feature, expected in reference.features(rows, temperature[slots], law.features).items():
        assert_near(feature, found[feature], expected, bounds(feature, rows, temperature[slots]))
    p = run.predictions[slots, steps].cpu().numpy()
    expected = reference.predict(in_numpy(law), found, slots, steps)
    if INTERPRETED:
        np.testing.assert_array_equal(p.view(np.int32), expected.view(np.int32))
    else:
        # Square roots and tables are exact; the exponential is off by 4u and by its argument's rounding.
        with np.errstate(divide="ignore"):
            logit = np.abs(np.log(expected / (1 - expected)))
        assert (np.abs(p - expected) <= UNIT * (8 + 4 * np.nan_to_num(logit, posinf=40))).all()
    assert int(run.predictions.isfinite().sum()) == 65


@pytest.mark.parametrize("spec", ["online-logistic", "bayes-logistic", "request-adaptive", "multi-logistic"])
def test_linear_laws_are_those_of_the_estimators(spec: str) -> None:
    """The law as documented in LinearLaw, filled from an estimator's parameters, predicts what the estimator does."""
    rng = np.random.default_rng(2)
    estimator = estimators.make(spec)
    params = dict(estimator.init(K))
    memory = rng.normal(0, 0.5, (8, estimator.memory_size)).astype(np.float32)
    if spec == "online-logistic":
        weights, intercepts, kept = params["slope"], rng.normal(0, 1, K).astype(np.float32), None
        params["intercepts"] = intercepts
    else:
        mean = rng.normal(0, 0.6, len(params["mean"]))
        params["mean"] = params["coefficients"] = mean
        shared, level = mean.astype(np.float32)[: -1 - K], mean.astype(np.float32)[-1 - K]
        intercepts = level + mean.astype(np.float32)[-K:]
        size = len(estimator.features)
        weights = shared[:size]
        kept = [shared[-2], 0, shared[-1]] if estimator.memory_size == 3 else [1, 0][: estimator.memory_size] or None
    law = LinearLaw(estimator.features, on_device(weights), on_device(intercepts))
    if kept is not None:
        law = replace(law, memory=on_device(memory), memory_weights=on_device(kept))
    rows = rng.normal(0, 3, (8, 300)).astype(np.float32)
    slots = rng.permutation(8)
    run = Run(law, 8)
    for k in range(K):
        run(torch.from_numpy(rows), slots, k, np.zeros(8, dtype=np.float32))
        columns = {name: run.features[at, slots, k].cpu().numpy()[None] for at, name in enumerate(law.features)}
        columns[MEMORY] = memory[slots].T
        columns = {name: np.repeat(x, K, axis=0) if name != MEMORY else x for name, x in columns.items()}
        expected = estimator.predict(params, columns, (K, 8))[k]
        np.testing.assert_allclose(run.predictions[slots, k].cpu().numpy(), expected, rtol=0, atol=4 * UNIT)


@pytest.mark.parametrize("spec", ["isotonic", "beta-bernoulli"])
def test_grid_laws_are_those_of_the_estimators(spec: str) -> None:
    rng = np.random.default_rng(3)
    estimator = estimators.make(spec)
    params = dict(estimator.init(K))
    if spec == "isotonic":
        params["curve"] = np.sort(rng.random((K, len(CENTRES))), axis=1).astype(np.float32)
        law = GridLaw(on_device(params["curve"]), float(CENTRES[0]), 3.0, True)
    else:
        params = {name: rng.uniform(1, 9, value.shape) for name, value in params.items()}
        mean = (params["alpha"] / (params["alpha"] + params["beta"])).astype(np.float32)
        law = GridLaw(on_device(mean[:, _BIN_OF_HALF]).contiguous(), _LOWEST_HALF / 2, 2.0, False)
    rows = np.zeros((66, 40), dtype=np.float32)
    rows[:64, 0] = np.linspace(-8, 24, 64)  # log-odds of −3.7 to 20
    rows[64, 0] = np.nan
    rows[65, 2:] = -np.inf
    rows[65, 2] = -16  # log-odds just below 0: its distance from the lowest edge rounds up to the edge at 0
    rows = np.concatenate([rows, adversarial(90)[:, :40]])
    slots = rng.permutation(len(rows))
    run = Run(law, len(rows))
    run(torch.from_numpy(rows), slots, 1, np.zeros(len(rows), dtype=np.float32))
    f = run.features[0, slots, 1].cpu().numpy()
    assert np.isnan(f[64])
    assert f[65] < 0
    assert f[65] + np.float32(3.5) == 3.5
    expected = estimator.predict(params, {"log_odds": np.repeat(f[None], K, axis=0)}, (K, len(rows)))[1]
    found = run.predictions[slots, 1].cpu().numpy()
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    assert np.isfinite(found).all()


def test_the_last_cell_of_a_grid_reads_nothing_beyond_it(shape: str) -> None:
    law = grid(np.random.default_rng(0))
    law.table[[0, 2]] = torch.nan
    last = law.table[1, -1].item()
    rows = torch.zeros(2, 30)
    rows[:, 4] = torch.tensor([30.0, 60.0])
    found = Run(law, 2)(rows, [0, 1], 1, np.zeros(2, dtype=np.float32)).predictions[:, 1].tolist()
    assert found == [last, last]


# --- what is written and what is not --------------------------------------------------------------------------------


def test_padded_rows_touch_nothing(shape: str) -> None:
    run = Run(several(np.random.default_rng(0), 5), 5)
    rows = torch.full((4, 5000), torch.nan)
    rows[[0, 2]] = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0))
    run(rows, [4, -1, 1, -1], 2, np.full(5, 0.9, dtype=np.float32))
    assert run.predictions.isfinite().nonzero().tolist() == [[1, 2], [4, 2]]
    assert run.confidence.isfinite().nonzero().tolist() == [[0, 2], [2, 2]]
    assert run.features.isfinite().all(dim=0).nonzero().tolist() == [[1, 2], [4, 2]]
    assert int(run.features.isfinite().sum()) == 6
    assert run.predictions[[4, 1], 2].tolist() == run.confidence[[0, 2], 2].tolist()


def test_blocks_drafted_at_once_go_to_the_request_that_owns_them(shape: str) -> None:
    run = Run(online(), 6)
    rows = torch.from_numpy(np.random.default_rng(0).normal(0, 3, (3 * K, 64)).astype(np.float32))
    slots = np.repeat([5, -1, 2], K)
    run(rows, slots, np.tile(np.arange(K), 3), np.zeros(6, dtype=np.float32))
    assert_same_bits(run.confidence[[0, 2]], run.predictions[[5, 2]])
    assert run.confidence[[1, 3, 4, 5]].isnan().all()
    assert run.predictions[[0, 1, 3, 4]].isnan().all()
    one = Run(online(), 6)
    for k in range(K):
        one(rows[k::K][[0, 2]], [5, 2], k, np.zeros(6, dtype=np.float32))
        assert_same_bits(one.predictions[[5, 2], k], run.predictions[[5, 2], k])


def test_no_rows_launch_nothing(shape: str) -> None:
    run = Run(online(), 4)(torch.empty(0, 70), np.empty(0, dtype=np.int32), 0, np.zeros(4, dtype=np.float32))
    assert run.predictions.isnan().all()
    assert run.confidence.isnan().all()


def test_a_nan_row_touches_no_other(shape: str) -> None:
    law = several(np.random.default_rng(0))
    rows = torch.randn(4, 4400, generator=torch.Generator().manual_seed(1))
    temperature = np.float32([1, 0.5, 0, 2])
    clean = Run(law, 4)(rows, [0, 1, 2, 3], 0, temperature)
    rows[1, 4300] = torch.nan
    spoilt = Run(law, 4)(rows, [0, 1, 2, 3], 0, temperature)
    others = [0, 2, 3]
    for name in ("predictions", "confidence"):
        assert_same_bits(getattr(spoilt, name)[others, 0], getattr(clean, name)[others, 0])
    assert spoilt.features[:, 1, 0].isnan().all()
    assert spoilt.predictions[1, 0].isnan()


def test_slices_of_larger_tensors(shape: str) -> None:
    """Columns of a cache of logits, every other slot of a mapping, outputs that are slices themselves."""
    law = several(np.random.default_rng(0), 4)
    cache = torch.randn(3, K, 4300, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    mapping = torch.tensor([3, 9, 1, 9, 0, 9], dtype=torch.int32, device=DEVICE)
    temperature = np.float32([0.7, 1, 1, 0])
    wide = torch.full((4, 2 * K + 1), torch.nan, device=DEVICE)
    run = Run(law, 4)
    run.confidence = wide[:, 1 : K + 1]
    run(cache[:, 1, 5:4205], mapping[::2], 2, temperature)
    plain = Run(law, 4)(cache[:, 1, 5:4205].contiguous(), [3, 1, 0], 2, temperature)
    if INTERPRETED:  # compiled, the order of a sum depends on how many logits can be loaded together
        assert_same_bits(run.confidence, plain.confidence)
        assert_same_bits(run.features, plain.features)
    assert torch.allclose(run.predictions, plain.predictions, atol=1e-4, equal_nan=True)
    assert int(wide.isfinite().sum()) == 3


def test_what_cannot_be_computed_is_refused() -> None:
    run = Run(online(), 2)
    with pytest.raises(ValueError, match="must lie side by side; their stride is 2"):
        run(torch.zeros(2, 8)[:, ::2], [0, 1], 0, np.zeros(2, dtype=np.float32))
    table = torch.zeros(K, 9)
    for law, message in (
        (GridLaw(torch.zeros(9, K).T, -1.0, 2.0, interpolate=False), "table of the law must be contiguous"),
        (GridLaw(table, -0.3, 2.0, interpolate=False), "must be a whole number"),
        (replace(online(), features=("colour",)), "no kernel computes colour"),
    ):
        run.law = law
        with pytest.raises(ValueError, match=message):
            run(torch.zeros(2, 8), [0, 1], 0, np.zeros(2, dtype=np.float32))


# --- compiled for sm_90, without a GPU ------------------------------------------------------------------------------


def run_compiled(script: str) -> Any:
    """Run a script in a process where Triton compiles, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    here = Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parents[1])])
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_both_shapes_add_in_the_same_order_when_compiled() -> None:
    """Every sum over a block or over blocks has one layout across threads, and no product is fused into a sum."""
    found = run_compiled(
        """
import json, re, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from avsim.kernels.ops import partials, predict
kernels = [partials.SPECIALISATIONS[1], *predict.SPECIALISATIONS[:2]]
found = []
for kernel, signature, constants, options in kernels:
    source = ASTSource(fn=kernel, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\\w+) = (.*)$", text, re.M))
    sums = re.findall(r"\\}\\) : \\(tensor<(\\d+)xf32, (#\\w+)>\\) -> f32", text)
    wide = [line for line in made.asm["ptx"].splitlines() if "ld.global.v4.b32" in line or "cp.async.cg" in line]
    found.append([sorted({(size, layouts[name]) for size, name in sums}), bool(wide), made.metadata.enable_fp_fusion])
print(json.dumps(found))
"""
    )
    (partials, *loads), (persistent, *more), (combine, *fused) = found
    assert {size for size, _ in persistent} == {"4096", "32"}
    assert sorted(partials + combine) == persistent
    assert loads == more == [True, False]
    assert fused == [False, False]


def test_another_number_of_requests_compiles_nothing_new() -> None:
    found = run_compiled(
        """
import json, torch, launches
from triton.runtime import jit
from avsim.kernels.laws import LinearLaw
from avsim.kernels.ops.predict import Predictor
from avsim.kernels.ops.reduce import Reducer
jit.JITFunction.run = launches.note
R, K, vocab = launches.R, launches.K, 32_000
law = LinearLaw(("log_odds", "entropy"), torch.ones(2), torch.ones(K), torch.ones(R, 2), torch.ones(2))
features, predictions, table = torch.ones(2, R, K), torch.ones(R, K), torch.ones(R + 1, K, 2)
logits, wide, predictor = torch.zeros(2048, vocab), torch.ones(R, K + 2), Predictor("cpu")
reducer = Reducer(["entropy", "margin"], 0, R * K, torch.device("cpu"))
for offset, batch in enumerate((*launches.BATCHES, 1056, 1057, 2048)):
    slots = launches.ints(2 * batch, offset % 8)[:: 1 + offset % 2]
    rows = logits[:batch] if offset % 3 else logits[offset : offset + min(batch, 1500)]
    temperature = torch.ones(R + 8)[offset % 8 :]
    confidence = wide[:, offset % 3 : offset % 3 + K]
    predictor(rows, slots, torch.tensor(offset % K), confidence, temperature, law, features, predictions)
    reducer(table, rows, slots, torch.tensor(1), temperature)
print(json.dumps({name: len(asked) for name, asked in launches.ASKED.items()}))
"""
    )
    assert found == {"_partials_kernel": 2, "predict_kernel": 1, "persistent_kernel": 1, "_table_kernel": 1}
