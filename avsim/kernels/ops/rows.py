"""Features of a row of draft logits from the partial results of its blocks.

With m = max m_b and s_b = e^(m_b − m) (`partials` has what a block keeps), a row is

    others = Σ_b others_b s_b + Σ_{b without the first maximum} s_b
    moment = Σ_b s_b (moment_b + (m_b − m)(1 + others_b))
    log_odds = −ln others, clamped to ±40      entropy = ln(1 + others) − moment / (1 + others)
    logsumexp = m + ln(1 + others)             draft_logprob = −ln(1 + others), of the most likely token

Nothing here cancels, so the relative error of `others` is a few roundings, however sharp the row. A row without any
finite logit, or with a NaN, has NaN for all of these; `log_odds_f32` follows vLLM's kernel. Rows at +∞ mean nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from avsim.kernels.ops.partials import FAR

__all__ = ["KIND_OF", "TOP_LOGIT", "combine", "combine_f32", "row_feature", "row_step"]

KIND_OF = {
    name: kind
    for kind, name in enumerate(["log_odds", "log_odds_f32", "entropy", "margin", "logsumexp", "draft_logprob"])
}
_LOG_ODDS, _LOG_ODDS_F32, _ENTROPY, _MARGIN, _LOGSUMEXP, _DRAFT_LOGPROB = (tl.constexpr(k) for k in KIND_OF.values())
TOP_LOGIT = tl.constexpr(len(KIND_OF))  # and one more for each rank
_MAX_LOG_ODDS = tl.constexpr(40.0)


@triton.jit
def log1p(x):
    """ln(1 + x) of x ≥ 0, to a few roundings: 2 artanh(x / (2 + x)) up to 1, where a device's log is coarse."""
    s = x / (x + 2.0)
    q = s * s
    series = 1.0 / 15 + q * (1.0 / 17)
    series = 1.0 / 11 + q * (1.0 / 13 + q * series)
    series = 1.0 / 7 + q * (1.0 / 9 + q * series)
    series = 1.0 / 3 + q * (1.0 / 5 + q * series)
    return tl.where(x <= 1.0, 2.0 * s * (1.0 + q * series), tl.log(1.0 + x))


@triton.jit
def combine_f32(maxima, totals, is_block):
    """vLLM's float32 log-odds from the partial sums of a row's blocks, in the order of its `_predict_kernel`."""
    largest = tl.max(maxima, axis=0)
    total = tl.sum(tl.where(is_block, totals * tl.exp(maxima - largest), 0.0), axis=0)
    feature = -tl.log(tl.maximum(total - 1.0, 0.0))
    return tl.minimum(tl.maximum(feature, -_MAX_LOG_ODDS), _MAX_LOG_ODDS)


@triton.jit
def combine(maxima, others, moments, seconds):
    """A row's maximum, Σ e^(z − m) over the other tokens, its moment and its second largest z."""
    largest = tl.max(maxima, axis=0)
    is_largest = maxima == largest
    ties = tl.sum(is_largest.to(tl.int32), axis=0) - 1
    shifted = tl.maximum(maxima - largest, FAR)
    scale = tl.where(is_largest, 1.0, tl.exp(maxima - largest))
    rest = tl.sum(others * scale + tl.where(is_largest, 0.0, scale), axis=0) + ties.to(tl.float32)
    moment = tl.sum(scale * (moments + shifted * (1.0 + others)), axis=0)
    second = tl.where(ties > 0, largest, tl.max(tl.where(is_largest, seconds, maxima), axis=0))
    return largest, tl.where(largest == float("-inf"), float("nan"), rest), moment, second


@triton.jit
def row_feature(kind: tl.constexpr, largest, rest, moment, second, log_odds_f32):
    """One feature of a row."""
    if kind == _LOG_ODDS:
        value = -tl.log(rest)
        # Not by minimum and maximum: on a device they would turn a NaN into a number.
        value = tl.where(value > _MAX_LOG_ODDS, _MAX_LOG_ODDS, value)
        value = tl.where(value < -_MAX_LOG_ODDS, -_MAX_LOG_ODDS, value)
    elif kind == _LOG_ODDS_F32:
        value = log_odds_f32
    elif kind == _ENTROPY:
        value = log1p(rest) - moment / (1.0 + rest)
        value = tl.where(value < 0.0, 0.0, value)
    elif kind == _MARGIN:
        value = tl.where(rest == rest, largest - second, float("nan"))
    elif kind == _LOGSUMEXP:
        value = largest + log1p(rest)
    else:
        value = -log1p(rest)
    return value


@triton.jit
def row_step(step_ptr, row, PER_ROW: tl.constexpr):
    """The draft slot k of a row."""
    return tl.load(step_ptr + row if PER_ROW else step_ptr).to(tl.int64)
