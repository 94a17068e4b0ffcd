"""Sizes of a plain decoder, written out or taken from a known model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from avsim.costs.model_shape import ModelShape
from avsim.costs.shapes import model as load_shape
from avsim.costs.shapes import models
from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["DTYPES", "DecoderShape", "parse_shape"]

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a value."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes:
        intermediate: width of the feed-forward, or of one expert.
        experts, top_k: experts of every layer, and how many a token meets; 0 for a dense decoder.
        head_dim: None for hidden ÷ heads.

    Raises:
        InputError: sizes that make no decoder.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    head_dim: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name in ("experts", "top_k") else 1
            if value is not None and value < low:
                raise InputError(f"shape: {field.name} must be at least {low}, not {value}")
        if self.heads % self.kv_heads:
            raise InputError(f"shape: heads = {self.heads} is no multiple of kv_heads = {self.kv_heads}")
        if self.head_dim is None and self.hidden % self.heads:
            raise InputError(f"shape: hidden = {self.hidden} is no multiple of heads = {self.heads}; give head_dim=")
        if self.width % 2:
            raise InputError(f"shape: head_dim = {self.width} must be even, for rotary positions")
        if bool(self.experts) != bool(self.top_k) or self.top_k > self.experts:
            raise InputError(
                f"shape: top_k = {self.top_k} of experts = {self.experts}; both, top_k the smaller, or neither"
            )

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def layer_params(self) -> int:
        attention = self.hidden * self.width * (2 * self.heads + 2 * self.kv_heads)
        one = 3 * self.hidden * self.intermediate
        return attention + (self.experts * (one + self.hidden) if self.experts else one) + 2 * self.hidden

    @property
    def params(self) -> int:
        """All weights; embedding and LM head counted once."""
        return self.layers * self.layer_params + self.vocab * self.hidden

    @property
    def kv_values(self) -> int:
        """Cached values of a token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.width

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items() if value)


def parse_shape(text: str) -> DecoderShape:
    """Read `layers=…,hidden=…,…`, or a model's name (`avsim list costs`) or file with changes: `llama-3.1-8b,layers=4`.

    Raises:
        InputError: an unknown or missing size, or a model that is no plain decoder.

    >>> parse_shape("llama-3.1-8b,layers=4").layers
    4
    """
    known = [field.name for field in fields(DecoderShape)]
    sizes: dict[str, int] = {}
    name: str | None = None
    for index, part in enumerate(part.strip() for part in text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals and index == 0 and part:
            name = part
            continue
        key = key.replace("-", "_")
        if key not in known:
            hint = suggest(key, [*known, *models()] if index == 0 and not equals else known)
            raise InputError(f"shape: no size {key!r}{hint}")
        if key in sizes:
            raise InputError(f"shape: {key} is given twice")
        if not value.isdigit():
            raise InputError(f"shape: {key} must be a whole number, not {value!r}")
        sizes[key] = int(value)
    if name is not None:
        sizes = _sizes_of(load_shape(name)) | sizes
    missing = [name for name in known[:6] if name not in sizes]
    if missing:
        raise InputError(
            f"shape: {', '.join(missing)} missing; write layers=…,hidden=…,heads=…,kv_heads=…,… or a model"
        )
    return DecoderShape(**sizes)


def _sizes_of(shape: ModelShape) -> dict[str, int]:
    """Return the sizes of a shape that this decoder can take on."""
    plain_kv = len(shape.kv) == 1 and shape.kv[0].ratio == 1 and shape.kv[0].most is None
    plain_kv = plain_kv and shape.kv[0].values == 2.0 * shape.kv_heads * shape.head_dim
    if not plain_kv:
        raise InputError(
            f"shape {shape.name}: its attention (MLA, windows or compression) is not that of a plain decoder"
        )
    dense = {"layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads}
    dense |= {"vocab": shape.vocab, "head_dim": shape.head_dim, "intermediate": shape.intermediate}
    if not shape.experts:
        return dense
    if shape.dense_layers or shape.shared_params > shape.hidden * shape.experts:
        raise InputError(
            f"shape {shape.name}: it has dense layers or shared experts besides its routed ones; not built"
        )
    width = round(shape.expert_params / (3 * shape.hidden))
    return dense | {"intermediate": width, "experts": shape.experts, "top_k": shape.experts_per_token}
