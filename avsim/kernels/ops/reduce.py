"""Draft logits to the features of a trace, written to a table by slot and step.

Two kernels: `partials` per block of 4096 tokens, then one program per row that combines them as `rows` has it. The
largest logits keep their multiplicity: of three tokens at the maximum, the first three ranks are the maximum.

Bytes: rows × vocab × (2 or 4) read once; 4 (3 + TOP) bytes written and read back per block of 4096 tokens.
Instructions per token, counted in the sm_90 code: some 24 for the features up to the margin and 2 more where T ≠ 1,
so that it is bound by memory for float32 logits and by arithmetic for 2-byte ones; from the third of the largest
logits on, each costs about 8 more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from avsim.kernels.ops.partials import LAUNCH, VOCAB_BLOCK, Scratch, load_partials, next_largest, run_partials
from avsim.kernels.ops.rows import KIND_OF, TOP_LOGIT, combine, combine_f32, row_feature, row_step

__all__ = ["SPECIALISATIONS", "Reducer"]


@triton.jit(
    do_not_specialize=[
        "table_ptr",
        "table_stride",
        "step_stride",
        "partials_ptr",
        "partials_stride",
        "slot_ptr",
        "slot_stride",
        "step_ptr",
    ]
)
def _table_kernel(
    table_ptr,
    table_stride,
    step_stride,
    partials_ptr,
    partials_stride,
    slot_ptr,
    slot_stride,
    step_ptr,
    NUM_BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    PER_ROW: tl.constexpr,
    KINDS: tl.constexpr,
    TOTAL: tl.constexpr,
    TOP: tl.constexpr,
    PADDED_TOP: tl.constexpr,
):
    """Combine the partial results of a row and write its features to `table[slot, step]`."""
    row = tl.program_id(0)
    slot = tl.load(slot_ptr + row.to(tl.int64) * slot_stride).to(tl.int64)
    if slot < 0:
        return
    out = table_ptr + slot * table_stride + row_step(step_ptr, row, PER_ROW) * step_stride
    maxima, totals, others, moments, seconds = load_partials(
        partials_ptr, partials_stride, row, NUM_BLOCKS, PADDED, TOTAL, True, True, TOP
    )
    largest, rest, moment, second = combine(maxima, others, moments, seconds)
    log_odds_f32 = largest
    if TOTAL:
        log_odds_f32 = combine_f32(maxima, totals, tl.arange(0, PADDED) < NUM_BLOCKS)
    for place in tl.static_range(len(KINDS)):
        if KINDS[place] < TOP_LOGIT:
            tl.store(out + place, row_feature(KINDS[place], largest, rest, moment, second, log_odds_f32))
    # All ranks of all blocks in one tile; the first lies in channel 0, the others from channel 4 on.
    ranks = tl.arange(0, PADDED_TOP)
    blocks = tl.arange(0, PADDED)
    channel = tl.where(ranks == 0, 0, ranks + 3)
    places = channel.to(tl.int64)[:, None] * partials_stride + row.to(tl.int64) * NUM_BLOCKS + blocks[None, :]
    mask = (ranks < TOP)[:, None] & (blocks < NUM_BLOCKS)[None, :]
    values = tl.load(partials_ptr + places, mask=mask, other=float("-inf"))
    value, left = largest, tl.sum((values == largest).to(tl.int32)) - 1
    for rank in tl.static_range(TOP):
        if rank > 0:
            value, left = next_largest(values, value, left)
        for place in tl.static_range(len(KINDS)):
            if KINDS[place] == TOP_LOGIT + rank:
                tl.store(out + place, tl.where(rest == rest, value, float("nan")))


class Reducer:
    """Writes features of draft logits to a table by slot and step, as a trace capture needs them.

    Args:
        names: of the features, in the order of the table's last dimension: keys of `KIND_OF` and `top_logit_{rank}`.
        num_top: largest logits among them, 0 … 16.
        max_rows: the most rows of logits that a call is expected to bring.
        device: of everything.

    Raises:
        ValueError: an unknown feature.
    """

    def __init__(self, names: Sequence[str], num_top: int, max_rows: int, device: torch.device):
        kinds = KIND_OF | {f"top_logit_{rank}": len(KIND_OF) + rank for rank in range(num_top)}
        if unknown := [name for name in names if name not in kinds]:
            raise ValueError(f"no such features: {', '.join(unknown)}; there are {', '.join(kinds)}")
        self._kinds = tuple(kinds[name] for name in names)
        self._total = "log_odds_f32" in names
        self._top = max(num_top, 2)
        self._scratch = Scratch(3 + self._top, max_rows, device)

    def __call__(
        self, table: torch.Tensor, logits: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor, temperature: Any
    ) -> None:
        """Write the features of logits `[rows, vocab]` to `table[slot, step]`, float32 `[slots, K, F]`.

        Args:
            slots: `[rows]`; rows with −1 are left out.
            steps: the draft slot k: one for all rows, or `[rows]`.
            temperature: by slot.
        """
        rows, vocab = logits.shape
        if rows == 0:
            return
        blocks = triton.cdiv(vocab, VOCAB_BLOCK)
        partials = self._scratch.take(rows, blocks)
        flags = {"TOTAL": self._total, "TOP": self._top}
        run_partials(partials, logits, slots, temperature, OTHERS=True, MOMENT=True, **flags)
        _table_kernel[(rows,)](
            table,
            table.stride(0),
            table.stride(1),
            partials,
            partials.stride(0),
            slots,
            slots.stride(0),
            steps,
            NUM_BLOCKS=blocks,
            PADDED=triton.next_power_of_2(blocks),
            PER_ROW=steps.numel() > 1,
            KINDS=self._kinds,
            PADDED_TOP=triton.next_power_of_2(self._top),
            **flags,
            **LAUNCH,
        )


def _specialisations() -> list[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    signature = {"table_ptr": "*fp32", "table_stride": "i32", "step_stride": "i32", "partials_ptr": "*fp32"}
    signature |= {"partials_stride": "i32", "slot_ptr": "*i64", "slot_stride": "i32", "step_ptr": "*i64"}
    made = []
    for vocab, top in ((129_280, 2), (151_936, 4), (32_001, 16)):
        blocks = triton.cdiv(vocab, VOCAB_BLOCK)
        fixed = {"NUM_BLOCKS": blocks, "PADDED": triton.next_power_of_2(blocks), "PER_ROW": False, "TOTAL": True}
        ranks = {"TOP": top, "PADDED_TOP": triton.next_power_of_2(top), "KINDS": tuple(range(len(KIND_OF) + top))}
        made.append((_table_kernel, signature, fixed | ranks, LAUNCH))
    return made


SPECIALISATIONS = tuple(_specialisations())
