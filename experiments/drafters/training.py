"""How the drafters are trained: ridge start, loss on the frozen head, and the optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from common import Sequence
from torch import Tensor


class SmallHead:
    """The rows of the frozen head that training sees: the commonest tokens by the target's own probability."""

    def __init__(self, sequences: list[Sequence], head: Tensor, size: int = 8192) -> None:
        mass = torch.zeros(len(head), device=head.device)
        for s in sequences:
            mass.index_add_(0, s.top_ids[s.prompt_len - 1 :].flatten(), s.top_probs[s.prompt_len - 1 :].flatten())
            mass.index_add_(0, s.tokens[s.prompt_len :], torch.ones(len(s.tokens) - s.prompt_len, device=head.device))
        rows = mass.topk(size).indices
        self.weight = head[rows]
        self.index = torch.full((len(head),), -1, device=head.device)
        self.index[rows] = torch.arange(size, device=head.device)

    def loss(self, states: Tensor, top_ids: Tensor, top_probs: Tensor) -> Tensor:
        """Cross-entropy to the target's stored probabilities, renormalised over the tokens present in both."""
        index = self.index[top_ids]
        p = top_probs * (index >= 0)
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-9)
        logits = states @ self.weight.T
        chosen = logits.gather(-1, index.clamp(min=0))
        return (logits.logsumexp(-1) - (p * chosen).sum(-1)).mean()


def ridge(x: Tensor, y: Tensor, strength: float = 3e-3) -> Tensor:
    """W that minimises ‖x W − y‖² + λ‖W‖², with λ = `strength` times the mean diagonal of xᵀx."""
    gram, cross = torch.zeros(x.shape[1], x.shape[1]).double(), torch.zeros(x.shape[1], y.shape[1]).double()
    for rows, values in zip(x.split(4096), y.split(4096), strict=True):
        gram += (rows.T @ rows).double().cpu()
        cross += (rows.T @ values).double().cpu()
    gram.diagonal().add_(strength * gram.diagonal().mean())
    return torch.linalg.solve(gram, cross).float().to(x.device)


def minibatches(sequences: list[Sequence], per_batch: int, generator: torch.Generator) -> Iterator[list[Sequence]]:
    """Endless shuffled epochs."""
    while True:
        order = torch.randperm(len(sequences), generator=generator).tolist()
        for first in range(0, len(order) - per_batch + 1, per_batch):
            yield [sequences[i] for i in order[first : first + per_batch]]


class Trainer:
    """AdamW under a wall-clock budget, with warm-up, cosine decay and an average of the weights."""

    def __init__(self, weights: dict[str, Tensor], minutes: float, lr: float, decay: float = 0.998) -> None:
        self.weights = {name: w.requires_grad_(True) for name, w in weights.items()}
        self.average = {name: w.detach().clone() for name, w in weights.items()}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
        self.start, self.seconds, self.lr, self.decay = time.monotonic(), 60 * minutes, lr, decay
        self.steps, self.smooth = 0, math.nan

    @property
    def done(self) -> float:
        """Share of the budget that is used."""
        return (time.monotonic() - self.start) / self.seconds

    def step(self, loss: Tensor) -> None:
        """One update."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        cosine = 0.51 + 0.49 * math.cos(math.pi * min(1.0, self.done))
        rate = self.lr * min(1.0, (self.steps + 1) / 30) * cosine
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        decay = min(self.decay, (self.steps + 1) / (self.steps + 10))
        with torch.no_grad():
            for name, w in self.weights.items():
                self.average[name].lerp_(w, 1 - decay)
        value = float(loss.detach())
        self.smooth = value if self.steps == 0 else 0.97 * self.smooth + 0.03 * value
        self.steps += 1
        if self.steps % 50 == 0:
            print(f"step {self.steps}, {100 * self.done:.0f} % of the time, loss {self.smooth:.4f}", flush=True)
