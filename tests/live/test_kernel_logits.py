"""Features of draft logits: the kernels that a trace capture uses, against float64 in NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from logit_rows import DEVICE, F32, INTERPRETED, adversarial, assert_near, bounds

from avsim.capture import vllm_v2_device
from avsim.capture.reduce import feature_names
from avsim.features import log_odds, log_odds_f32
from avsim.kernels.ops.partials import Scratch
from avsim.kernels.ops.reduce import Reducer
from avsim.kernels.reference.logits import features

TEMPERATURES = (0.0, 0.7, 1.0, 1.6, -1.0)


@pytest.fixture(autouse=True)
def _without_numpy_warnings() -> Iterator[None]:
    """A kernel divides by zero without a word; the interpreter's NumPy would warn."""
    with np.errstate(all="ignore"):
        yield


def reduce(logits: torch.Tensor, temperature: F32, num_top: int = 2) -> dict[str, F32]:
    """Reduce rows by the kernels, one slot each, temperature by slot."""
    names = feature_names(num_top)
    table = torch.full((len(logits), 1, len(names)), torch.nan, device=DEVICE)
    slots = torch.arange(len(logits), dtype=torch.int32, device=DEVICE)
    reducer = Reducer(names, num_top, len(logits), DEVICE)
    reducer(table, logits, slots, torch.tensor(0, device=DEVICE), torch.from_numpy(temperature).to(DEVICE))
    return dict(zip(names, table[:, 0].cpu().numpy().T.copy(), strict=True))


def check(logits: F32, temperature: F32, num_top: int = 2, given: torch.Tensor | None = None) -> dict[str, F32]:
    """Require that all features lie within their bounds; those that round but once are equal when interpreted."""
    found = reduce(torch.from_numpy(logits).to(DEVICE) if given is None else given, temperature, num_top)
    for name, expected in features(logits, temperature, list(found)).items():
        assert_near(name, found[name], expected, bounds(name, logits, temperature))
    if INTERPRETED:
        expected = log_odds_f32(logits, temperature)
        np.testing.assert_array_equal(found["log_odds_f32"].view(np.int32), expected.view(np.int32))
    return found


