"""Partial results of rows of draft logits, one set per 4096 tokens.

z = logits / T, T = 1 for a greedy request. A block b of 4096 tokens keeps, relative to its own maximum m_b,

    total_b   Σ e^(z − m_b), as vLLM's kernel sums it           → log_odds_f32
    others_b  the same without the first maximum's own 1        → log_odds, logsumexp, draft_logprob
    moment_b  Σ (z − m_b) e^(z − m_b); a token at −∞ adds 0     → entropy
    rank_rb   the r-th largest z, r = 0 … TOP − 1               → margin, top logits

`rows` makes features of them. In memory they lie as `[3 + TOP, rows, blocks]`: rank 0, total, others, moment, rank 1, …

Bytes: rows × vocab × (2 or 4) read once; up to 4 (3 + TOP) bytes written per block of 4096 tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = [
    "FAR",
    "LAUNCH",
    "SPECIALISATIONS",
    "VOCAB_BLOCK",
    "Scratch",
    "block_partials",
    "elements_per_load",
    "load_block",
    "load_partials",
    "load_temperature",
    "next_largest",
    "run_partials",
]

VOCAB_BLOCK = 4096
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
"""The same for all kernels, so that all add in the same order: with 128 threads and up to 128 blocks of vocabulary a
thread holds one partial of a row. Four warps rather than eight halve what the sums across threads cost per token. A
fused multiply-add rounds once where NumPy rounds twice, and where one is made depends on the code around it."""

FAR = tl.constexpr(-1e4)  # far below any z − m whose exponential is not 0


@triton.jit
def load_temperature(temperature_ptr, slot):
    temperature = tl.load(temperature_ptr + slot).to(tl.float32)
    return tl.where(temperature > 0.0, temperature, 1.0)


@triton.jit
def load_block(
    row_ptr,
    block,
    temperature,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """z of one block of a row, float32 `[BLOCK]`, −∞ past the vocabulary; VECTOR logits are loaded together."""
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    places = row_ptr + offsets
    if VECTOR > 1:
        places = tl.max_contiguous(tl.multiple_of(places, 16), VECTOR)
    if WHOLE:
        z = tl.load(places).to(tl.float32)
    else:
        z = tl.load(places, mask=offsets < VOCAB, other=float("-inf")).to(tl.float32)
    if temperature != 1.0:  # a division costs as much as an exponential, and greedy drafts need none
        z = z / temperature
    return z


@triton.jit
def next_largest(values, value, left):
    """Go on to the next of `values` in falling order: after `value`, of which there are `left` more."""
    below = tl.max(tl.where(values < value, values, float("-inf")))
    count = tl.sum((values == below).to(tl.int32))
    return tl.where(left > 0, value, below), tl.where(left > 0, left, count) - 1


@triton.jit
def block_partials(z, TOTAL: tl.constexpr, OTHERS: tl.constexpr, MOMENT: tl.constexpr, TOP: tl.constexpr):
    """Partial results of one block: maximum, total, others, moment, second; those not asked for are the maximum."""
    largest = tl.max(z, axis=0)
    total, others, moment, second = largest, largest, largest, largest
    shifted = z - largest
    # As vLLM has it where its feature is asked for; else the form in which a device has it, with denormals cut off.
    weights = tl.exp(shifted) if TOTAL else tl.exp2(shifted * 1.4426950408889634)
    sum_of_all = tl.sum(weights, axis=0)
    if TOTAL:
        total = tl.where(largest > float("-inf"), sum_of_all, 0.0)
    if OTHERS:
        is_largest = z == largest
        weights = tl.where(is_largest, 0.0, weights)
        sum_below = tl.sum(weights, axis=0)
        # The maxima add exactly 1 each to the one sum and nothing to the other, and both err by far less than 1/2.
        ties = tl.floor(sum_of_all - sum_below + 0.5) - 1.0
        others = tl.where(largest == float("-inf"), 0.0, sum_below + ties)
        if MOMENT:
            moment = tl.sum(tl.maximum(shifted, FAR) * weights, axis=0)
            moment = tl.where(largest == float("-inf"), 0.0, moment)
        if TOP > 1:
            below = tl.max(tl.where(is_largest, float("-inf"), z), axis=0)
            second = tl.where(ties > 0, largest, below)
    return largest, total, others, moment, second


@triton.jit(
    do_not_specialize=[
        "partials_ptr",
        "partials_stride",
        "logits_ptr",
        "logits_stride",
        "slot_ptr",
        "slot_stride",
        "temperature_ptr",
    ]
)
def _partials_kernel(
    partials_ptr,
    partials_stride,
    logits_ptr,
    logits_stride,
    slot_ptr,
    slot_stride,
    temperature_ptr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TOTAL: tl.constexpr,
    OTHERS: tl.constexpr,
    MOMENT: tl.constexpr,
    TOP: tl.constexpr,
):
    """Write the partial results of block `program_id(1)` of row `program_id(0)`, `[3 + TOP, rows, blocks]`."""
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slot_ptr + row.to(tl.int64) * slot_stride).to(tl.int64)
    if slot < 0:
        return
    temperature = load_temperature(temperature_ptr, slot)
    start = logits_ptr + row.to(tl.int64) * logits_stride
    z = load_block(start, block, temperature, VOCAB, BLOCK, VECTOR, False)
    largest, total, others, moment, second = block_partials(z, TOTAL, OTHERS, MOMENT, TOP)
    out = partials_ptr + row.to(tl.int64) * ((VOCAB + BLOCK - 1) // BLOCK) + block
    tl.store(out, largest)
    if TOTAL:
        tl.store(out + partials_stride, total)
    if OTHERS:
        tl.store(out + 2 * partials_stride, others)
    if MOMENT:
        tl.store(out + 3 * partials_stride, moment)
    if TOP > 1:
        tl.store(out + 4 * partials_stride, second)
    if TOP > 2:
        value, left = largest, tl.sum((z == largest).to(tl.int32)) - 1
        for rank in tl.static_range(1, TOP):
            value, left = next_largest(z, value, left)
            if rank > 1:
                tl.store(out + (3 + rank) * partials_stride, value)


@triton.jit
def load_partials(
    partials_ptr,
    partials_stride,
    row,
    NUM_BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    TOTAL: tl.constexpr,
    OTHERS: tl.constexpr,
    MOMENT: tl.constexpr,
    TOP: tl.constexpr,
):
    """The partial results of a row, each `[PADDED]`; those not asked for are the maxima."""
    blocks = tl.arange(0, PADDED)
    mask = blocks < NUM_BLOCKS
    start = partials_ptr + row.to(tl.int64) * NUM_BLOCKS + blocks
    maxima = tl.load(start, mask=mask, other=float("-inf"))
    totals, others, moments, seconds = maxima, maxima, maxima, maxima
    if TOTAL:
        totals = tl.load(start + partials_stride, mask=mask, other=0.0)
    if OTHERS:
        others = tl.load(start + 2 * partials_stride, mask=mask, other=0.0)
    if MOMENT:
        moments = tl.load(start + 3 * partials_stride, mask=mask, other=0.0)
    if TOP > 1:
        seconds = tl.load(start + 4 * partials_stride, mask=mask, other=float("-inf"))
    return maxima, totals, others, moments, seconds


def elements_per_load(logits: torch.Tensor) -> int:
    """Return how many logits make 16 bytes, or 1 where rows do not all begin at a multiple of 16 bytes."""
    size = logits.element_size()
    aligned = logits.data_ptr() % 16 == 0 and logits.stride(0) * size % 16 == 0
    return 16 // size if aligned else 1


def run_partials(
    partials: torch.Tensor, logits: torch.Tensor, slots: torch.Tensor, temperature: torch.Tensor, **flags: Any
) -> None:
    """Fill `partials`, float32 `[3 + TOP, rows or more, blocks]`; flags are those of the kernel."""
    rows, vocab = logits.shape
    _partials_kernel[(rows, partials.shape[2])](
        partials,
        partials.stride(0),
        logits,
        logits.stride(0),
        slots,
        slots.stride(0),
        temperature,
        VOCAB=vocab,
        BLOCK=VOCAB_BLOCK,
        VECTOR=elements_per_load(logits),
        **flags,
        **LAUNCH,
    )


class Scratch:
    """Partial results between two kernels; all that was ever handed out is kept, as captured graphs hold its address.

    Args:
        channels: results per block.
        rows: to allocate at once, so that no later call needs more.
        device: where.
    """

    def __init__(self, channels: int, rows: int, device: torch.device):
        self._channels, self._rows, self._device = channels, rows, device
        self._made: dict[int, list[torch.Tensor]] = {}

    def take(self, rows: int, blocks: int) -> torch.Tensor:
        """Return float32 `[channels, rows or more, blocks]`, the same at every call."""
        made = self._made.setdefault(blocks, [])
        if not made or made[-1].shape[1] < rows:
            shape = (self._channels, max(rows, self._rows), blocks)
            made.append(torch.empty(shape, dtype=torch.float32, device=self._device))
        return made[-1]


def _specialisations() -> list[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    signature = {"partials_ptr": "*fp32", "partials_stride": "i32", "logits_stride": "i32", "slot_ptr": "*i64"}
    signature |= {"slot_stride": "i32", "temperature_ptr": "*fp32"}
    made = []
    for dtype, vector, vocab, total, top in (
        ("bf16", 8, 129_280, True, 2),
        ("bf16", 8, 129_280, False, 2),
        ("fp32", 4, 151_936, True, 4),
        ("fp16", 1, 32_001, True, 16),
    ):
        fixed = {"VOCAB": vocab, "BLOCK": VOCAB_BLOCK, "VECTOR": vector, "OTHERS": True, "MOMENT": True}
        form = fixed | {"TOTAL": total, "TOP": top}
        made.append((_partials_kernel, signature | {"logits_ptr": f"*{dtype}"}, form, LAUNCH))
    return made


SPECIALISATIONS = tuple(_specialisations())
