"""Toy models whose next-token law depends on the last two tokens only: a real serving loop, and dense traces of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.generate import Output
from avsim.capture.dense.tracer import Sampling, trace_request
from avsim.capture.dense.verify import couple, draft_uniforms, draw
from avsim.costs.base import CostModel, StepShape
from avsim.features import log_odds
from avsim.policies.base import Policy, StepBatch
from avsim.sources import Trace, TraceCard, write_trace
from avsim.sources.schema import slot_column
from avsim.types import BoolArray, F32Array, F64Array, IntArray

VOCAB, K, OUTPUT_LEN, PROMPT_LEN, LAW_BINS = 64, 5, 200, 8, 20


@dataclass(frozen=True)
class Markov:
    """A target and a drafter as tables over contexts c = 64 · (token before last) + (last token).

    With g, h ~ N(0, 1) per context and token:

    * `kind="plain"`: the target's logits are s g, with s log-uniform in 1 … 16 per context, the drafter's s g + 2 h. A
      sharp context is drafted well, and its token is nearly certain.
    * `kind="forking"`: in 3 of 4 contexts the target's logits are 2 g and the drafter's 2 g + 0.5 h: drafted well,
      while the token remains open. In the others the target's are 3 g and the drafter's 0.5 h: drafted badly, and the
      drafter's flatness says so. Which token is drawn decides how well the next one is drafted.
    """

    kind: Literal["plain", "forking"]
    seed: int
    target: F32Array = field(init=False, repr=False)
    drafter: F32Array = field(init=False, repr=False)
    p: F64Array = field(init=False, repr=False)
    q: F64Array = field(init=False, repr=False)
    cdf_p: F64Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        g, h = rng.standard_normal((2, VOCAB, VOCAB, VOCAB))
        if self.kind == "plain":
            target = np.exp(rng.uniform(0.0, np.log(16.0), (VOCAB, VOCAB, 1))) * g
            drafter = target + 2.0 * h
        else:
            good = rng.random((VOCAB, VOCAB, 1)) < 0.75
            target = np.where(good, 2.0, 3.0) * g
            drafter = np.where(good, target, 0.0) + 0.5 * h
        for logit_name, name, rows in (("target", "p", target), ("drafter", "q", drafter)):
            table = rows.reshape(VOCAB * VOCAB, VOCAB).astype(np.float32)
            object.__setattr__(self, logit_name, table)
            object.__setattr__(self, name, _softmax(table))
        object.__setattr__(self, "cdf_p", _cdf(self.p))

    @property
    def log_odds(self) -> F32Array:
        """The estimator's feature of each context, `[contexts]`."""
        return log_odds(self.drafter)

    def prompts(self, count: int, rng: np.random.Generator) -> IntArray:
        """Return the contexts in which outputs start: a few of the target's own tokens after two random ones."""
        context = rng.integers(VOCAB * VOCAB, size=count)
        for _ in range(PROMPT_LEN):
            context = _next(context, _draw(self.cdf_p, context, rng))
        return context


# ---- the dense trace


def stretches(model: Markov, requests: int, rng: np.random.Generator) -> IntArray:
    """Return outputs with the prompt token before them and K tokens past their end, `[requests, 1 + 200 + K]`."""
    context = model.prompts(requests, rng)
    out = np.empty((requests, 1 + OUTPUT_LEN + K), dtype=np.int64)
    out[:, 0], out[:, 1] = context // VOCAB, context % VOCAB
    for at in range(2, out.shape[1]):
        out[:, at] = _draw(model.cdf_p, context, rng)
        context = _next(context, out[:, at])
    return out


def dense_blocks(model: Markov, tokens: IntArray, uniforms: F64Array) -> pl.DataFrame:
    """Draft a block at every output position, coupled to the output by avsim's own `couple`, as its tracer does.

    Args:
        tokens: see `stretches`.
        uniforms: `[requests · 199, K, 2]`, as from `draft_uniforms`.
    """
    p, q = torch.from_numpy(model.p.astype(np.float32)), torch.from_numpy(model.q.astype(np.float32))
    uniform, feature = torch.from_numpy(uniforms), model.log_odds
    context = (tokens[:, : OUTPUT_LEN - 1] * VOCAB + tokens[:, 1:OUTPUT_LEN]).ravel()
    truth = context.copy()  # the target's own
    reached, accepted = np.ones(len(context), dtype=bool), np.zeros(len(context), dtype=np.int64)
    columns = {}
    for k in range(K):
        columns[slot_column("log_odds", k)] = feature[context]
        sample = tokens[:, 2 + k : OUTPUT_LEN + 1 + k].ravel()
        law = q[context]
        free = draw(law, uniform[:, k, 1])
        tied = couple(law, p[truth], torch.from_numpy(sample), uniform[:, k])
        token = np.where(reached, tied.numpy(), free.numpy())
        reached = reached & (token == sample)
        accepted += reached
        context, truth = _next(context, token), _next(truth, sample)
    request, position = np.divmod(np.arange(len(context)), OUTPUT_LEN - 1)
    full = np.full(len(context), K)
    counts = {"num_drafted": full, "num_admitted": full, "num_accepted": accepted}
    return pl.DataFrame({"request": request, "position": position} | counts | columns)