@pytest.mark.parametrize("vocab", [1, 2, 3, 4095, 4096, 4097, 8193, 12_289])
def test_features_at_every_vocabulary(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    rows = np.concatenate([rng.normal(0, scale, (2, vocab)) for scale in (0.1, 3, 12)]).astype(np.float32)
    found = check(rows, np.resize(np.float32(TEMPERATURES), len(rows)), num_top=3)
    assert np.isinf(found["margin"]).all() == (vocab == 1)
    assert np.isneginf(found["top_logit_2"]).all() == (vocab < 3)


def test_features_of_a_real_vocabulary() -> None:
    rows = np.random.default_rng(0).normal(0, 2.5, (2, 49_152)).astype(np.float32)
    rows[1, 40_000] = 25
    check(rows, np.float32([0, 0.8]))


@pytest.mark.parametrize("vocab", [60, 9000])
def test_features_of_extreme_rows(vocab: int) -> None:
    rows = adversarial(vocab)
    found = check(rows, np.zeros(len(rows), dtype=np.float32), num_top=4)
    assert found["margin"][[0, 1, 5, 6]].tolist() == [0, 0, 0, 0]
    assert found["top_logit_2"][[0, 1, 5]].tolist() == [pytest.approx(np.sort(rows[0])[-3]), 20, 0.25]
    assert found["log_odds"][[2, 7]].tolist() == [40, 40]
    assert found["entropy"][2] == 0
    assert (found["entropy"] >= 0).all()


def test_the_stable_feature_resolves_what_the_float32_one_does_not() -> None:
    rows = np.zeros((3, 2), dtype=np.float32)
    rows[:, 1] = [14, 22, 33]
    found = check(rows, np.zeros(3, dtype=np.float32))
    np.testing.assert_allclose(found["log_odds"], [14, 22, 33], rtol=1e-6)
    assert found["log_odds_f32"][1:].tolist() == [40, 40]


def test_rows_with_nothing_to_say_are_nan_and_leave_others_alone() -> None:
    rows = np.random.default_rng(0).normal(0, 2, (6, 4500)).astype(np.float32)
    clean = reduce(torch.from_numpy(rows.copy()).to(DEVICE), np.zeros(6, dtype=np.float32))
    rows[1, 17] = np.nan
    rows[2, 4400] = np.nan
    rows[3] = -np.inf
    rows[4, :4096] = np.nan
    with pytest.warns(RuntimeWarning, match="All-NaN") if INTERPRETED else np.errstate():
        found = reduce(torch.from_numpy(rows).to(DEVICE), np.zeros(6, dtype=np.float32))
    for name, values in found.items():
        np.testing.assert_array_equal(values[[0, 5]], clean[name][[0, 5]], err_msg=name)
        if name != "log_odds_f32":  # that of vLLM, which is whatever it is
            assert np.isnan(values[1:5]).all(), name
    assert np.isnan(log_odds(rows)[1:5]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_strided_rows(dtype: torch.dtype) -> None:
    wide = torch.randn(5, 3, 4200, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype).to(DEVICE)
    temperature = np.float32([0.7, 0.0, 1.3, 1.0, 0.5])
    for rows in (wide[:, 1], wide[:, 2, 64:4164], wide[:, 0, 3:4100], wide[::2, 1, 1:]):
        found = check(rows.float().cpu().numpy(), temperature[: len(rows)], given=rows)
        same = reduce(rows.float().contiguous(), temperature[: len(rows)])
        if INTERPRETED:
            for name, values in found.items():
                np.testing.assert_array_equal(values, same[name], err_msg=name)


def test_offsets_pass_2_to_the_31() -> None:
    """Rows so far apart that the second one's offset does not fit 32 bits, though the stride does."""
    stride = 1 << 30
    far = torch.empty(2 * stride + 64, dtype=torch.float16, device=DEVICE)  # untouched memory costs nothing
    rows = far.as_strided((3, 50), (stride, 1))
    rows.copy_(torch.randn(3, 50))
    check(rows.float().cpu().numpy(), np.zeros(3, dtype=np.float32), given=rows)


def test_only_rows_of_requests_are_written() -> None:
    names = feature_names(2)
    table = torch.full((6, 3, len(names)), torch.nan, device=DEVICE)
    logits = torch.randn(4, 50, device=DEVICE)
    reducer = Reducer(names, 2, 12, DEVICE)
    temperature = torch.ones(6, device=DEVICE)
    slots = torch.tensor([4, -1, 0, -1], device=DEVICE)
    for steps in (torch.tensor(2), torch.tensor([2]), torch.tensor([2, 0, 2, 1], dtype=torch.int32)):
        table.fill_(torch.nan)
        reducer(table, logits, slots, steps.to(DEVICE), temperature)
        assert table.isfinite().all(dim=2).nonzero().tolist() == [[0, 2], [4, 2]]
        assert int(table.isfinite().sum()) == 2 * len(names)
    table.fill_(torch.nan)
    reducer(table, logits[:0], slots[:0], torch.tensor(0, device=DEVICE), temperature)
    assert table.isnan().all()


def test_a_slot_and_step_takes_its_own_row() -> None:
    """A drafter that makes a block at once: K rows for each request, slots far apart in a longer mapping."""
    names = ["entropy", "log_odds"]
    table = torch.full((5, 3, 2), torch.nan, device=DEVICE)
    rows = np.random.default_rng(3).normal(0, 2, (6, 70)).astype(np.float32)
    slots = torch.tensor([3, 9, 3, 9, 3, 9, 1, 9, 1, 9, 1, 9], device=DEVICE)[::2]
    temperature = torch.tensor([1.0, 0.6, 1.0, 2.0, 1.0], device=DEVICE)
    steps = torch.tensor([0, 1, 2, 2, 1, 0], device=DEVICE)
    Reducer(names, 0, 6, DEVICE)(table, torch.from_numpy(rows).to(DEVICE), slots, steps, temperature)
    scale = np.repeat(np.float32([2.0, 0.6]), 3)
    for at, name in enumerate(names):
        found = table[[3, 3, 3, 1, 1, 1], steps.cpu(), at].cpu().numpy()
        assert_near(name, found, features(rows, scale, [name])[name], bounds(name, rows, scale))


def test_sixteen_largest_logits_keep_their_multiplicity() -> None:
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 9, (4, 5000)).astype(np.float32)
    rows[1, :3] = [30, 20, 20]
    rows[2] = -np.inf
    rows[2, [1, 4500]] = [2, 1]
    rows[3] = rng.normal(0, 3, 5000)
    found = reduce(torch.from_numpy(rows).to(DEVICE), np.zeros(4, dtype=np.float32), num_top=16)
    top = np.stack([found[f"top_logit_{rank}"] for rank in range(16)], axis=1)
    np.testing.assert_array_equal(top, -np.sort(-rows, axis=1)[:, :16])


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(ValueError, match="no such features: top_logit_2, colour"):
        Reducer(["log_odds", "top_logit_2", "colour"], 2, 4, DEVICE)


def test_scratch_keeps_what_it_has_given() -> None:
    scratch = Scratch(5, 16, torch.device("cpu"))
    small = scratch.take(3, 2)
    assert small.shape == (5, 16, 2)
    assert scratch.take(16, 2) is small
    large = scratch.take(17, 2)
    assert large.shape == (5, 17, 2)
    assert scratch.take(1, 2) is large
    assert scratch.take(1, 7).shape == (5, 16, 7)
    assert scratch._made[2][0] is small  # a captured graph may still write there


def test_the_capture_writes_the_same_table_with_kernels_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    num_top, vocab = 3, 5000
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(0, scale, (3, vocab)) for scale in (1, 4)]).astype(np.float32)
    rows[5, [7, 4500]] = 20
    slots = torch.tensor([3, -1, 1, 0, -1, 2], device=DEVICE)
    temperature = torch.tensor([0.0, 0.5, 0.0, 2.0], device=DEVICE)
    assert not vllm_v2_device.has_kernels(torch.device("cpu"))
    made = {}
    for kernels in (False, True):
        monkeypatch.setattr(vllm_v2_device, "has_kernels", lambda _, kernels=kernels: kernels)
        tables = vllm_v2_device.DeviceTables(4, 2, feature_names(num_top), num_top, DEVICE)
        assert not tables.seen
        tables.write(torch.from_numpy(rows).to(DEVICE), slots, torch.tensor(1, device=DEVICE), temperature)
        assert tables.seen
        made[kernels] = tables.table[:4].cpu()
    assert torch.equal(made[True].isnan(), made[False].isnan())
    assert made[True][:, 0].isnan().all()
    live = slots.cpu() >= 0
    rows, at = rows[live], slots.cpu()[live]
    scale = temperature.cpu().numpy()[at]
    for place, name in enumerate(feature_names(num_top)):
        by_kernel, by_torch = (made[kernels][at, 1, place].numpy() for kernels in (True, False))
        # Torch sums in blocks of its own; at most one accumulator of 4 lanes takes all of a row.
        allowed = bounds(name, rows, scale) + bounds(name, rows, scale, additions=vocab // 4 + 20)
        assert_near(name, by_kernel, by_torch, allowed)
