"""The roofline against sums written out by hand for one model, and what moves which term."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from avsim.costs import RooflineCost, StepShape, load
from avsim.costs.roofline import distinct_experts
from avsim.errors import InputError

PLAIN = "bandwidth_efficiency=1,compute_efficiency=1,kernel_us=0,cpu_ms=0,sampler_passes=0,eager_us_per_layer=0"


def build(text: str) -> RooflineCost:
    model = load(f"roofline:{text}")
    assert isinstance(model, RooflineCost)
    return model


def step(reqs: int, tokens: int, kv: float = 0.0, prefill: int = 0, depth: int | None = None) -> StepShape:
    deep = None if depth is None else np.array([depth])
    return StepShape(np.array([reqs]), np.array([tokens]), np.array([kv]), np.array([prefill]), deep)


LLAMA_LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
LLAMA_ACTIVATIONS = 32 * (8 * 4096 + 2 * 48 * 128 + 3 * 14336) * 2


def test_a_small_step_reads_weights_head_and_cache() -> None:
    model = build(f"llama-3.1-8b,gpu=h100,{PLAIN}")
    moved = (32 * LLAMA_LAYER + 128256 * 4096) * 2 + 8 * LLAMA_ACTIVATIONS + 20_000 * 2 * 32 * 1024 * 2
    assert model.verify_ms(step(8, 8, 20_000)) == pytest.approx([moved / 3350e6])


def test_a_large_step_computes() -> None:
    model = build(f"llama-3.1-8b,gpu=h100,{PLAIN}")
    work = 2 * (32 * LLAMA_LAYER + 128256 * 4096) * 4096 / 989.4e9
    assert model.verify_ms(step(4096, 4096)) == pytest.approx([work + 4096 * LLAMA_ACTIVATIONS / 3350e6])


def test_a_request_reads_its_cache_once_for_all_its_tokens() -> None:
    """Verifying 8 tokens of one request reads its KV once; 8 requests with one token each read 8 caches."""
    model = build(f"llama-3.1-8b,gpu=h100,head=false,{PLAIN}")
    empty = model.verify_ms(step(1, 8))
    once, each = model.verify_ms(step(1, 8, 8000.0)) - empty, model.verify_ms(step(8, 8, 64_000.0)) - empty
    assert once == pytest.approx([8000 * 131_072 / 3350e6])
    assert each == pytest.approx(8 * once)


def test_context_stands_in_for_the_cache_of_each_step() -> None:
    fixed, free = build("llama-3.1-8b,gpu=h100,context=4096"), build("llama-3.1-8b,gpu=h100")
    assert fixed.verify_ms(step(8, 8, 1.0)) == pytest.approx(free.verify_ms(step(8, 8, 8 * 4096.0)))
    assert (fixed.uses_kv, free.uses_kv) == (False, True)
    assert (fixed.card.context_tokens, free.card.context_tokens) == (4096, None)


def test_distinct_experts() -> None:
    """Against the expectation of independent draws without replacement inside a token, by simulation."""
    rng = np.random.default_rng(1)
    seen = [len(np.unique([rng.permutation(64)[:6] for _ in range(10)])) for _ in range(3000)]
    found = distinct_experts(64, 6, np.array([10, 1, 1, 1]), np.array([10, 1, 10, 10]), 0.0)
    assert found == pytest.approx([np.mean(seen), 6.0, np.mean(seen), np.mean(seen)], rel=0.01)
    assert distinct_experts(64, 6, np.array([1]), np.array([10]), 1.0) == pytest.approx([6.0])
    between = distinct_experts(64, 6, np.array([1]), np.array([10]), 0.5)
    assert 6.0 < between[0] < found[0]


def test_tokens_of_one_request_share_experts() -> None:
    """64 tokens of 8 requests read fewer experts than 64 of 64; without correlation as many."""
    for correlation, shared in ((0.5, True), (0.0, False)):
        model = build(f"qwen3-30b-a3b,gpu=h100,head=false,expert_correlation={correlation}")
        few, many = model.verify_ms(step(8, 64)), model.verify_ms(step(64, 64))
        assert bool(few[0] < many[0]) is shared


def test_a_window_bounds_what_is_read() -> None:
    model = build(f"gpt-oss-120b,gpu=h200,head=false,{PLAIN}")
    short, long = (model.verify_ms(step(4, 4, 4 * context)) - model.verify_ms(step(4, 4)) for context in (128, 12_800))
    per_token = 18 * 1024 * 2 / 4800e6
    assert short == pytest.approx([2 * 4 * 128 * per_token])
    assert long == pytest.approx([4 * 128 * per_token + 4 * 12_800 * per_token])


def test_only_caches_with_several_heads_are_split() -> None:
    for name, split in (("llama-3.1-70b", 4), ("deepseek-v3", 1)):
        times = {}
        for tp in (8, 2 * 8):
            model = build(f"{name},gpu=mi355x,tp={tp},collective_us=0,head=false,{PLAIN}")
            times[tp] = model.verify_ms(step(1, 1, 1e6)) - model.verify_ms(step(1, 1))
        assert times[16] == pytest.approx(times[8])  # 8 KV heads at most, or one latent cache
        model = build(f"{name},gpu=mi355x,tp=4,head=false,collective_us=0,{PLAIN}")
        four = model.verify_ms(step(1, 1, 1e6)) - model.verify_ms(step(1, 1))
        assert four == pytest.approx(times[8] * (2 if split == 4 else 1))


def test_what_every_gpu_holds_whole_does_not_shrink() -> None:
    """DeepSeek-V4-Flash on four GPUs, one token: bytes a GPU by the shapes of vLLM 0.33, and the kernels' latency."""
    spec = f"deepseek-v4-flash,gpu=b300,tp=4,head=false,collective_us=0,{PLAIN}"
    model = build(spec)
    hidden, by_four_layers, by_128_layers = 4096, 21, 20
    down = (1024 + 512) * hidden
    mixing = 2 * 24 * 4 * hidden * 4  # float32
    split = (1024 * 64 * 512 + 64 * 512 * 1024 + 8 * 1024 * hidden + 3 * hidden * 2048 + hidden * 256) / 4
    by_four = 8192 * 1024 + (2048 + 512 + 64) * hidden * 2
    experts = 6 * 3 * hidden * 2048 * 0.5625 / 4
    weights = 43 * (down + mixing + split + experts) + by_four_layers * by_four + by_128_layers * 1024 * hidden * 2
    token = 43 * 2 * (36 * hidden + (2 * 66 * 512 + 3 * 7 * 2048) / 4)
    moved = 2 * 0.75 * 43 * 2 * hidden * 2 / 900e6
    assert model.verify_ms(step(1, 1)) == pytest.approx([(weights + token) / 7700e6 + moved])
    slow = build(spec.replace("kernel_us=0", "kernel_us=2"))
    assert slow.verify_ms(step(1, 1)) - model.verify_ms(step(1, 1)) == pytest.approx([43 * 26 * 2e-3])


