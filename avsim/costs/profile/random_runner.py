"""Steps of a decoder with random weights, with a random EAGLE head or draft model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from avsim.costs.profile.decoder_shape import DTYPES, DecoderShape, parse_shape
from avsim.costs.profile.machine import check_memory, describe_machine
from avsim.costs.profile.packed import KvPool, PackedStep
from avsim.costs.profile.plan import ProfilePlan
from avsim.costs.profile.random_decoder import RandomDecoder
from avsim.costs.profile.runner import Step, require
from avsim.errors import InputError
from avsim.manifest import sha256_json
from avsim.registry import suggest

__all__ = ["RandomRunner", "random_runner"]


class RandomRunner:
    """Steps of a random decoder, and of a random EAGLE head or draft model beside it."""

    def __init__(
        self,
        target: RandomDecoder,
        drafter: RandomDecoder | None,
        drafter_kind: str | None,
        about: dict[str, str],
    ):
        self.target, self.drafter, self.drafter_kind = target, drafter, drafter_kind
        self.device = target.device
        self.name = f"random-weight decoder ({target.shape})"
        self.pool = KvPool(target.device, target.dtype)
        self.fusion = (
            target.matrix(drafter.shape.hidden, 2 * target.shape.hidden)
            if drafter_kind == "eagle" and drafter
            else None
        )
        self._about = about

    def verify(self, queries: Sequence[int], context: int) -> Step:
        torch, target = self.target.torch, self.target
        step = PackedStep(queries, context, self.pool, "target")
        rotary = target.rotary(step.positions)
        ids = torch.randint(target.shape.vocab, (sum(queries),), device=self.device)

        def run() -> Any:
            states = target.states(torch.nn.functional.embedding(ids, target.embedding), step, rotary)
            return target.logits(states).argmax(-1)

        return run

    def draft(self, num_reqs: int, depth: int, context: int) -> Step | None:
        drafter = self.drafter
        if drafter is None:
            return None
        torch, fusion = drafter.torch, self.fusion
        steps = [
            PackedStep((1,) * num_reqs, context + slot, self.pool, "drafter", length=context + depth)
            for slot in range(depth)
        ]
        turns = [drafter.rotary(step.positions) for step in steps]
        first = torch.randint(drafter.shape.vocab, (num_reqs,), device=self.device)
        state = torch.randn(num_reqs, self.target.shape.hidden, device=self.device, dtype=drafter.dtype)

        def run() -> Any:
            ids, hidden = first, state
            for step, rotary in zip(steps, turns, strict=True):
                x = torch.nn.functional.embedding(ids, drafter.embedding)
                if fusion is not None:
                    x = torch.nn.functional.linear(torch.cat([x, hidden], -1), fusion)
                hidden = drafter.states(x, step, rotary)
                ids = drafter.logits(hidden).argmax(-1)
            return ids

        return run

    def describe(self) -> dict[str, str]:
        return self._about


def random_runner(
    shape: DecoderShape, drafter: str | None, device: str, dtype: str, plan: ProfilePlan, seed: int = 0
) -> RandomRunner:
    """Build a random decoder and its drafter: `eagle`, `draft-model:SHAPE`, or None.

    Raises:
        InputError: an unknown dtype, drafter or device, or what is wanted does not fit into memory.
    """
    torch = require("torch")
    if dtype not in DTYPES:
        raise InputError(f"--dtype is {dtype!r}{suggest(dtype, DTYPES)}")
    beside, kind = _drafter_shape(drafter, shape)
    cells = plan.cells()
    rows = max(cell.num_tokens for cell in cells)
    held = max(cell.held_tokens for cell in cells if not cell.depth)
    size = DTYPES[dtype]
    # Logits in the model's dtype and in float32; the widest row of a layer, which experts multiply.
    wide = rows * max(shape.top_k, 1) * 4 * shape.intermediate * size
    parts = {"weights": shape.params * size, "KV cache": held * shape.kv_values * size}
    parts |= {"logits and activations": rows * shape.vocab * (size + 4) + wide}
    if beside is not None:
        own = beside.params - (shape.vocab * shape.hidden if kind == "eagle" else 0)
        drafted = max((cell.held_tokens for cell in cells if cell.depth), default=0)
        parts["drafter"] = (own + drafted * beside.kv_values) * size
    check_memory(parts, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    target = RandomDecoder(shape, device, dtype, generator)
    made = None
    if beside is not None:
        made = RandomDecoder(beside, device, dtype, generator, target.embedding if kind == "eagle" else None)
    return RandomRunner(target, made, kind, _about(shape, beside, kind, device, dtype))


def _drafter_shape(spec: str | None, target: DecoderShape) -> tuple[DecoderShape | None, str | None]:
    if spec is None:
        return None, None
    kind, _, argument = spec.partition(":")
    if kind == "eagle":
        if argument:
            raise InputError(f"--drafter {spec}: beside --shape it is eagle, one layer of the target's shape")
        sizes = asdict(target) | {"layers": 1, "experts": 0, "top_k": 0}
        if target.experts:
            sizes["intermediate"] = target.intermediate * target.top_k
        return DecoderShape(**sizes), "eagle"
    if kind == "draft-model" and argument:
        shape = parse_shape(argument)
        if shape.vocab != target.vocab:
            raise InputError(f"--drafter {spec}: its vocabulary is {shape.vocab}, the target's {target.vocab}")
        return shape, "draft-model"
    raise InputError(f"--drafter is {spec!r}; beside --shape it is eagle, draft-model:SHAPE, or none")


def _about(
    shape: DecoderShape, beside: DecoderShape | None, kind: str | None, device: str, dtype: str
) -> dict[str, str]:
    sizes = {name: value for name, value in asdict(shape).items() if value}
    found = {
        "model": f"random weights: {shape}",
        "vocab_size": str(shape.vocab),
        "dtype": dtype,
        "weights": f"random weights, {shape.params:,} parameters, embedding and LM head one matrix",
        "config_sha256": sha256_json(sizes),
        "includes": "LM head and greedy sampling (argmax of float32 logits) of every token, Python that launches a "
        "step where no CUDA graph does",
        "excludes": "rejection sampling beyond argmax, input preparation, scheduling, detokenisation, several devices",
        "padding": "none: rows are packed, attention runs apart for each query length",
        "attention": "PyTorch's scaled_dot_product_attention on contiguous caches, no pages",
    }
    if shape.experts:
        found["experts"] = (
            f"a random router spreads tokens evenly over {shape.experts} experts, {shape.top_k} a token: n tokens meet "
            f"{shape.experts}·(1 − (1 − {shape.top_k}/{shape.experts})^n) distinct ones, more than a trained router's, "
            "so that times at small and middle sizes are overstated"
        )
    if beside is not None and kind is not None:
        found |= {"drafter_kind": kind, "drafter": f"random weights: {kind}, {beside}"}
        found["drafting"] = (
            "every pass over one row a request, LM head and argmax each; nothing for further rows of T + B"
        )
    return found | describe_machine(device)
