"""Shapes of models and GPUs that a roofline needs, read from a model's own `config.json` keys and from data sheets."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["BYTES", "Gpu", "KvGroup", "ModelShape", "gpu", "gpus", "model", "models"]

BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes of a weight or a cached value. fp4 has one FP8 scale for 16 values (NVFP4); FP8's block scales are left out."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of a data sheet, dense peaks.

    Attributes:
        hbm_gb_s: memory bandwidth, GB/s.
        hbm_gb: memory, GB.
        tflops: dense peak by dtype, TFLOP/s; an fp4 or fp8 model on a GPU without it computes in the next wider type.
        link_gb_s: bandwidth to the other GPUs, one direction, GB/s.
        source: the data sheet, and where it was read. notes: what no source confirms.
    """

    name: str
    hbm_gb_s: float
    hbm_gb: float
    tflops: dict[str, float]
    link_gb_s: float
    source: str
    notes: str = ""

    def __post_init__(self) -> None:
        for term in ("hbm_gb_s", "hbm_gb", "link_gb_s"):
            if not getattr(self, term) > 0:
                raise InputError(f"GPU {self.name}: {term} must be > 0, not {getattr(self, term)}")
        if "bf16" not in self.tflops or not all(key in BYTES and value > 0 for key, value in self.tflops.items()):
            raise InputError(f"GPU {self.name}: tflops must hold bf16, and otherwise fp8 or fp4, all > 0")

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s for weights of a dtype."""
        wider = {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "bf16": ("bf16",)}[dtype]
        return next(self.tflops[name] for name in wider if name in self.tflops) * 1e12


@dataclass(frozen=True)
class KvGroup:
    """Layers that keep the same cache: per layer, `values` for every `ratio` tokens, of at most `most` entries read.

    `flops` are those of one token's attention to one entry, per layer. `heads`: KV heads that tensor parallelism can
    split; 1 where every GPU reads the whole cache (MLA, one KV head).
    """

    layers: int
    values: float
    flops: float
    heads: int
    ratio: int = 1
    most: int | None = None


@dataclass(frozen=True)
class ModelShape:
    """What of a decoder a step reads and computes.

    Attributes:
        hidden, layers, vocab: widths and depth.
        attention_params: weights of one layer's attention projections.
        dense_layers, dense_params: layers with a dense feed-forward, and the weights of one.
        experts, experts_per_token, expert_params: of the other layers; `shared_params`: what every token goes through.
        activations: values that a token reads and writes per layer, see `_activations`.
        kv: the cache.
        dtype, expert_dtype: of the weights as published.
    """

    name: str
    hidden: int
    layers: int
    vocab: int
    attention_params: float
    dense_layers: int
    dense_params: float
    experts: int
    experts_per_token: int
    expert_params: float
    shared_params: float
    activations: float
    kv: tuple[KvGroup, ...]
    dtype: str
    expert_dtype: str
    heads: int
    head_dim: int
    kv_heads: int
    intermediate: int
    dspark_layers: int | None = None
    """Layers of the model's own DSpark drafter, which are of the target's kind."""
    source: str = ""

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def total_params(self) -> float:
        """All weights, with embedding and LM head counted apart."""
        experts = self.moe_layers * (self.experts * self.expert_params + self.shared_params)
        return (
            self.layers * self.attention_params + self.dense_layers * self.dense_params + experts + 2 * self.head_params
        )

    @property
    def active_params(self) -> float:
        """The weights that one token meets, LM head included, embedding not."""
        experts = self.moe_layers * (self.experts_per_token * self.expert_params + self.shared_params)
        return self.layers * self.attention_params + self.dense_layers * self.dense_params + experts + self.head_params

    @property
    def head_params(self) -> float:
        return float(self.vocab * self.hidden)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelShape:
        """Build from `dataclasses.asdict`; raises KeyError, TypeError or ValueError where it is malformed."""
        return cls(**data | {"kv": tuple(KvGroup(**group) for group in data["kv"])})

    @classmethod
    def from_config(cls, data: dict[str, Any], name: str) -> ModelShape:
        """Read a shape from the keys of a Hugging Face `config.json`.

        Llama, Qwen3, Qwen3-MoE, GLM-4.5, gpt-oss, DeepSeek-V3 (and Kimi-K2) and DeepSeek-V4 layouts are known.

        Raises:
            InputError: a key is missing or makes no sense.
        """
        data = data.get("text_config", data)
        try:
            return _read(data, name)
        except KeyError as error:
            raise InputError(f"model {name}: the key {error} is missing from its config") from None
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise InputError(f"model {name}: cannot read its config: {error}") from None


def _read(data: dict[str, Any], name: str) -> ModelShape:
    hidden, layers, heads = int(data["hidden_size"]), int(data["num_hidden_layers"]), int(data["num_attention_heads"])
    kv_heads = int(data.get("num_key_value_heads") or heads)
    head_dim = int(data.get("head_dim") or hidden // heads)
    experts = int(data.get("n_routed_experts") or data.get("num_local_experts") or data.get("num_experts") or 0)
    width = int(data.get("intermediate_size") or data["moe_intermediate_size"])
    expert_width = int(data.get("moe_intermediate_size") or width)
    per_token = int(data["num_experts_per_tok"]) if experts else 0
    first_dense = int(data.get("first_k_dense_replace") or 0) if experts else layers
    shared = int(data.get("n_shared_experts") or 0)
    if min(hidden, layers, heads, kv_heads, head_dim, width) < 1 or per_token > experts or first_dense > layers:
        raise ValueError("sizes must be at least 1, and experts per token and dense layers at most all of them")
    params, kv = _attention(data, hidden, layers, heads, kv_heads, head_dim)
    used = per_token * expert_width + shared * expert_width if experts else width
    dtype = str(data.get("weights", "bf16"))
    shape = ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=int(data["vocab_size"]),
        attention_params=params,
        dense_layers=first_dense,
        dense_params=3.0 * hidden * width,
        experts=experts,
        experts_per_token=per_token,
        expert_params=3.0 * hidden * expert_width,
        shared_params=3.0 * hidden * expert_width * shared + hidden * experts,
        activations=_activations(hidden, heads, kv_heads, head_dim, used),
        kv=kv,
        dtype=dtype,
        expert_dtype=str(data.get("expert_weights", dtype)),
        heads=heads,
        head_dim=head_dim,
        kv_heads=kv_heads,
        intermediate=width,
        dspark_layers=int(data["dspark_layers"]) if data.get("dspark_layers") else None,
        source=str(data.get("source", "")),
    )
    if shape.dtype not in BYTES or shape.expert_dtype not in BYTES:
        raise ValueError(f"weights must be one of {', '.join(BYTES)}")
    return shape


def _activations(hidden: int, heads: int, kv_heads: int, head_dim: int, width: int) -> float:
    """Count values read and written per token and layer: 8 of the residual, in and out of each projection else."""
    return 8.0 * hidden + 2.0 * (heads + 2 * kv_heads) * head_dim + 3.0 * width


def _attention(
    data: dict[str, Any], hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[float, tuple[KvGroup, ...]]:
    if "compress_ratios" in data:
        return _compressed(data, hidden, layers, heads, head_dim)
    if data.get("kv_lora_rank"):
        rank, rope = int(data["kv_lora_rank"]), int(data["qk_rope_head_dim"])
        nope, value = int(data["qk_nope_head_dim"]), int(data["v_head_dim"])
        query = int(data.get("q_lora_rank") or 0)
        wide = heads * (nope + rope)
        queries = hidden * query + query * wide if query else hidden * wide
        params = queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
        return float(params), (KvGroup(layers, rank + rope, 2.0 * heads * (2 * rank + rope), 1),)
    params = hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
    values, flops = 2.0 * kv_heads * head_dim, 4.0 * heads * head_dim
    window = data.get("sliding_window") if data.get("use_sliding_window", True) else None
    if not window:
        return float(params), (KvGroup(layers, values, flops, kv_heads),)
    kinds = data.get("layer_types") or ["sliding_attention", "full_attention"] * (layers // 2)
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    local = KvGroup(sliding, values, flops, kv_heads, most=int(window))
    return float(params), (local, KvGroup(layers - sliding, values, flops, kv_heads))


def _compressed(
    data: dict[str, Any], hidden: int, layers: int, heads: int, head_dim: int
) -> tuple[float, tuple[KvGroup, ...]]:
    """Read DeepSeek-V4's attention: one KV head, a window of single tokens, and entries for 4 or 128 tokens each.

    Left out: compressors and hyper-connections. Of entries for 4 tokens an indexer reads keys and picks the top k.
    """
    query, groups, out = int(data["q_lora_rank"]), int(data["o_groups"]), int(data["o_lora_rank"])
    params = float(hidden * query + query * heads * head_dim + hidden * head_dim)
    params += heads * head_dim * out + groups * out * hidden
    flops, values = 4.0 * heads * head_dim, float(head_dim)
    found = [KvGroup(layers, values, flops, 1, most=int(data["sliding_window"]))]
    for ratio, count in sorted(Counter(data["compress_ratios"][:layers]).items()):
        picks = ratio == 4
        if ratio:
            found.append(KvGroup(count, values, flops, 1, ratio, int(data["index_topk"]) if picks else None))
        if picks:
            width, index_heads = int(data["index_head_dim"]), int(data["index_n_heads"])
            found.append(KvGroup(count, width / 2, 2.0 * index_heads * width, 1, ratio))
            params += count / layers * (query * index_heads * width + hidden * (width + index_heads))
    return params, tuple(found)


def models() -> list[str]:
    """Return the names of the shipped model shapes."""
    return _names("models")


def gpus() -> list[str]:
    """Return the names of the shipped GPUs."""
    return _names("gpus")


def model(name: str) -> ModelShape:
    """Return a shipped model shape by name, or read one from a `config.json`.

    Raises:
        InputError: no such preset or file, or it cannot be read.

    >>> shape = model("llama-3.1-8b")
    >>> round(shape.total_params / 1e9, 2)
    8.03
    """
    return ModelShape.from_config(_document("models", name, "model"), Path(name).stem if "/" in name else name)


def gpu(name: str) -> Gpu:
    """Return a shipped GPU by name, or read one from a JSON file with the fields of `Gpu`.

    Raises:
        InputError: no such preset or file, or it cannot be read.
    """
    data = _document("gpus", name, "gpu")
    try:
        return Gpu(**{"name": name} | data)
    except TypeError as error:
        raise InputError(f"gpu {name}: {error}; it needs the fields of avsim/costs/gpus/h100.json") from None


def _names(folder: str) -> list[str]:
    found = resources.files("avsim.costs").joinpath(folder)
    return sorted(path.name.removesuffix(".json") for path in found.iterdir() if path.name.endswith(".json"))


def _document(folder: str, name: str, what: str) -> dict[str, Any]:
    known = _names(folder)
    try:
        if name in known:
            text = resources.files("avsim.costs").joinpath(folder, f"{name}.json").read_text(encoding="utf-8")
        elif Path(name).is_file():
            text = Path(name).read_text(encoding="utf-8")
        else:
            raise InputError(f"no {what} preset or file {name!r}{suggest(name, known)}")
        data = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{name}: a {what} must be a JSON object")
    return data