def test_tensor_parallelism_pays_for_its_collectives() -> None:
    bare = build(f"llama-3.1-70b,gpu=h200,tp=4,head=false,collective_us=0,{PLAIN}")
    slow = build(f"llama-3.1-70b,gpu=h200,tp=4,head=false,collective_us=7,{PLAIN}")
    assert slow.verify_ms(step(1, 1)) - bare.verify_ms(step(1, 1)) == pytest.approx([2 * 80 * 7e-3])
    moved = 2 * 80 * 2 * 0.75 * 512 * 8192 * 2 / 450e6
    faster = RooflineCost(**{**vars(bare), "gpu": type(bare.gpu)(**{**vars(bare.gpu), "link_gb_s": 1e12})})
    assert bare.verify_ms(step(512, 512)) - faster.verify_ms(step(512, 512)) == pytest.approx([moved])


def test_tokens_are_padded_to_captured_sizes_and_beyond_the_limit_kernels_are_launched() -> None:
    model = build("llama-3.1-8b,gpu=h100,head=false,capture_limit=256,eager_us_per_layer=2000")
    sizes = np.arange(1, 400)
    ms = model.verify_ms(StepShape(sizes, sizes, 0.0 * sizes, 0 * sizes))
    assert np.unique(ms[8:16]).size == 1
    assert np.unique(ms[:256]).size == 35  # 1, 2, 4, and every 8 to 256
    assert ms[256] == pytest.approx(64.0)  # 32 layers · 2 ms
    assert (np.diff(ms) >= 0).all()
    assert model.verify_ms(step(9, 40, prefill=32)) == pytest.approx([64.0])  # a mixed step runs no full graph


