"""Tokens from logits: greedy, or sampled with keyed uniforms, and the verdict on drafts by rejection sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from avsim.workload import keyed_uniform

from .exponential import exp

DRAFT, ACCEPT, RECOVER = 0, 1, 2
_LEAST, _TINY = np.float32(-3e38), np.float32(1e-37)


@njit(parallel=True, fastmath=True, cache=True)
def _softmax(z: np.ndarray, scale: float) -> None:
    for i in prange(len(z)):
        row = z[i]
        top = _LEAST
        for n in range(len(row)):
            top = max(top, row[n])
        total = np.float32(0)
        for n in range(len(row)):
            row[n] = exp((row[n] - top) * np.float32(scale))
            total += row[n]
        factor = np.float32(1) / total
        for n in range(len(row)):
            row[n] *= factor


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Return probabilities of logits / temperature, in the same memory."""
    _softmax(logits, 1 / temperature)
    return logits


@njit(parallel=True, fastmath=True, cache=True)
def _features(z: np.ndarray, scale: float, out: np.ndarray) -> None:
    for i in prange(len(z)):
        row, top = z[i], _LEAST
        for n in range(len(row)):
            top = max(top, row[n])
        second, ties = _LEAST, 0
        others, moment = np.float32(0), np.float32(0)
        for n in range(len(row)):
            below = row[n] < top
            shifted = (row[n] - top) * np.float32(scale)
            weight = exp(shifted) if below else np.float32(0)
            others += weight
            moment += weight * shifted
            ties += 0 if below else 1
            second = max(second, row[n] if below else _LEAST)
        others += np.float32(ties - 1)
        if ties > 1:
            second = top
        out[0, i] = min(max(-np.log(max(others, _TINY)), np.float32(-40)), np.float32(40))
        out[1, i] = max(np.log1p(others) - moment / (np.float32(1) + others), np.float32(0))
        out[2, i] = (top - second) * np.float32(scale)


def draft_features(logits: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    """Return `log_odds`, `entropy` and `margin` of logits / temperature, `[n]` each, as `avsim.capture.reduce` does."""
    out = np.empty((3, len(logits)), dtype=np.float32)
    _features(logits, 1 / temperature if temperature > 0 else 1.0, out)
    return dict(zip(("log_odds", "entropy", "margin"), out, strict=True))


@dataclass(frozen=True)
class Sampler:
    """How tokens are chosen; temperature 0 is greedy. Uniforms are keyed by (seed, request, output index, purpose)."""

    temperature: float
    seed: int

    def uniform(self, requests: np.ndarray, position: np.ndarray, slot: int, purpose: int) -> np.ndarray:
        """Return one uniform per request for the token `slot` places behind an output index."""
        first = requests + (self.seed << 32)
        return keyed_uniform(first, ((position + slot) * 8 + purpose) * 64 + (slot if purpose == DRAFT else 0))

    def first_token(self, logits: np.ndarray, request: int) -> int:
        """Choose output token 0 from the prompt's last logits `[vocab]`."""
        if self.temperature == 0:
            return int(logits.argmax())
        p = softmax(logits[None].copy(), self.temperature)[0]
        return draw(p, float(self.uniform(np.array([request]), np.array([0]), 0, RECOVER)[0]))

    def draft(
        self, logits: np.ndarray, requests: np.ndarray, position: np.ndarray, slot: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Choose one draft per row of `[n, V']`; return indices into the draft vocabulary, and q (None if greedy)."""
        if self.temperature == 0:
            return logits.argmax(axis=1), None
        q = softmax(logits, self.temperature)
        uniforms = self.uniform(requests, position + 1, slot, DRAFT)
        return np.array([draw(row, float(u)) for row, u in zip(q, uniforms, strict=True)], dtype=np.int64), q

    def verdicts(
        self,
        logits: np.ndarray,
        admitted: np.ndarray,
        drafts: np.ndarray,
        q: list[np.ndarray],
        vocab: np.ndarray,
        requests: np.ndarray,
        position: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return accepted drafts `[R]` and the token behind them `[R]`.

        Args:
            logits: the target's rows, request by request, `admitted` + 1 each; overwritten.
            drafts: indices into the draft vocabulary, `[K, R]`.
            q: the draft probabilities of each slot, `[R, V']`; empty if greedy.
            position: output index of each request's newest token.
        """
        starts = np.cumsum(admitted + 1) - (admitted + 1)
        accepted, following = np.zeros_like(admitted), np.zeros_like(admitted)
        best = logits.argmax(axis=1) if self.temperature == 0 else None
        if best is None:
            softmax(logits, self.temperature)
        for r, (first, count) in enumerate(zip(starts.tolist(), admitted.tolist(), strict=True)):
            rows, own = slice(first, first + count + 1), drafts[:count, r]
            if best is None:
                ours = [one[r] for one in q[:count]]
                verdict = self._reject(logits[rows], own, ours, vocab, requests[r : r + 1], position[r : r + 1])
                accepted[r], following[r] = verdict
            else:
                wrong = np.flatnonzero(best[first : first + count] != vocab[own]) if count else own
                accepted[r] = wrong[0] if len(wrong) else count
                following[r] = best[first + accepted[r]]
        return accepted, following

    def _reject(
        self,
        p: np.ndarray,
        drafts: np.ndarray,
        q: list[np.ndarray],
        vocab: np.ndarray,
        request: np.ndarray,
        position: np.ndarray,
    ) -> tuple[int, int]:
        """Standard rejection sampling of one request: accept d with min(1, p/q), else draw from (p − q)⁺."""
        for k, (draft, own) in enumerate(zip(drafts.tolist(), q, strict=True)):
            chance = float(self.uniform(request, position + 1, k, ACCEPT)[0])
            if chance * own[draft] < p[k, vocab[draft]]:
                continue
            left = p[k].copy()
            left[vocab] -= own
            np.maximum(left, 0, out=left)
            weights = left if left.sum() > 0 else p[k]
            return k, draw(weights, float(self.uniform(request, position + 1, k, RECOVER)[0]))
        k = len(drafts)
        return k, draw(p[k], float(self.uniform(request, position + 1, k, RECOVER)[0]))


def draw(weights: np.ndarray, uniform: float) -> int:
    """Return an index by inversion of one uniform; the weights need not sum to 1."""
    total = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(total, uniform * total[-1], side="right")), len(weights) - 1)
