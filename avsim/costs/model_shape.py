"""The shape of a decoder, and how it is read from a model's own `config.json` keys."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from avsim.errors import InputError

__all__ = ["BYTES", "DENSE_KERNELS", "KvGroup", "ModelShape", "residual_values"]

BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes of a weight or a cached value. fp4 has one FP8 scale for 16 values (NVFP4); FP8's block scales are left out."""


DENSE_KERNELS = 10.0
"""Kernels of a Llama layer, see `_kernels`."""


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
        attention_params: weights of one layer's attention projections; `whole_params` of them are not split over GPUs.
        bf16_params: further weights of a layer, in BF16 and whole on every GPU: compressors, hyper-connections.
        dense_layers, dense_params: layers with a dense feed-forward, and the weights of one.
        experts, experts_per_token, expert_params: of the other layers; `shared_params`: what every token goes through.
        activations: values that a token reads and writes per layer and that are split over GPUs; `residual`: that are
            not; see `_activations`.
        kernels: launched one after the other in a layer, collectives apart; see `_kernels`.
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
    whole_params: float = 0.0
    bf16_params: float = 0.0
    residual: float = 0.0
    kernels: float = 0.0
    source: str = ""

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def total_params(self) -> float:
        """All weights, with embedding and LM head counted apart."""
        experts = self.moe_layers * (self.experts * self.expert_params + self.shared_params)
        layers = self.layers * (self.attention_params + self.bf16_params)
        return layers + self.dense_layers * self.dense_params + experts + 2 * self.head_params

    @property
    def active_params(self) -> float:
        """The weights that one token meets, LM head included, embedding not."""
        experts = self.moe_layers * (self.experts_per_token * self.expert_params + self.shared_params)
        layers = self.layers * (self.attention_params + self.bf16_params)
        return layers + self.dense_layers * self.dense_params + experts + self.head_params

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
    attention = _attention(data, hidden, layers, heads, kv_heads, head_dim)
    used = per_token * expert_width + shared * expert_width if experts else width
    dtype = str(data.get("weights", "bf16"))
    streams = int(data.get("hc_mult") or (4 if "compress_ratios" in data else 1))  # the default of DeepSeek-V4
    shape = ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=int(data["vocab_size"]),
        attention_params=attention.params,
        dense_layers=first_dense,
        dense_params=3.0 * hidden * width,
        experts=experts,
        experts_per_token=per_token,
        expert_params=3.0 * hidden * expert_width,
        shared_params=3.0 * hidden * expert_width * shared + hidden * experts,
        activations=_activations(heads, kv_heads, head_dim, used),
        kv=attention.kv,
        dtype=dtype,
        expert_dtype=str(data.get("expert_weights", dtype)),
        heads=heads,
        head_dim=head_dim,
        kv_heads=kv_heads,
        intermediate=width,
        dspark_layers=int(data["dspark_layers"]) if data.get("dspark_layers") else None,
        whole_params=attention.whole,
        bf16_params=attention.bf16 + _mixing(hidden, streams),
        residual=residual_values(hidden, streams),
        kernels=_kernels(data, experts, dtype),
        source=str(data.get("source", "")),
    )
    if shape.dtype not in BYTES or shape.expert_dtype not in BYTES:
        raise ValueError(f"weights must be one of {', '.join(BYTES)}")
    return shape


def _activations(heads: int, kv_heads: int, head_dim: int, width: int) -> float:
    """Count values read and written per token and layer, in and out of the projections."""
    return 2.0 * (heads + 2 * kv_heads) * head_dim + 3.0 * width


def residual_values(hidden: int, streams: int = 1) -> float:
    """Count values of the residual that a token reads and writes per layer, on every GPU.

    Twice a layer: one stream is read with what is added to it, and written with its norm. Of s hyper-connected ones
    s + 1 are read and s written where they are added to, s are read to be weighed, and s again where they are summed
    into one (vLLM 0.33, model_executor/kernels/mhc/tilelang.py).
    """
    return 8.0 * hidden if streams == 1 else 2.0 * (4 * streams + 2) * hidden


def _mixing(hidden: int, streams: int) -> float:
    """Return the weights of two hyper-connections; they are float32, so each counts for two."""
    return 0.0 if streams == 1 else 2.0 * 2 * (2 + streams) * streams * streams * hidden