def test_the_cpu_is_a_floor_or_a_sum() -> None:
    hidden, summed = (build(f"llama-3.1-8b,gpu=h100,drafter=eagle,cpu_ms=30,overlap={value}") for value in (1, 0))
    bare = build("llama-3.1-8b,gpu=h100,drafter=eagle,cpu_ms=0")
    one = step(4, 16, depth=3)
    gpu = bare.step_ms(one, drafting=True)
    assert gpu[0] < 30
    assert hidden.step_ms(one, drafting=True) == pytest.approx([30.0])
    assert summed.step_ms(one, drafting=True) == pytest.approx(gpu + 30)
    many = step(1024, 4096, depth=3)
    assert hidden.step_ms(many, drafting=True) == pytest.approx(bare.step_ms(many, drafting=True))


def test_what_drafters_cost_by_depth() -> None:
    """EAGLE: a first pass over the rows whether wanted or not, then a pass and a head per slot. Blocks: nearly flat."""
    eagle, block, lookup = (
        build(f"llama-3.1-8b,gpu=h100,drafter={kind},cpu_ms=0") for kind in ("eagle", "dflash", "ngram")
    )
    ms = [eagle.draft_ms(step(4, 20, depth=depth))[0] for depth in range(6)]
    assert ms[0] > 0
    assert np.diff(ms[1:]) == pytest.approx([ms[2] - ms[1]] * 4)
    assert ms[2] - ms[1] > ms[1] - ms[0] > 0  # the first slot only lacks a head, the next ones a pass as well
    deep = [block.draft_ms(step(4, 20, depth=depth))[0] for depth in range(8)]
    assert deep[0] < 0.1 * deep[1]
    assert deep[7] < 1.2 * deep[1]
    assert lookup.draft_ms(step(4, 20, depth=5)).tolist() == [0.0]
    assert not lookup.draft_depends_on_depth
    more_rows = eagle.draft_ms(step(4, 512, depth=0))
    assert more_rows[0] > ms[0]


def test_it_says_that_it_is_an_estimate() -> None:
    card = build("deepseek-v4-flash,gpu=b300,tp=4,drafter=dspark,context=8192").card
    assert card.kind == "roofline"
    assert "nothing measured" in card.source
    assert card.drafter_kind == "dspark"
    assert "Experts: a request's further tokens count 0.8 new ones each" in card.notes
    assert "a DSpark drafter of 5 dense layers" in build("qwen3-8b,gpu=h100,drafter=dspark").card.notes
    assert "ASSUMED" in build("qwen3-8b,gpu=mi300x").card.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-3.1-70b,gpu=h200", "takes 141 GB of weights, and tp=1 × h200 hold 141 GB; raise tp or lower dtype"),
        ("llama-3.1-8b,gpu=h200,dtype=int8", "dtype must be one of bf16, fp8, fp4, not 'int8'"),
        ("llama-3.1-8b,gpu=h200,bandwidth_efficiency=0", r"bandwidth_efficiency must lie in \(0, 1.5\]"),
        ("llama-3.1-8b,gpu=h200,kernel_us=-1", "kernel_us must be finite and ≥ 0"),
        ("llama-3.1-8b,gpu=h200,tp=0", "tp and k must be at least 1"),
        ("llama-3.1-8b,gpu=h200,expert_correlation=2", "expert_correlation must lie in"),
        ("llama-3.1-8b", "roofline needs gpu"),
        ("llama-3.1-8b,gpu=h200,drafter=tree", "drafter 'tree' is unknown"),
        ("llama-3.1-8b,gpu=h200,cpu=3", "no option 'cpu'"),
        ("llama-3.1-8b,gpu=h200,context=-5", "context at least 0"),
    ],
)
def test_bad_specs_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"roofline:{text}")


def test_how_far_it_is_off_published_curves_is_what_it_says() -> None:
    """Medians and worst errors with the defaults are in the card; with the efficiencies fitted, medians are small."""
    check = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "experiments/roofline-check/run.py")))
    notes = build("llama-3.1-8b,gpu=h100").card.notes
    for _, preset, spec, sizes, max_reqs, context in check.CASES:
        plain, steps = load(spec), check.shape(sizes, max_reqs, context)
        assert isinstance(plain, RooflineCost)
        truth = load(preset).verify_ms(steps)
        off = 100 * np.abs(plain.verify_ms(steps) / truth - 1)
        assert f"{np.median(off):.0f} % (" in notes
        assert f"worst {off.max():.0f} %)" in notes
        fitted = check.fit(plain, steps, truth, check.TERMS[:2])
        assert np.median(np.abs(fitted.verify_ms(steps) / truth - 1)) < 0.1
