"""Draft logits to the features that a law reads and to p, in one pass.

Two shapes of one computation with the same bits (`partials` has what a block keeps, `rows` what a row makes of it):

    split       a program per row and block of 4096 tokens writes partial results, a second kernel combines them
    persistent  a program per row goes over the blocks, keeps the partial results in registers and combines them

Bytes: rows × vocab × (2 or 4) read once. Besides, 4 bytes per feature and row and 8 for p; the split shape writes and
reads back up to 20 bytes per block of 4096 tokens, under 0.5 % of what it read.

Instructions per token, counted in the sm_90 code without those that a block needs but once: some 15 for either
log-odds (as many as vLLM's own kernel has for its one), 23 with entropy and margin, and 2 more where T ≠ 1.
132 multiprocessors that issue 128 lanes at 1.7 GHz thus take in float32 logits at 7.7 and 5 TB/s, 2-byte ones at 3.8
and 2.5 TB/s. Against the 4.8 TB/s of an H200 it is bound by memory for float32; for 2-byte logits log-odds alone are
close to that, and with entropy and margin arithmetic is the limit. None of this has been measured on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from avsim.kernels.laws import GridLaw, LinearLaw
from avsim.kernels.ops.partials import LAUNCH, VOCAB_BLOCK, Scratch, elements_per_load, run_partials
from avsim.kernels.ops.predict_kernels import ARGUMENTS, persistent_kernel, predict_kernel
from avsim.kernels.ops.rows import KIND_OF

__all__ = ["SPECIALISATIONS", "Predictor", "is_persistent", "shapes"]

_SMS = 132
_STAGES = 3


def is_persistent(rows: int, vocab: int) -> bool:
    """Whether one program per row does it all; a matter of shapes alone.

    The split shape keeps every multiprocessor busy whatever the rows, at the price of a second launch. One program
    per row pays where rows alone give each of the 132 multiprocessors of an H100 eight programs, or where a row has
    so few blocks that the second launch would take longer than they do. These limits are reckoned, not measured.
    """
    return rows >= 8 * _SMS or vocab <= 2 * VOCAB_BLOCK


def shapes(most_rows: int, vocab: int) -> list[int]:
    """Return numbers of rows, up to the most there can be, that between them run every kernel.

    >>> shapes(64, 129_280), shapes(4096, 129_280), shapes(4096, 8_000)
    ([1], [1, 1056], [1])
    """
    few_are, many_are = is_persistent(1, vocab), is_persistent(most_rows, vocab)
    return [1] if few_are == many_are else [1, 8 * _SMS]


class Predictor:
    """Writes a law's features and confidences of draft logits; the scratch that it needs is allocated once.

    Args:
        device: of everything.
    """

    def __init__(self, device: torch.device):
        self._scratch = Scratch(5, 8 * _SMS, device)

    def __call__(
        self,
        logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        draft_step: torch.Tensor,
        confidence_probs: torch.Tensor,
        temperature: torch.Tensor,
        law: LinearLaw | GridLaw,
        features: torch.Tensor,
        predictions: torch.Tensor,
    ) -> None:
        """Predict from logits `[rows, vocab]`; rows whose slot is −1 are left alone in all outputs.

        Args:
            logits: before temperature, float32, float16 or bfloat16; the last stride is 1.
            idx_mapping: persistent slot of each row, `[rows]` or longer.
            draft_step: the slot k of all rows, without dimensions; or of each row, where a request owns K rows.
            confidence_probs: takes p at `[row of the batch, k]`.
            temperature: by persistent slot; 0 or less counts as 1.
            law: what p is.
            features: takes those of the law, in its order, at `[F, slot, k]`.
            predictions: takes p at `[slot, k]`.

        Raises:
            ValueError: the logits of a row do not lie side by side, or the law is none that the kernels can evaluate.
        """
        rows, vocab = logits.shape
        if rows == 0:
            return
        if vocab > 1 and logits.stride(1) != 1:
            raise ValueError(f"the logits of a row must lie side by side; their stride is {logits.stride(1)}")
        _check(law)
        needed = set(law.features)
        flags = {
            "TOTAL": "log_odds_f32" in needed,
            "OTHERS": needed != {"log_odds_f32"},
            "MOMENT": "entropy" in needed,
            "TOP": 2 if "margin" in needed else 1,
        }
        form = _form(law) | {"PER_ROW": draft_step.dim() > 0, "NUM_STEPS": features.shape[2]}
        if isinstance(law, LinearLaw):
            memory = law.weights if law.memory is None else law.memory  # without a memory, nothing reads it
            memory_weights = law.weights if law.memory_weights is None else law.memory_weights
            tensors = (law.weights, law.intercepts, memory, memory.stride(0), memory_weights)
        else:
            tensors = (law.table, law.table, law.table, 0, law.table)
        arguments = (
            features,
            features.stride(0),
            features.stride(1),
            predictions,
            predictions.stride(0),
            confidence_probs,
            confidence_probs.stride(0),
            *tensors,
            idx_mapping,
            idx_mapping.stride(0),
            draft_step,
        )
        blocks = triton.cdiv(vocab, VOCAB_BLOCK)
        padded = triton.next_power_of_2(blocks)
        if is_persistent(rows, vocab):
            persistent_kernel[(rows,)](
                *arguments,
                logits,
                logits.stride(0),
                temperature,
                VOCAB=vocab,
                BLOCK=VOCAB_BLOCK,
                VECTOR=elements_per_load(logits),
                STAGES=_STAGES,
                PADDED=padded,
                **flags,
                **form,
                **LAUNCH,
            )
            return
        partials = self._scratch.take(rows, blocks)
        run_partials(partials, logits, idx_mapping, temperature, **flags)
        predict_kernel[(rows,)](
            *arguments, partials, partials.stride(0), NUM_BLOCKS=blocks, PADDED=padded, **flags, **form, **LAUNCH
        )


def _check(law: LinearLaw | GridLaw) -> None:
    if unknown := [name for name in law.features if name not in KIND_OF]:
        raise ValueError(f"no kernel computes {', '.join(unknown)}; there are {', '.join(KIND_OF)}")
    if isinstance(law, GridLaw) and not law.interpolate and law.lowest * law.per_unit % 1:
        raise ValueError("without interpolation, lowest · per_unit must be a whole number")
    names = ("table",) if isinstance(law, GridLaw) else ("weights", "intercepts", "memory", "memory_weights")
    for name in names:
        tensor = getattr(law, name)
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name} of the law must be contiguous")


def _form(law: LinearLaw | GridLaw) -> dict[str, Any]:
    """Return what a kernel is specialised on to evaluate a law."""
    kinds = tuple(KIND_OF[name] for name in law.features)
    if isinstance(law, LinearLaw):
        grid = {"CELLS": 0, "LOWEST": 0.0, "PER_UNIT": 0.0, "INTERPOLATE": False}
        return grid | {"KINDS": kinds, "MEMORY": 0 if law.memory is None else law.memory.shape[1]}
    return {
        "CELLS": law.table.shape[1],
        "LOWEST": law.lowest,
        "PER_UNIT": law.per_unit,
        "INTERPOLATE": law.interpolate,
        "KINDS": kinds,
        "MEMORY": 0,
    }


def _specialisations() -> list[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    shared = dict.fromkeys(ARGUMENTS, "i32") | {
        name: "*fp32" for name in ARGUMENTS if name.endswith("_ptr") and name not in ("slots_ptr", "step_ptr")
    }
    shared |= {"slots_ptr": "*i64", "step_ptr": "*i64"}
    linear = {"CELLS": 0, "LOWEST": 0.0, "PER_UNIT": 0.0, "INTERPOLATE": False}
    grid = {"CELLS": 64, "LOWEST": -5.0, "PER_UNIT": 3.0, "INTERPOLATE": True}
    several, stable, plain = ("log_odds", "entropy", "margin"), ("log_odds",), ("log_odds_f32",)
    made = []
    for dtype, vector, vocab, names, law in (
        ("bf16", 8, 129_280, several, linear | {"MEMORY": 3}),
        ("fp32", 4, 151_936, several, linear | {"MEMORY": 3}),
        ("bf16", 8, 129_280, stable, grid | {"MEMORY": 0}),
        ("bf16", 8, 129_280, plain, linear | {"MEMORY": 0}),
        ("fp16", 1, 32_001, plain, linear | {"MEMORY": 2}),
    ):
        blocks = triton.cdiv(vocab, VOCAB_BLOCK)
        padded = {"PADDED": triton.next_power_of_2(blocks)}
        form = law | {"KINDS": tuple(KIND_OF[name] for name in names), "PER_ROW": False, "NUM_STEPS": 7}
        form |= {"TOTAL": names == plain, "OTHERS": names != plain, "MOMENT": "entropy" in names}
        form["TOP"] = 2 if "margin" in names else 1
        source = {"logits_ptr": f"*{dtype}", "logits_stride": "i32", "temperature_ptr": "*fp32"}
        fixed = {"VOCAB": vocab, "BLOCK": VOCAB_BLOCK, "VECTOR": vector, "STAGES": _STAGES}
        made.append((persistent_kernel, shared | source, fixed | padded | form, LAUNCH))
        partials = {"partials_ptr": "*fp32", "partials_stride": "i32"}
        made.append((predict_kernel, shared | partials, {"NUM_BLOCKS": blocks} | padded | form, LAUNCH))
    return made


SPECIALISATIONS = tuple(_specialisations())