def _kernels(data: dict[str, Any], experts: int, dtype: str) -> float:
    """Return how many kernels a decoding layer launches one after the other, collectives apart.

    Counted in vLLM 0.33's code for NVIDIA GPUs, as it runs by default in a full CUDA graph; what runs beside them on a
    second stream is left out. Llama: norm, QKV, rotation, cache, attention, output, norm, and two projections around an
    activation. With experts 13 to 16, by their kernels. MLA: 24 with FP8 weights, which are preceded by a kernel that
    quantises what they multiply. DeepSeek-V4: 23 to 29, by the kind of layer.
    """
    if "compress_ratios" in data:
        return 26.0
    if data.get("kv_lora_rank"):
        return 24.0 if dtype == "fp8" else 19.0
    return 14.0 if experts else DENSE_KERNELS


@dataclass(frozen=True)
class _Attention:
    """A layer's attention; see `ModelShape`."""

    params: float
    kv: tuple[KvGroup, ...]
    whole: float = 0.0
    bf16: float = 0.0


def _attention(data: dict[str, Any], hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> _Attention:
    if "compress_ratios" in data:
        return _compressed(data, hidden, layers, heads, head_dim)
    if data.get("kv_lora_rank"):
        rank, rope = int(data["kv_lora_rank"]), int(data["qk_rope_head_dim"])
        nope, value = int(data["qk_nope_head_dim"]), int(data["v_head_dim"])
        query = int(data.get("q_lora_rank") or 0)
        wide = heads * (nope + rope)
        queries = hidden * query + query * wide if query else hidden * wide
        params = queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
        kv = (KvGroup(layers, rank + rope, 2.0 * heads * (2 * rank + rope), 1),)
        return _Attention(float(params), kv, float(hidden * (query + rank + rope)))
    params = hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
    values, flops = 2.0 * kv_heads * head_dim, 4.0 * heads * head_dim
    window = data.get("sliding_window") if data.get("use_sliding_window", True) else None
    if not window:
        return _Attention(float(params), (KvGroup(layers, values, flops, kv_heads),))
    kinds = data.get("layer_types") or ["sliding_attention", "full_attention"] * (layers // 2)
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    local = KvGroup(sliding, values, flops, kv_heads, most=int(window))
    return _Attention(float(params), (local, KvGroup(layers - sliding, values, flops, kv_heads)))


_SCALES = 8
"""Bytes of scales beside an FP8 entry of DeepSeek-V4's cache, whose rotated part is BF16 (vLLM 0.33: 584 bytes)."""


def _compressed(data: dict[str, Any], hidden: int, layers: int, heads: int, head_dim: int) -> _Attention:
    """Read DeepSeek-V4's attention: one KV head, a window of single tokens, and entries for 4 or 128 tokens each.

    Of entries for 4 tokens an indexer reads keys and picks the top k. Compressors are BF16, key and gate: of two
    overlapping windows where an entry holds 4 tokens. Every GPU holds them, the indexer and the projections down whole
    (vLLM 0.33, models/deepseek_v4).
    """
    query, groups, out = int(data["q_lora_rank"]), int(data["o_groups"]), int(data["o_lora_rank"])
    whole = float(hidden * query + hidden * head_dim)
    params = whole + query * heads * head_dim + heads * head_dim * out + groups * out * hidden
    flops, values = 4.0 * heads * head_dim, float(head_dim + int(data["qk_rope_head_dim"]) + _SCALES)
    found, bf16 = [KvGroup(layers, values, flops, 1, most=int(data["sliding_window"]))], 0.0
    for ratio, count in sorted(Counter(data["compress_ratios"][:layers]).items()):
        picks, share = ratio == 4, count / layers
        if ratio:
            found.append(KvGroup(count, values, flops, 1, ratio, int(data["index_topk"]) if picks else None))
            bf16 += share * hidden * head_dim * (4 if picks else 2)
        if picks:
            width, index_heads = int(data["index_head_dim"]), int(data["index_n_heads"])
            found.append(KvGroup(count, float(width), 2.0 * index_heads * width, 1, ratio))
            indexer = share * query * index_heads * width
            params, whole = params + indexer, whole + indexer
            bf16 += share * hidden * (4 * width + index_heads)
    return _Attention(params, tuple(found), whole, bf16)
