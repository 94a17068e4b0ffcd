"""The kernels of `predict`: a law's features and p of each row, from partial results or from the logits themselves."""

from __future__ import annotations

import triton
import triton.language as tl

from avsim.kernels.ops.partials import block_partials, load_block, load_partials, load_temperature
from avsim.kernels.ops.rows import KIND_OF, combine, combine_f32, row_feature, row_step

__all__ = ["ARGUMENTS", "persistent_kernel", "predict_kernel"]

_ENTROPY = tl.constexpr(KIND_OF["entropy"])
_MARGIN = tl.constexpr(KIND_OF["margin"])


@triton.jit
def predict_row(
    features_ptr,
    feature_stride,
    slot_stride,
    predictions_ptr,
    predictions_stride,
    confidence_ptr,
    confidence_stride,
    law_ptr,
    intercepts_ptr,
    memory_ptr,
    memory_stride,
    memory_weights_ptr,
    slot,
    row,
    step,
    largest,
    rest,
    moment,
    second,
    log_odds_f32,
    KINDS: tl.constexpr,
    CELLS: tl.constexpr,
    LOWEST: tl.constexpr,
    PER_UNIT: tl.constexpr,
    INTERPOLATE: tl.constexpr,
    MEMORY: tl.constexpr,
    PER_ROW: tl.constexpr,
    NUM_STEPS: tl.constexpr,
):
    """Store a row's features and p, in the order of operations that the NumPy estimators have."""
    out = features_ptr + slot * slot_stride + step
    first = row_feature(KINDS[0], largest, rest, moment, second, log_odds_f32)
    tl.store(out, first)
    if CELLS > 0:
        # A step is found before the lowest is taken off: a sum may round up to an edge.
        place = (first - LOWEST) * PER_UNIT if INTERPOLATE else tl.floor(first * PER_UNIT) - LOWEST * PER_UNIT
        # These comparisons are false for NaN, which goes to the lowest cell.
        place = tl.where(place > 0.0, place, 0.0)
        place = tl.where(place < CELLS - 1.0, place, CELLS - 1.0)
        below = tl.minimum(tl.floor(place), CELLS - 2.0) if INTERPOLATE else place
        cell = law_ptr + step * CELLS + below.to(tl.int32)
        p = tl.load(cell)
        if INTERPOLATE:
            p = p + (place - below) * (tl.load(cell + 1) - p)
    else:
        logit = first * tl.load(law_ptr)
        for j in tl.static_range(1, len(KINDS)):
            value = row_feature(KINDS[j], largest, rest, moment, second, log_odds_f32)
            tl.store(out + j * feature_stride, value)
            if KINDS[j] == _ENTROPY or KINDS[j] == _MARGIN:
                value = tl.where(value < 0.0, 0.0, value)
                value = tl.sqrt_rn(tl.where(value > 40.0, 40.0, value))
                if KINDS[j] == _MARGIN:
                    value = value * 0.5
                value = value - 1.0
            logit += value * tl.load(law_ptr + j)
        logit += tl.load(intercepts_ptr + step)
        if MEMORY > 0:
            kept = memory_ptr + slot * memory_stride
            own = tl.load(kept) * tl.load(memory_weights_ptr)
            for d in tl.static_range(1, MEMORY):
                own += tl.load(kept + d) * tl.load(memory_weights_ptr + d)
            logit += own
        p = tl.sigmoid(logit)
    batch_row = row.to(tl.int64)
    if PER_ROW:
        batch_row = batch_row // NUM_STEPS
    tl.store(predictions_ptr + slot * predictions_stride + step, p)
    tl.store(confidence_ptr + batch_row * confidence_stride + step, p)


ARGUMENTS = [
    "features_ptr", "feature_stride", "slot_stride", "predictions_ptr", "predictions_stride", "confidence_ptr",
    "confidence_stride", "law_ptr", "intercepts_ptr", "memory_ptr", "memory_stride", "memory_weights_ptr", "slots_ptr",
    "slots_stride", "step_ptr",
]  # fmt: skip


