"""Shapes of models against the parameter counts that their makers publish, and what a bad config gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avsim.costs.drafters import DRAFTER_KINDS, drafter_for
from avsim.costs.shapes import gpu, gpus, model, models
from avsim.errors import InputError

PUBLISHED = {  # total and active parameters, 10⁹, from the model cards
    "deepseek-r1": (671, 37),
    "deepseek-v3": (671, 37),
    "deepseek-v4-flash": (284, 13),
    "deepseek-v4-pro": (1600, 49),
    "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12),
    "gpt-oss-120b": (117, 5.1),
    "kimi-k2": (1040, 32),
    "llama-3.1-70b": (70.6, 70.6),
    "llama-3.1-8b": (8.03, 8.03),
    "qwen3-235b-a22b": (235, 22),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-8b": (8.2, 8.2),
}


@pytest.mark.parametrize("name", models())
def test_a_shape_has_the_published_number_of_parameters(name: str) -> None:
    total, active = PUBLISHED[name]
    shape = model(name)
    assert shape.total_params / 1e9 == pytest.approx(total, rel=0.02)
    assert shape.active_params / 1e9 == pytest.approx(active, rel=0.1)  # makers count embeddings or not


def test_bytes_of_the_cache_per_token() -> None:
    """Llama: 2 · 32 layers · 8 heads · 128 values. DeepSeek-V3: 61 layers of 512 + 64 values, whatever the heads."""
    (llama,), (deepseek,) = model("llama-3.1-8b").kv, model("deepseek-v3").kv
    assert llama.layers * llama.values == 2 * 32 * 8 * 128
    assert (deepseek.layers * deepseek.values, deepseek.heads) == (61 * 576, 1)
    local, whole = model("gpt-oss-120b").kv
    assert (local.layers, local.most, whole.layers, whole.most) == (18, 128, 18, None)


def test_every_preset_names_its_source() -> None:
    assert all(model(name).source.strip() for name in models())
    assert all(gpu(name).source.strip() for name in gpus())


def test_a_gpu_computes_in_the_next_wider_type() -> None:
    assert gpu("h100").peak("fp4") == gpu("h100").peak("fp8") == 1978.9e12
    assert gpu("a100").peak("fp8") == 312e12


def test_a_config_file_of_ones_own(tmp_path: Path) -> None:
    keys = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 10
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": keys}), encoding="utf-8")
    shape = model(str(path))
    assert shape.total_params == 2 * (4 * 64 * 64 + 3 * 64 * 128) + 2 * 640
    for change, message in (
        ({"vocab_size": None}, "cannot read its config"),
        ({"num_hidden_layers": 0}, "sizes must be at least 1"),
        ({"weights": "int3"}, "weights must be one of bf16, fp8, fp4"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "experts per token"),
    ):
        path.write_text(json.dumps(keys | change), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            model(str(path))
    path.write_text(json.dumps({"hidden_size": 64}), encoding="utf-8")
    with pytest.raises(InputError, match="the key 'num_hidden_layers' is missing"):
        model(str(path))
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="must be a JSON object"):
        model(str(path))
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="not valid JSON"):
        gpu(str(path))


def test_unknown_names_are_corrected() -> None:
    with pytest.raises(InputError, match=r"no model preset or file 'lama-3\.1-8b'; did you mean 'llama-3\.1-8b'"):
        model("lama-3.1-8b")
    with pytest.raises(InputError, match="no gpu preset or file 'h20'; did you mean 'h200'"):
        gpu("h20")


@pytest.mark.parametrize("kind", [kind for kind in DRAFTER_KINDS if kind not in ("ngram", "draft-model")])
def test_drafters_are_small(kind: str) -> None:
    for name in models():
        target, drafter = model(name), drafter_for(kind, model(name))
        assert drafter.stack is not None
        own = drafter.stack.total_params - 2 * drafter.stack.head_params
        assert 0 < own < 0.2 * target.total_params


def test_an_eagle_head_for_llama_has_its_published_size() -> None:
    """EAGLE's head for an 8B Llama: one layer of 0.22 B parameters, and 0.03 B to join embedding and feature."""
    drafter = drafter_for("eagle", model("llama-3.1-8b"))
    assert drafter.stack is not None
    layer = drafter.stack.total_params - 2 * drafter.stack.head_params
    assert (layer / 1e9, drafter.fusion_params / 1e9) == pytest.approx((0.218, 0.0336), rel=0.01)


def test_bad_drafters_are_named() -> None:
    target = model("llama-3.1-8b")
    with pytest.raises(InputError, match="drafter 'eagel' is unknown; did you mean"):
        drafter_for("eagel", target)
    with pytest.raises(InputError, match="drafter_model is for draft-model"):
        drafter_for("draft-model", target)
    with pytest.raises(InputError, match="drafter_layers must be at least 1"):
        drafter_for("eagle", target, layers=0)


def test_weights_of_latent_attention() -> None:
    """DeepSeek-V3's projections of a layer: down, up for queries; down for the cache; up for keys, values; out."""
    expected = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * 256 + 128 * 128 * 7168
    assert model("deepseek-v3").attention_params == expected == 187_105_280
