"""Drafter logits to the features of a trace, in torch and on the device where the logits lie."""

from __future__ import annotations

from typing import Any

from avsim.features import MAX_LOG_ODDS, log_odds_f32

__all__ = ["feature_names", "reduce_logits"]

_VOCAB_BLOCK = 4096


def feature_names(num_top: int) -> list[str]:
    """Return the names of what `reduce_logits` gives."""
    names = ["log_odds", "log_odds_f32", "entropy", "margin", "logsumexp", "draft_logprob"]
    return names + [f"top_logit_{rank}" for rank in range(num_top)]


def reduce_logits(logits: Any, temperature: Any | None, num_top: int) -> dict[str, Any]:
    """Reduce each row of drafter logits to its features; the logits are left as they are.

    All features are of z = logits / T, where T is 1 for a greedy request, as vLLM's acceptance estimator sees them.

    Args:
        logits: tensor `[rows, vocab]` of any float type.
        temperature: tensor `[rows]`, 0 or less for greedy; None if every request is greedy.
        num_top: how many of the largest logits to keep; may be 0.

    Returns:
        float32 tensors `[rows]` by name. `draft_logprob` is that of the most likely token.
    """
    import torch

    z = logits.float()
    if temperature is not None:
        scale = temperature.to(device=z.device, dtype=torch.float32)
        z = z / torch.where(scale > 0, scale, torch.ones_like(scale))[:, None]
    top, ids = z.topk(max(num_top, 2), dim=1)
    best = top[:, :1]
    # In place and without temporaries: allocating rows this wide costs as much as the arithmetic.
    shifted = z - best
    weights = shifted.exp()
    # Without the most likely token's own 1, the sum keeps its precision however small it is.
    others = weights.scatter_(1, ids[:, :1], 0.0).sum(dim=1)
    log_total = torch.log1p(others)
    # e^x x is 0 in the limit, but 0 · −inf is NaN for tokens outside the drafter's vocabulary.
    moment = torch.linalg.vecdot(weights, shifted.clamp_(min=-1e4))
    features = {
        "log_odds": (-others.log()).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS),
        "log_odds_f32": _log_odds_f32(z),
        "entropy": (log_total - moment / (1 + others)).clamp(min=0),
        "margin": top[:, 0] - top[:, 1],
        "logsumexp": best[:, 0] + log_total,
        "draft_logprob": -log_total,
    }
    return features | {f"top_logit_{rank}": top[:, rank] for rank in range(num_top)}


def _log_odds_f32(z: Any) -> Any:
    """Return vLLM's float32 feature (`avsim.features.log_odds_f32`); off the CPU the last bits are the device's own."""
    import torch

    if z.device.type == "cpu":
        return torch.from_numpy(log_odds_f32(z.numpy()))
    rows, vocab = z.shape
    blocks = -(-vocab // _VOCAB_BLOCK)
    padded = torch.nn.functional.pad(z, (0, blocks * _VOCAB_BLOCK - vocab), value=-torch.inf)
    padded = padded.view(rows, blocks, _VOCAB_BLOCK)
    maxima = padded.amax(dim=2)
    sums = torch.where(maxima > -torch.inf, (padded - maxima[:, :, None]).exp().sum(dim=2), 0.0)
    total = (sums * (maxima - maxima.amax(dim=1, keepdim=True)).exp()).sum(dim=1)
    return (-(total - 1).clamp(min=0).log()).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