def dense_trace(path: Path, model: Markov, requests: int, seed: int) -> Trace:
    """Draw outputs from the target, trace a block at every position, and write the trace."""
    rng = np.random.default_rng([seed, 77])
    tokens = stretches(model, requests, rng)
    frame = dense_blocks(model, tokens, rng.random((requests * (OUTPUT_LEN - 1), K, 2)))
    number = np.arange(requests)
    table = pl.DataFrame({"request": number, "source": number}).with_columns(
        prompt_len=pl.lit(PROMPT_LEN), output_len=pl.lit(OUTPUT_LEN), temperature=pl.lit(1.0)
    )
    card = TraceCard(
        name="synthetic-look-ahead",
        kind="dense",
        target="order-2 Markov toy",
        drafter="order-2 Markov toy, shaken",
        drafter_kind="synthetic",
        num_speculative_tokens=K,
        draft_sampling="probabilistic",
        acceptance_rule="standard",
        temperature=1.0,
        vocab_size=VOCAB,
        seed=seed,
        synthetic=True,
        complete_blocks=True,
    )
    return write_trace(path, card, table, [frame])


class _TracedTarget:
    """What `trace_request` asks of a target."""

    vocab_size, device = VOCAB, torch.device("cpu")

    def __init__(self, model: Markov):
        self.table = torch.from_numpy(model.target)

    def hidden_layers(self, tokens: Any, layers: tuple[int, ...]) -> tuple[Any, None]:
        before = torch.cat([tokens[:1], tokens[:-1]])
        return before * VOCAB + tokens, None

    def logits(self, contexts: Any) -> Any:
        return self.table[contexts]


class _TracedDrafter:
    """What `trace_request` asks of a drafter."""

    kind, num_slots, hidden_layers = "synthetic", None, ()

    def __init__(self, model: Markov):
        self.table = torch.from_numpy(model.drafter)

    def begin(self, tokens: Any, hidden: Any | None) -> Any:
        return tokens

    def slot(self, state: Any, ends: Any, drafted: Any) -> SlotOutput:
        known = torch.cat([state[ends - 1][:, None], state[ends][:, None], drafted], dim=1)
        return SlotOutput(self.table[known[:, -2] * VOCAB + known[:, -1]])


def tracer_agrees(model: Markov, requests: int = 8) -> float:
    """Return the share of blocks in which avsim's dense tracer says the same (verdicts and features) as here."""
    tokens = stretches(model, requests, np.random.default_rng(3))
    uniforms = np.stack([draft_uniforms(3, request, OUTPUT_LEN - 1, K) for request in range(requests)])
    mine = dense_blocks(model, tokens, uniforms.reshape(-1, K, 2))
    how = Sampling(K, 1.0, probabilistic=True, seed=3, num_top=0)
    with torch.inference_mode():
        theirs = pl.concat(
            trace_request(
                _TracedTarget(model), _TracedDrafter(model), [line[0]], Output(request, line[1:], OUTPUT_LEN), how
            )
            for request, line in enumerate(tokens.tolist())
        )
    names = ["num_accepted", *(slot_column("log_odds", k) for k in range(K))]
    return float(np.isclose(mine[names].to_numpy(), theirs[names].to_numpy(), atol=1e-3).all(axis=1).mean())


# ---- the real loop


@dataclass(frozen=True)
class Served:
    """Sums over the steps at full concurrency, `[lanes]` each, and a test of what was emitted.

    Attributes:
        law: how often u fell into each of 20 equal bins, u uniform if every emitted token has the target's law.
    """

    ms: F64Array
    emitted: IntArray
    blocks: IntArray
    admitted: IntArray
    accepted: IntArray
    law: IntArray


