"""Many chains of drafted tokens behind one shared prefix, in one sequence of a key-value cache."""

from __future__ import annotations

from typing import Any

from avsim.errors import InputError

__all__ = ["chain_mask", "check_full_attention", "rewind"]


def chain_mask(last: Any, prefix_len: int, depth: int, dtype: Any) -> Any:
    """Return the additive attention mask `[1, 1, N, prefix_len + depth · N]` of the newest token of N chains.

    The keys are the prefix, then the N chains' first tokens, their second ones, …, up to `depth`. Chain n sees
    prefix entries 0 … last[n] and its own tokens.
    """
    import torch

    count, device = len(last), last.device
    prefix = torch.arange(prefix_len, device=device)[None] <= last[:, None]
    own = torch.eye(count, dtype=torch.bool, device=device).repeat(1, depth)
    seen = torch.cat([prefix, own], dim=1)
    mask = torch.zeros(seen.shape, dtype=dtype, device=device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def rewind(cache: Any, prefix_len: int) -> None:
    """Drop everything behind the prefix from a cache."""
    extra = cache.get_seq_length() - prefix_len
    if extra:
        cache.crop(-extra)


def check_full_attention(config: Any, name: str) -> None:
    """Refuse a model whose layers do not see the whole prefix.

    Raises:
        InputError: sliding-window, linear or other layers.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds - {"full_attention"} or (not kinds and window):
        raise InputError(f"{name}: only models with full attention in every layer can draft densely")
