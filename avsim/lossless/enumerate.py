"""What one step of rejection sampling emits, summed over every draft that may be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from avsim.lossless.models import ToyLaws, acceptance, drafts
from avsim.types import F64Array, IntArray

__all__ = ["Outcomes", "choices", "enumerate_outcomes", "target_law", "total_variation"]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All that may happen to one request: its draft, and where verdicts are enumerated, their length too.

    Texts are the V^{K+1} strings of K + 1 tokens: the target goes on by itself where a step emits fewer.

    Attributes:
        weight: the outcome's probability, float64 `[N, R, O]`.
        draft: which of the V^K drafts it is, int `[O]`.
        accepted: A at full admission, int `[O]`; None where verdicts are summed over.
        text: P(text | outcome, M admitted), float64 `[N, R, O, K + 1, V^{K+1}]`.
    """

    weight: F64Array
    draft: IntArray
    accepted: IntArray | None
    text: F64Array


def enumerate_outcomes(laws: ToyLaws, verdicts: bool = False) -> Outcomes:
    """Enumerate drafts, with their verdicts if something reads them.

    Standard rejection sampling: draft token d_k is accepted with probability min(1, p/q); the first rejection emits a
    token from (p − q)⁺, normalised; if all M admitted tokens are accepted, a bonus token comes from the target.

    Source: Leviathan et al. (2023), Chen et al. (2023).
    """
    slots, (models, reqs) = laws.num_slots, laws.shape
    rest = _continuations(laws)
    after_bonus = [_texts(block, laws.vocab)[:, :, drafts(laws, k)] for k, block in enumerate(rest[: slots + 1])]
    after_rejection = []
    drawn = np.ones((models, reqs, laws.num_drafts))
    reached, lengths = drawn, []
    for slot in range(slots):
        p, q = laws.target[slot], laws.drafter[slot]
        at = drafts(laws, slot + 1)
        drawn = drawn * q.reshape(models, reqs, -1)[..., at]
        accept = acceptance(p, q).reshape(models, reqs, -1)[..., at]
        lengths.append(reached * (1 - accept))
        reached = reached * accept
        excess = np.maximum(p - q, 0)
        total = excess.sum(axis=3, keepdims=True)
        residual = np.divide(excess, total, out=p.copy(), where=total > 0)
        after_rejection.append(_texts(_step(residual, rest[slot + 1]), laws.vocab)[:, :, drafts(laws, slot)])
    lengths.append(reached)
    # [A, M] → [N, R, drafts, texts]: the first rejection if it lies among the admitted, else the bonus token.
    by_verdict = np.stack(
        [
            np.stack([after_rejection[a] if a < m else after_bonus[m] for m in range(slots + 1)])
            for a in range(slots + 1)
        ]
    )
    length = np.stack(lengths)
    number = np.arange(laws.num_drafts)
    if not verdicts:
        text = np.einsum("anrd,amnrdx->nrdmx", length, by_verdict)
        return Outcomes(drawn, number, None, text)
    flat = (models, reqs, laws.num_drafts * (slots + 1))
    weight = (drawn * length).transpose(1, 2, 3, 0).reshape(flat)
    text = by_verdict.transpose(2, 3, 4, 0, 1, 5).reshape(*flat, slots + 1, -1)
    return Outcomes(weight, number.repeat(slots + 1), np.tile(np.arange(slots + 1), laws.num_drafts), text)


def choices(num_outcomes: int, num_reqs: int) -> tuple[IntArray, ...]:
    """Return which outcome each request has in each joint outcome, `[O^R]` per request."""
    return np.unravel_index(np.arange(num_outcomes**num_reqs), (num_outcomes,) * num_reqs)


def total_variation(laws: ToyLaws, outcomes: Outcomes, admitted: IntArray) -> F64Array:
    """Return the total variation between what all requests emit together and what their targets would, `[N]`.

    Args:
        laws: models of one or two requests.
        outcomes: their outcomes.
        admitted: M in every joint outcome, int `[N, O^R, R]`, in the order of `choices`.
    """
    models, reqs = laws.shape
    weight, texts = np.ones((models, 1)), []
    line = np.arange(models)[:, None]
    for request, chosen in enumerate(choices(outcomes.weight.shape[2], reqs)):
        weight = weight * outcomes.weight[:, request, chosen]
        texts.append(outcomes.text[line, request, chosen, admitted[:, :, request]])
    if reqs == 1:
        texts.append(np.ones((*weight.shape, 1)))
    # Small products, one per outcome of the first request: a large one would wake threads that other work needs.
    size = len(outcomes.draft)
    first, other = (text.reshape(models, -1, size, text.shape[2]) for text in (texts[0] * weight[:, :, None], texts[1]))
    emitted = (first.transpose(0, 1, 3, 2) @ other).sum(axis=1)
    return np.asarray(np.abs(emitted - target_law(laws)).sum(axis=(1, 2)) / 2)


def target_law(laws: ToyLaws) -> F64Array:
    """Return the probability of each pair of texts under the targets themselves, `[N, V^{K+1}, V^{K+1} or 1]`."""
    text = _continuations(laws)[0][:, :, 0]
    other = text[:, 1] if laws.shape[1] == 2 else np.ones((len(text), 1))
    return np.asarray(text[:, 0, :, None] * other[:, None])


def _continuations(laws: ToyLaws) -> list[F64Array]:
    """Return, for prefixes of 0 … K + 1 tokens, P(rest of the text | prefix), `[N, R, V^k, V^{K+1−k}]`."""
    models, reqs = laws.shape
    blocks = [np.ones((models, reqs, laws.vocab ** (laws.num_slots + 1), 1))]
    for p in reversed(laws.target):
        blocks.insert(0, _step(p, blocks[0]))
    return blocks


def _step(first: F64Array, rest: F64Array) -> F64Array:
    """Put one token, `[N, R, V^k, V]`, before the rest of the text."""
    rest = rest.reshape(*first.shape, -1)
    return np.asarray((first[..., None] * rest).reshape(*first.shape[:3], -1))


def _texts(block: F64Array, vocab: int) -> F64Array:
    """Write the rest of the text after each prefix as a law over whole texts, `[N, R, V^k, V^{K+1}]`."""
    models, reqs, prefixes, width = block.shape
    out = np.zeros((models, reqs, prefixes, prefixes, width))
    at = np.arange(prefixes)
    out[:, :, at, at] = block
    return out.reshape(models, reqs, prefixes, -1)