def serve(
    model: Markov,
    policy: Policy,
    confidence: F32Array,
    lag: int,
    concurrency: int,
    lanes: int,
    requests: int,
    cost: CostModel,
    rng: np.random.Generator,
) -> Served:
    """Serve fresh requests for real: draft, size, allocate, verify by rejection sampling, advance.

    Args:
        confidence: of slot k in each context, float32 `[K, contexts]`.
        lag: 1 sizes a block by the confidences of the request's block before it, the first one at 1; 0 by its own.
        lanes: independent engines, run side by side.
        requests: per lane; at first all seats fill, and a finished request is replaced while there are any.
    """
    p, q = model.p, model.q
    cdf_q, low = _cdf(q), _below(model)
    residual = np.maximum(p - q, 0)
    cdf_last = np.concatenate([model.cdf_p, _cdf(residual / residual.sum(axis=1, keepdims=True))])
    depth = policy.depth(K)
    shape = (lanes, concurrency)
    tables = cost.tables(concurrency, concurrency * (depth + 1))
    context = model.prompts(lanes * concurrency, rng).reshape(shape)
    position, age = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    active, left = np.ones(shape, dtype=bool), np.full(lanes, requests - concurrency)
    before = np.ones((depth, *shape), dtype=np.float32)
    sums = {name: np.zeros(lanes) for name in ("ms", "emitted", "blocks", "admitted", "accepted")}
    law = np.zeros(LAW_BINS, dtype=np.int64)
    while active.any():
        num_reqs, remaining = active.sum(axis=1), OUTPUT_LEN - 1 - position
        contexts, drafts = [context], []
        for _ in range(depth):
            drafts.append(_draw(cdf_q, contexts[-1], rng))
            contexts.append(_next(contexts[-1], drafts[-1]))
        live = np.stack([confidence[k, contexts[k]] for k in range(depth)])
        sizing = np.where(age >= 1, before, np.float32(1)) if lag else live
        drafted = np.where(active, depth, 0)
        admitted = policy.admit(StepBatch(live, sizing, drafted, num_reqs, num_reqs, num_reqs, tables))
        accepted, going = np.zeros(shape, dtype=np.int64), active
        for k in range(int(admitted.max())):
            c, d = contexts[k], drafts[k]
            going = going & (k < admitted) & (rng.random(shape) * q[c, d] < p[c, d])
            accepted += going
        ends_at = np.take_along_axis(np.stack(contexts), accepted[None], axis=0)[0]
        last = _draw(cdf_last, ends_at + VOCAB * VOCAB * (accepted < admitted), rng)
        emitted = np.where(active, np.minimum(accepted + 1, remaining), 0)
        for k in range(int(emitted.max())):
            c, token = contexts[k], np.where(k < accepted, drafts[k] if k < depth else last, last)
            u = low[c, token] + rng.random(shape) * p[c, token]
            law += np.bincount((u[k < emitted] * LAW_BINS).astype(np.int64).clip(max=LAW_BINS - 1), minlength=LAW_BINS)
        verified, nothing = admitted.sum(axis=1), np.zeros(lanes, dtype=np.int64)
        step = StepShape(num_reqs, num_reqs + verified, nothing.astype(np.float64), nothing)
        counted = num_reqs == concurrency
        lines = (cost.step_ms(step, drafting=True), emitted.sum(axis=1), num_reqs, verified, accepted.sum(axis=1))
        for name, line in zip(sums, lines, strict=True):
            sums[name] += np.where(counted, line, 0)
        context, before, position, age = _next(ends_at, last), live, position + emitted, age + 1
        finished = active & (position >= OUTPUT_LEN - 1)
        if finished.any():
            seated = finished & (np.cumsum(finished, axis=1) <= left[:, None])
            left -= seated.sum(axis=1)
            context[seated] = model.prompts(int(seated.sum()), rng)
            position[finished], age[finished] = 0, 0
            active = active & (~finished | seated)
    return Served(**sums, law=law)


def _below(model: Markov) -> F64Array:
    """Return P(tokens ranked below x | context), ranked by the drafter's log-odds once x has been emitted."""
    after = model.log_odds.reshape(VOCAB, VOCAB)  # of the context (last, x)
    order = np.tile(after.argsort(axis=1), (VOCAB, 1))
    ranked = np.take_along_axis(model.p, order, axis=1)
    out = np.empty_like(ranked)
    np.put_along_axis(out, order, ranked.cumsum(axis=1) - ranked, axis=1)
    return out


def _softmax(logits: F32Array) -> F64Array:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _cdf(law: F64Array) -> F64Array:
    total = law.cumsum(axis=1)
    total[:, -1] = 1.0
    return total


def _draw(cdf: F64Array, context: IntArray, rng: np.random.Generator) -> IntArray:
    u, row = rng.random(context.shape), context * VOCAB
    token = np.zeros(context.shape, dtype=np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        token += step * (cdf.ravel()[row + token + (step - 1)] <= u)
    return token


def _next(context: IntArray, token: IntArray) -> IntArray:
    return context % VOCAB * VOCAB + token


# ---- calibration


def calibrate(feature: F32Array, observed: BoolArray, label: BoolArray) -> tuple[float, F64Array]:
    """Fit p_k = σ(w f + b_k) by maximum likelihood; arrays `[K, n]`."""
    w, b = 0.5, np.full(len(feature), -0.2)
    for _ in range(20):
        probability = 1 / (1 + np.exp(-(w * feature.astype(np.float64) + b[:, None])))
        weight = np.where(observed, probability * (1 - probability), 0)
        miss = np.where(observed, label - probability, 0)
        along = (weight * feature).sum(axis=1)
        inside, gradient = weight.sum(axis=1), miss.sum(axis=1)
        curve = (weight * feature**2).sum() - (along**2 / inside).sum()
        step = ((miss * feature).sum() - (along * gradient / inside).sum()) / curve
        w, b = w + step, b + (gradient - along * step) / inside
    return float(w), b
