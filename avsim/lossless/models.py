"""Random targets and drafters over a vocabulary of a few tokens, as tables over every prefix, and their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim import features
from avsim.types import F32Array, F64Array, IntArray

__all__ = ["ToyLaws", "drafts", "feature_columns", "is_made", "random_laws"]

_SMALLEST = 1e-38
_OF_PREFIX = ("log_odds", "log_odds_f32", "entropy", "margin", "logsumexp", "alpha", "confidence")
_OF_TOKEN = ("draft_logprob", "target_logprob", "accept_prob")


@dataclass(frozen=True, slots=True)
class ToyLaws:
    """N independent models, each of R requests with a target and a drafter of its own.

    The prefix of k tokens t_0 … t_{k−1} has the index Σ_j t_j V^{k−1−j} among V^k.

    Attributes:
        target: p(·|prefix) for k = 0 … K, float64 `[N, R, V^k, V]`.
        drafter: q(·|prefix) that drafts are drawn from, for k = 0 … K−1, likewise.
        logits: the drafter's logits at temperature 1; all that features of the drafter are made of.
        head: what a confidence head says at each prefix, float64 `[N, R, V^k]`.
    """

    target: tuple[F64Array, ...]
    drafter: tuple[F64Array, ...]
    logits: tuple[F64Array, ...]
    head: tuple[F64Array, ...]

    @property
    def num_slots(self) -> int:
        return len(self.drafter)

    @property
    def shape(self) -> tuple[int, int]:
        """N and R."""
        return self.target[0].shape[0], self.target[0].shape[1]

    @property
    def vocab(self) -> int:
        return self.target[0].shape[3]

    @property
    def num_drafts(self) -> int:
        """V^K, the drafts that one request can get."""
        return int(self.vocab**self.num_slots)


def random_laws(
    rng: np.random.Generator,
    *,
    num_models: int = 20,
    num_reqs: int = 2,
    num_slots: int = 2,
    vocab: int = 3,
    greedy_drafts: bool = False,
    greedy_target: bool = False,
) -> ToyLaws:
    """Draw models of every sharpness, with drafters between a copy of the target and unrelated to it.

    >>> laws = random_laws(np.random.default_rng(0), num_models=4)
    >>> [p.shape for p in laws.target]
    [(4, 2, 1, 3), (4, 2, 3, 3), (4, 2, 9, 3)]
    """
    likeness = rng.uniform(0, 1, (num_models, num_reqs, 1, 1))
    target, drafter, logits, head = [], [], [], []
    for slot in range(num_slots + 1):
        shape = (num_models, num_reqs, vocab**slot, vocab)
        z, other = rng.normal(size=(2, *shape)) * rng.uniform(0.3, 5, (*shape[:3], 1))
        target.append(_chosen(z) if greedy_target else _softmax(z))
        if slot < num_slots:
            z = likeness * z + (1 - likeness) * other
            logits.append(z)
            drafter.append(_chosen(z) if greedy_drafts else _softmax(z))
            head.append(1 / (1 + np.exp(-rng.normal(1, 1, shape[:3]))))
    return ToyLaws(tuple(target), tuple(drafter), tuple(logits), tuple(head))


def drafts(laws: ToyLaws, length: int) -> IntArray:
    """Return the index of the first `length` tokens of each of the V^K drafts, `[V^K]`."""
    return np.arange(laws.num_drafts) // laws.vocab ** (laws.num_slots - length)


def is_made(name: str, vocab: int) -> bool:
    """Say whether toy models have a feature."""
    if name.startswith("top_logit_"):
        return int(name.removeprefix("top_logit_")) < vocab
    return name in (*_OF_PREFIX, *_OF_TOKEN, "label")


def feature_columns(laws: ToyLaws, names: Sequence[str]) -> dict[str, F32Array]:
    """Return features of each request's drafts as a trace would hold them, float32 `[K, N, R, V^K]`.

    `label` is no function of the draft; whoever enumerates verdicts adds it.
    """
    columns = {}
    for name in names:
        slots = []
        for slot in range(laws.num_slots):
            values = _feature(laws, name, slot)
            slots.append(values[..., drafts(laws, slot + (name in _OF_TOKEN))])
        columns[name] = np.stack(slots).astype(np.float32)
    return columns


def _feature(laws: ToyLaws, name: str, slot: int) -> F64Array:
    """Return a feature of one slot by prefix, `[N, R, V^k]`, or with the drawn token, `[N, R, V^(k+1)]`."""
    z, p, q = laws.logits[slot], laws.target[slot], laws.drafter[slot]
    prefixes, tokens = (*z.shape[:2], -1), (*z.shape[:2], z.shape[2] * z.shape[3])
    probs = _softmax(z)
    match name:
        case "log_odds":
            return features.log_odds(z.reshape(-1, z.shape[3])).reshape(prefixes)
        case "log_odds_f32":
            return features.log_odds_f32(z.reshape(-1, z.shape[3])).reshape(prefixes)
        case "entropy":
            return -(probs * np.log(np.maximum(probs, _SMALLEST))).sum(axis=3)
        case "margin":
            ordered = np.sort(z, axis=3)
            return np.asarray(ordered[..., -1] - ordered[..., -2])
        case "logsumexp":
            return np.asarray(np.log(np.exp(z).sum(axis=3)))
        case "alpha":
            return np.minimum(p, q).sum(axis=3)
        case "confidence":
            return laws.head[slot]
        case "draft_logprob":
            return np.log(np.maximum(probs, _SMALLEST)).reshape(tokens)
        case "target_logprob":
            return np.log(np.maximum(p, _SMALLEST)).reshape(tokens)
        case "accept_prob":
            return acceptance(p, q).reshape(tokens)
    return np.sort(z, axis=3)[..., -1 - int(name.removeprefix("top_logit_"))]


def acceptance(target: F64Array, drafter: F64Array) -> F64Array:
    """Return min(1, p / q), and 1 where the drafter never goes."""
    return np.minimum(1.0, np.divide(target, drafter, out=np.ones_like(target), where=drafter > 0))


def _softmax(z: F64Array) -> F64Array:
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _chosen(z: F64Array) -> F64Array:
    return (z.argmax(axis=-1)[..., None] == np.arange(z.shape[-1])).astype(np.float64)
