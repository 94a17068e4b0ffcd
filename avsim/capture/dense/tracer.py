"""One request's draft blocks: one at every output position, with verdicts and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from avsim.capture.dense.drafters.ngram import Lookup
from avsim.capture.dense.generate import Output
from avsim.capture.dense.model import Model, require
from avsim.capture.dense.verify import couple, draft_uniforms, draw
from avsim.capture.reduce import reduce_logits
from avsim.sources.schema import slot_column

__all__ = ["Sampling", "trace_request"]

_CHUNK_ELEMENTS = 1 << 23


@dataclass(frozen=True)
class Sampling:
    """How a trace is drawn.

    Attributes:
        num_slots: K.
        temperature: of target and drafter; 0 for greedy.
        probabilistic: drafts are sampled, not the drafter's most likely tokens.
        num_top: how many of the largest logits to keep.
        rows: blocks at once; None: what keeps a chunk's logits at 32 MB.
    """

    num_slots: int
    temperature: float = 0.0
    probabilistic: bool = False
    seed: int = 0
    num_top: int = 8
    rows: int | None = None


def trace_request(target: Model, drafter: Any, prompt: list[int], output: Output, how: Sampling) -> pl.DataFrame:
    """Draft a K-block at each output position 0 … length − 2, and grade it against the target's own tokens.

    Args:
        output: its tokens go on K past the end, so that the last blocks can be graded in full.
    """
    torch = require("torch")
    positions = max(output.length - 1, 0)
    known = prompt + output.tokens
    tokens = torch.tensor(known, dtype=torch.int64, device=target.device)
    sampled = how.temperature > 0
    last: Any = None
    hidden: Any = None
    if positions and (sampled or drafter_layers(drafter)):
        last, hidden = target.hidden_layers(tokens, drafter_layers(drafter))
    lookup = isinstance(drafter, Lookup)
    state = drafter.begin(tokens, hidden) if positions and not lookup else None
    uniforms = draft_uniforms(how.seed, output.request, positions, how.num_slots)
    rows = how.rows or max(16, _CHUNK_ELEMENTS // target.vocab_size)
    parts = []
    for start in range(0, positions, rows):
        stop = min(start + rows, positions)
        ends = torch.arange(len(prompt) + start, len(prompt) + stop, device=target.device)
        # Block n's slot k is graded by the target's row n + k.
        truth = None
        if sampled:
            at = last[ends[0] : ends[-1] + how.num_slots]
            truth = (target.logits(at) / how.temperature).log_softmax(dim=1)
        if lookup:
            part = _look_up(drafter, known, tokens, ends, truth, how)
        else:
            part = _draft(drafter, state, tokens, ends, truth, uniforms[start:stop], how)
        part["position"] = np.arange(start, stop)
        parts.append(pl.DataFrame(part))
    return pl.concat(parts).with_columns(request=pl.lit(output.request, pl.Int64)) if parts else pl.DataFrame()


def drafter_layers(drafter: Any) -> tuple[int, ...]:
    """Return the target's hidden states that a drafter needs."""
    return tuple(getattr(drafter, "hidden_layers", ()))


def _draft(
    drafter: Any, state: Any, tokens: Any, ends: Any, truth: Any | None, uniforms: Any, how: Sampling
) -> dict[str, Any]:
    torch = require("torch")
    device, count = tokens.device, len(ends)
    uniform = torch.from_numpy(uniforms).to(device)
    scale = torch.full((count,), how.temperature, device=device) if truth is not None else None
    drafted = torch.empty(count, 0, dtype=torch.int64, device=device)
    reached = torch.ones(count, dtype=torch.bool, device=device)
    accepted = torch.zeros(count, dtype=torch.int64, device=device)
    columns: dict[str, Any] = {}
    for slot in range(how.num_slots):
        out = drafter.slot(state, ends, drafted)
        sample = tokens[ends + 1 + slot]
        features = reduce_logits(out.logits, scale, how.num_top)
        if out.confidence is not None:
            features["confidence"] = out.confidence
        log_p = None if truth is None else truth[slot : slot + count]
        if how.probabilistic and log_p is not None:
            log_q = (out.logits.float() / how.temperature).log_softmax(dim=1)
            q, p = log_q.exp(), log_p.exp()
            free = draw(q, uniform[:, slot, 1])
            token = torch.where(reached, couple(q, p, sample, uniform[:, slot]), free)
            features["draft_logprob"] = log_q.gather(1, token[:, None])[:, 0]
            features["alpha"] = torch.minimum(p, q).sum(dim=1).clamp(max=1)
        else:
            token = out.logits.argmax(dim=1)
        if log_p is not None:
            _soft_labels(features, log_p, token, reached)
        columns |= {slot_column(name, slot): _host(values) for name, values in features.items()}
        reached = reached & (token == sample)
        accepted += reached
        drafted = torch.cat([drafted, token[:, None]], dim=1)
    full = np.full(count, how.num_slots)
    return columns | {"num_drafted": full, "num_admitted": full, "num_accepted": accepted.cpu().numpy()}


def _soft_labels(features: dict[str, Any], log_p: Any, token: Any, reached: Any) -> None:
    """Add the target's view of the drafted tokens; NaN where the chain has left the target's own tokens."""
    torch = require("torch")
    of_draft = log_p.gather(1, token[:, None])[:, 0]
    features["target_logprob"] = of_draft
    if "alpha" in features:
        features["accept_prob"] = (of_draft - features["draft_logprob"]).exp().clamp(max=1)
    else:  # a greedy draft is one-hot: Σ min(p, q) = min(1, p(d) / q(d)) = p(d)
        features["alpha"] = features["accept_prob"] = of_draft.exp()
    for name in ("alpha", "target_logprob", "accept_prob"):
        features[name] = torch.where(reached, features[name], torch.nan)


def _look_up(
    drafter: Lookup, known: list[int], tokens: Any, ends: Any, truth: Any | None, how: Sampling
) -> dict[str, Any]:
    torch = require("torch")
    blocks = drafter.propose(known, ends.tolist(), how.num_slots)
    drafted = np.array([len(block) for block in blocks])
    filled = torch.tensor([block + [-1] * (how.num_slots - len(block)) for block in blocks], device=tokens.device)
    reached = torch.ones(len(blocks), dtype=torch.bool, device=tokens.device)
    accepted = torch.zeros(len(blocks), dtype=torch.int64, device=tokens.device)
    columns: dict[str, Any] = {}
    for slot in range(how.num_slots):
        token = filled[:, slot]
        reached = reached & (token >= 0)
        if truth is not None:
            features: dict[str, Any] = {}
            _soft_labels(features, truth[slot : slot + len(blocks)], token.clamp(min=0), reached)
            columns |= {slot_column(name, slot): _host(values) for name, values in features.items()}
        reached = reached & (token == tokens[ends + 1 + slot])
        accepted += reached
    return columns | {"num_drafted": drafted, "num_admitted": drafted, "num_accepted": accepted.cpu().numpy()}


def _host(values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return values.float().cpu().numpy()