@triton.jit(do_not_specialize=[*ARGUMENTS, "partials_ptr", "partials_stride"])
def predict_kernel(
    features_ptr,
    feature_stride,
    slot_stride,
    predictions_ptr,
    predictions_stride,
    confidence_ptr,
    confidence_stride,
    law_ptr,
    intercepts_ptr,
    memory_ptr,
    memory_stride,
    memory_weights_ptr,
    slots_ptr,
    slots_stride,
    step_ptr,
    partials_ptr,
    partials_stride,
    NUM_BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    TOTAL: tl.constexpr,
    OTHERS: tl.constexpr,
    MOMENT: tl.constexpr,
    TOP: tl.constexpr,
    KINDS: tl.constexpr,
    CELLS: tl.constexpr,
    LOWEST: tl.constexpr,
    PER_UNIT: tl.constexpr,
    INTERPOLATE: tl.constexpr,
    MEMORY: tl.constexpr,
    PER_ROW: tl.constexpr,
    NUM_STEPS: tl.constexpr,
):
    """Combine the partial results of a row and predict from them."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row.to(tl.int64) * slots_stride).to(tl.int64)
    if slot < 0:
        return
    maxima, totals, others, moments, seconds = load_partials(
        partials_ptr, partials_stride, row, NUM_BLOCKS, PADDED, TOTAL, OTHERS, MOMENT, TOP
    )
    largest, rest, moment, second = combine(maxima, others, moments, seconds)
    log_odds_f32 = largest
    if TOTAL:
        log_odds_f32 = combine_f32(maxima, totals, tl.arange(0, PADDED) < NUM_BLOCKS)
    predict_row(
        features_ptr, feature_stride, slot_stride, predictions_ptr, predictions_stride, confidence_ptr,
        confidence_stride, law_ptr, intercepts_ptr, memory_ptr, memory_stride, memory_weights_ptr, slot, row,
        row_step(step_ptr, row, PER_ROW), largest, rest, moment, second, log_odds_f32,
        KINDS, CELLS, LOWEST, PER_UNIT, INTERPOLATE, MEMORY, PER_ROW, NUM_STEPS,
    )  # fmt: skip


@triton.jit
def keep(
    here,
    z,
    maxima,
    totals,
    others,
    moments,
    seconds,
    TOTAL: tl.constexpr,
    OTHERS: tl.constexpr,
    MOMENT: tl.constexpr,
    TOP: tl.constexpr,
):
    """Put the partial results of one block where `here` is true, each `[PADDED]`."""
    largest, total, other, moment, second = block_partials(z, TOTAL, OTHERS, MOMENT, TOP)
    return (
        tl.where(here, largest, maxima),
        tl.where(here, total, totals),
        tl.where(here, other, others),
        tl.where(here, moment, moments),
        tl.where(here, second, seconds),
    )


@triton.jit(do_not_specialize=[*ARGUMENTS, "logits_ptr", "logits_stride", "temperature_ptr"])
def persistent_kernel(
    features_ptr,
    feature_stride,
    slot_stride,
    predictions_ptr,
    predictions_stride,
    confidence_ptr,
    confidence_stride,
    law_ptr,
    intercepts_ptr,
    memory_ptr,
    memory_stride,
    memory_weights_ptr,
    slots_ptr,
    slots_stride,
    step_ptr,
    logits_ptr,
    logits_stride,
    temperature_ptr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
    PADDED: tl.constexpr,
    TOTAL: tl.constexpr,
    OTHERS: tl.constexpr,
    MOMENT: tl.constexpr,
    TOP: tl.constexpr,
    KINDS: tl.constexpr,
    CELLS: tl.constexpr,
    LOWEST: tl.constexpr,
    PER_UNIT: tl.constexpr,
    INTERPOLATE: tl.constexpr,
    MEMORY: tl.constexpr,
    PER_ROW: tl.constexpr,
    NUM_STEPS: tl.constexpr,
):
    """Go over a row's blocks, combine their partial results and predict from them."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row.to(tl.int64) * slots_stride).to(tl.int64)
    if slot < 0:
        return
    temperature = load_temperature(temperature_ptr, slot)
    start = logits_ptr + row.to(tl.int64) * logits_stride
    blocks = tl.arange(0, PADDED)
    maxima = tl.full([PADDED], float("-inf"), tl.float32)
    totals = tl.zeros([PADDED], tl.float32)
    others, moments, seconds = totals, totals, maxima
    # All blocks but the last are whole, and need no mask.
    for block in tl.range(0, VOCAB // BLOCK, num_stages=STAGES):
        z = load_block(start, block, temperature, VOCAB, BLOCK, VECTOR, True)
        maxima, totals, others, moments, seconds = keep(
            blocks == block, z, maxima, totals, others, moments, seconds, TOTAL, OTHERS, MOMENT, TOP
        )
    if VOCAB % BLOCK > 0:
        z = load_block(start, VOCAB // BLOCK, temperature, VOCAB, BLOCK, VECTOR, False)
        maxima, totals, others, moments, seconds = keep(
            blocks == VOCAB // BLOCK, z, maxima, totals, others, moments, seconds, TOTAL, OTHERS, MOMENT, TOP
        )
    largest, rest, moment, second = combine(maxima, others, moments, seconds)
    log_odds_f32 = largest
    if TOTAL:
        log_odds_f32 = combine_f32(maxima, totals, blocks < (VOCAB + BLOCK - 1) // BLOCK)
    predict_row(
        features_ptr, feature_stride, slot_stride, predictions_ptr, predictions_stride, confidence_ptr,
        confidence_stride, law_ptr, intercepts_ptr, memory_ptr, memory_stride, memory_weights_ptr, slot, row,
        row_step(step_ptr, row, PER_ROW), largest, rest, moment, second, log_odds_f32,
        KINDS, CELLS, LOWEST, PER_UNIT, INTERPOLATE, MEMORY, PER_ROW, NUM_STEPS,
    )  # fmt: skip
