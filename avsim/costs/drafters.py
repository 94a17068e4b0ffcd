"""Drafters that a roofline knows, as stacks of layers beside a target."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from avsim.costs.draft import DraftForm
from avsim.costs.model_shape import DENSE_KERNELS, KvGroup, ModelShape, residual_values
from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["DRAFTER_KINDS", "DrafterShape", "drafter_for"]

DRAFTER_KINDS = ("eagle", "eagle3", "mtp", "dflash", "dspark", "draft-model", "ngram")

_EAGLE3_VOCAB = 32_000
_DFLASH_LAYERS = 5
_MARKOV_RANK = 256


@dataclass(frozen=True)
class DrafterShape:
    """What a drafter runs, besides its stack of layers.

    Attributes:
        kind: a name in `DRAFTER_KINDS`.
        form: see `DraftParts`.
        stack: its layers and its LM head's vocabulary; None for n-grams.
        fusion_params: weights that join the target's hidden states, once for every target row.
        queries_per_slot_extra: tokens of a block beside its slots: 1 where the block holds the bonus token too.
        slot_params: weights read once more for every slot, in order: a Markov head.
        assumptions: what no source confirms.
    """

    kind: str
    form: DraftForm
    stack: ModelShape | None
    fusion_params: float = 0.0
    queries_per_slot_extra: int = 0
    slot_params: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def trace_kind(self) -> str:
        """The kind in the words of a trace's card."""
        return "eagle" if self.kind == "eagle3" else self.kind

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DrafterShape:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        stack = None if data["stack"] is None else ModelShape.from_json(data["stack"])
        return cls(**data | {"stack": stack, "assumptions": tuple(data["assumptions"])})


def drafter_for(
    kind: str, target: ModelShape, *, layers: int | None = None, model: ModelShape | None = None
) -> DrafterShape:
    """Return the shape of a drafter beside its target.

    eagle: one dense layer, [embedding; hidden] → hidden before it, the target's LM head (EAGLE, arXiv 2401.15077).
    eagle3: the same with three fused hidden states, a layer that reads both inputs, and a draft vocabulary of 32,000
    (EAGLE-3, arXiv 2503.01840). mtp: one layer of the target's kind (DeepSeek-V3, arXiv 2412.19437). dflash: five dense
    layers over a block, their KV also made from five hidden states of the target (DFlash, arXiv 2602.06036). dspark:
    the same with a Markov head of rank 256; beside DeepSeek-V4 three layers of the target's kind (its checkpoints).
    draft-model: a model of its own. ngram: a look-up on the CPU, free of charge here.

    Raises:
        InputError: unknown kind, or a draft model without its shape.
    """
    if kind not in DRAFTER_KINDS:
        raise InputError(f"drafter {kind!r} is unknown{suggest(kind, DRAFTER_KINDS)}")
    if layers is not None and (layers < 1 or kind in ("draft-model", "ngram")):
        raise InputError(f"drafter {kind}: drafter_layers must be at least 1, and is not for draft-model and ngram")
    if (model is not None) != (kind == "draft-model"):
        raise InputError(f"drafter {kind}: drafter_model is for draft-model, which needs it")
    hidden = target.hidden
    if kind == "ngram":
        return DrafterShape(kind, "ngram", None)
    if model is not None:
        return DrafterShape(kind, "autoregressive", replace(model, source=""))
    if kind == "eagle":
        return DrafterShape(kind, "autoregressive", _dense(target, layers or 1), 2.0 * hidden * hidden)
    if kind == "eagle3":
        stack = _dense(target, layers or 1)
        wider = stack.attention_params + hidden * target.head_dim * (target.heads + 2 * target.kv_heads)
        stack = replace(stack, attention_params=wider, vocab=min(target.vocab, _EAGLE3_VOCAB))
        return DrafterShape(kind, "autoregressive", stack, 3.0 * hidden * hidden)
    if kind == "mtp":
        return DrafterShape(kind, "autoregressive", _alike(target, layers or 1), 2.0 * hidden * hidden)
    context = float(_DFLASH_LAYERS * hidden * hidden)
    if kind == "dflash":
        return DrafterShape(kind, "block", _dense(target, layers or _DFLASH_LAYERS), context, 1)
    markov, assumed = float(_MARKOV_RANK * target.vocab), tuple[str, ...]()
    if target.dspark_layers is not None:
        stack = _alike(target, layers or target.dspark_layers)
    else:
        stack = _dense(target, layers or _DFLASH_LAYERS)
        assumed = () if layers else (f"a DSpark drafter of {_DFLASH_LAYERS} dense layers, as DFlash",)
    return DrafterShape(kind, "block", stack, context, 0, markov, assumed)


def _dense(target: ModelShape, layers: int) -> ModelShape:
    """Return dense layers as wide as the target's, in BF16, with plain attention."""
    heads = target.head_dim * (target.heads + 2 * target.kv_heads)
    attention, whole = float(target.hidden * heads + target.heads * target.head_dim * target.hidden), 0.0
    if target.kv[0].heads == 1:  # compressed caches: projections and cache as the target's
        attention, whole = target.attention_params, target.whole_params
    return replace(
        target,
        name=f"{layers} dense layers",
        layers=layers,
        attention_params=attention,
        dense_layers=layers,
        dense_params=3.0 * target.hidden * target.intermediate,
        experts=0,
        experts_per_token=0,
        kv=_cache(target, layers),
        dtype="bf16",
        expert_dtype="bf16",
        whole_params=whole,
        bf16_params=0.0,
        residual=residual_values(target.hidden),
        kernels=DENSE_KERNELS,
        source="",
    )


def _alike(target: ModelShape, layers: int) -> ModelShape:
    """Return layers like the target's last ones."""
    dense = layers if target.experts == 0 else 0
    name = f"{layers} layers of the target's kind"
    return replace(target, name=name, layers=layers, dense_layers=dense, kv=_cache(target, layers), source="")


def _cache(target: ModelShape, layers: int) -> tuple[KvGroup, ...]:
    """Return the cache of drafter layers: whole where the target has such layers, else its window."""
    single = [group for group in target.kv if group.ratio == 1]
    whole = [group for group in single if group.most is None]
    return (replace((whole or single)[0], layers=layers),)
