"""A Transformers model on packed steps: its own layers, with attention over one static cache for each request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from avsim.capture.dense.drafters import load_drafter, split_spec
from avsim.capture.dense.drafters.chain import check_full_attention
from avsim.capture.dense.model import Model
from avsim.costs.profile.decoder_shape import DTYPES
from avsim.costs.profile.machine import check_memory, describe_machine
from avsim.costs.profile.packed import KvPool, PackedStep
from avsim.costs.profile.runner import Step, require
from avsim.errors import InputError
from avsim.registry import suggest

__all__ = ["ATTENTION", "DRAFTER_KINDS", "TransformersRunner", "packed_states", "transformers_runner"]

ATTENTION = "avsim_packed"
DRAFTER_KINDS = ("eagle", "draft-model")


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *,
    packed: PackedStep | None = None, scaling: float | None = None, **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Attention in the form that Transformers calls: `[1, heads, rows, width]` in, `[1, rows, heads, width]` out."""
    if packed is None:
        raise InputError(
            f"{type(module).__name__} does not hand its keyword arguments to attention, so it cannot run packed steps; "
            "profile it through --runner"
        )
    queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    return packed.attend(module.layer_idx, queries, keys, values, scaling)[None], None


def packed_states(model: Model, ids: Any, step: PackedStep) -> Any:
    """Return the last hidden states `[rows, width]` of packed token ids."""
    return model.body(
        input_ids=ids[None], position_ids=step.positions[None], use_cache=False, packed=step
    ).last_hidden_state[0]


class TransformersRunner:
    """Steps of a Transformers model, and of an EAGLE head or a draft model beside it."""

    def __init__(self, target: Model, drafter: Any, device: str, about: dict[str, str]):
        """`drafter`: what `load_drafter` gives, or None."""
        self.torch, transformers = require("torch"), require("transformers")
        self.target, self.drafter, self.device = target, drafter, device
        self.name = f"Transformers {transformers.__version__}, {about.get('model', target.name)}"
        self.pool = KvPool(device, target.dtype)
        self._about = about
        transformers.AttentionInterface.register(ATTENTION, _attend)
        for body in (target.body, self._draft_body()):
            if body is not None:
                _use_packed_attention(body)

    def verify(self, queries: Sequence[int], context: int) -> Step:
        torch, target = self.torch, self.target
        step = PackedStep(queries, context, self.pool, "target")
        ids = torch.randint(target.vocab_size, (sum(queries),), device=self.device)

        def run() -> Any:
            with torch.inference_mode():
                return target.logits(packed_states(target, ids, step)).argmax(-1)

        return run

    def draft(self, num_reqs: int, depth: int, context: int) -> Step | None:
        if self.drafter is None:
            return None
        torch, drafter = self.torch, self.drafter
        steps = [
            PackedStep((1,) * num_reqs, context + slot, self.pool, "drafter", length=context + depth)
            for slot in range(depth)
        ]
        first = torch.randint(self.target.vocab_size, (num_reqs,), device=self.device)
        state = torch.randn_like(self.target.embed(first))
        advance = _eagle_pass if drafter.kind == "eagle" else _model_pass

        def run() -> Any:
            ids, hidden = first, state
            with torch.inference_mode():
                for step in steps:
                    ids, hidden = advance(drafter, ids, hidden, step)
            return ids

        return run

    def describe(self) -> dict[str, str]:
        return self._about

    def _draft_body(self) -> Any:
        if self.drafter is None:
            return None
        return self.drafter.body if self.drafter.kind == "eagle" else self.drafter.model.body


def _model_pass(drafter: Any, ids: Any, hidden: Any, step: PackedStep) -> tuple[Any, Any]:
    model = drafter.model
    return model.logits(packed_states(model, ids, step)).argmax(-1), hidden


def _eagle_pass(drafter: Any, ids: Any, hidden: Any, step: PackedStep) -> tuple[Any, Any]:
    torch, body, target = require("torch"), drafter.body, drafter.target
    embedded = target.embed(ids) if drafter.table is None else drafter.table[ids]
    x = body.fc(torch.cat([embedded, hidden], -1))[None]
    turned = body.rotary(x, step.positions[None])
    for layer in body.layers:
        x = layer(x, attention_mask=None, use_cache=False, position_embeddings=turned, packed=step)
    hidden = x[0]
    logits = target.logits(hidden) if drafter.head is None else (hidden @ drafter.head.T).float()
    return logits.argmax(-1), hidden


def _use_packed_attention(body: Any) -> None:
    configs = [getattr(body, "config", None), *(getattr(layer.self_attn, "config", None) for layer in body.layers)]
    for config in configs:
        if config is not None:
            config._attn_implementation = ATTENTION


def transformers_runner(model: str, drafter: str | None, device: str, dtype: str) -> TransformersRunner:
    """Load a model folder and a drafter: `eagle:DIR`, `draft-model:DIR`, `draft-model:first-N`, or None.

    Raises:
        InputError: no such model or drafter, one that cannot run packed steps, or too little memory.
    """
    if dtype not in DTYPES:
        raise InputError(f"--dtype is {dtype!r}{suggest(dtype, DTYPES)}")
    kind = split_spec(drafter)[0] if drafter else None
    if kind is not None and kind not in DRAFTER_KINDS:
        raise InputError(
            f"--drafter {drafter}: a profile can run {' and '.join(DRAFTER_KINDS)} drafters; for another, take "
            "--runner, or `avsim cost fit` on a captured trace of an engine that runs it"
        )
    require("torch")
    transformers = require("transformers")
    folder = Path(model)
    _check_weights(folder, device, dtype)
    target = Model.load(model, device, dtype)
    layers = getattr(target.body, "layers", None)
    if layers is None or not all(hasattr(layer, "self_attn") for layer in layers):
        raise InputError(
            f"{model}: {type(target.lm).__name__} keeps its attention elsewhere than in layers[i].self_attn"
        )
    check_full_attention(target.body.config, model)
    made = load_drafter(drafter, target) if drafter else None
    config = target.lm.config
    about = {
        "model": folder.resolve().name,
        "vocab_size": str(target.vocab_size),
        "dtype": dtype,
        "weights": f"{type(target.lm).__name__} in {dtype}, from a checkpoint",
        "config_sha256": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "layers": str(config.num_hidden_layers),
        "hidden": str(config.hidden_size),
        "includes": "LM head and greedy sampling (argmax of float32 logits) of every token, and Transformers' Python "
        "where no CUDA graph replays it",
        "excludes": "rejection sampling beyond argmax, input preparation, scheduling, detokenisation, several devices",
        "padding": "none: rows are packed, attention runs apart for each query length",
        "attention": "PyTorch's scaled_dot_product_attention on a static cache per request, no pages",
        "content": "random token ids and random cached keys and values",
        "transformers": str(transformers.__version__),
    }
    if kind is not None and drafter is not None:
        about |= {"drafter_kind": kind, "drafter": f"{kind}:{Path(split_spec(drafter)[1]).name}"}
        about["drafting"] = (
            "every pass over one row a request, LM head and argmax each; nothing for further rows of T + B"
        )
    return TransformersRunner(target, made, device, about | describe_machine(device))


def _check_weights(folder: Path, device: str, dtype: str) -> None:
    """Refuse weights that do not fit, going by the size of their files."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        held = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    except (OSError, ValueError, AttributeError):
        return  # loading the model says what is wrong
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    check_memory({"weights": size * DTYPES[dtype] // DTYPES.get(held, 4)}, device)
