"""Traces with a known acceptance law, for tests and for seeing what an estimator can recover."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from avsim.errors import InputError
from avsim.features import MAX_LOG_ODDS, sigmoid
from avsim.registry import format_spec
from avsim.sources.base import Trace
from avsim.sources.card import TraceCard
from avsim.sources.lengths import Fixed, Lengths
from avsim.sources.schema import slot_column
from avsim.sources.walk import walked
from avsim.sources.writer import write_trace
from avsim.types import IntArray

__all__ = ["SyntheticLaw", "write_synthetic"]

BLOCK_ROWS = 1 << 18
_Side = Literal["output_len", "prompt_len"]
_SHORTEST: dict[_Side, int] = {"output_len": 2, "prompt_len": 0}  # prefill emits the first token of an output


@dataclass(frozen=True, kw_only=True)
class SyntheticLaw:
    """P(slot k accepted | slots before it accepted) = σ(w f + b_k + u + drift(t) + shift(t)).

    f ~ N(feature_mean, feature_sd²), independent per slot; u ~ N(0, request_sd²), one per request;
    t = request / num_requests. drift(t) = drift · t, and shift(t) = switch_shift where t ≥ switch_at. With request_sd
    0 and neither drift nor switch this is the model of `online-logistic`. An on-policy trace holds the blocks of the
    dense trace of the same law that a run visits. Lengths are independent of each other and of acceptance, which those
    of real traffic are not.

    Attributes:
        kind: `dense`, or `on-policy` (all K admitted, `num_reqs` requests in every step until the supply ends).
        num_requests: how many there are.
        output_len, prompt_len: tokens of each, one number for all or a distribution.
        num_reqs: requests per step, if on-policy.
        slope: w.
        intercept, intercept_step: b_k = intercept + k · intercept_step.
        seed: of the generator; the same law and seed give the same trace.

    Raises:
        InputError: a size below 1, a spread below 0 or a value that is not finite.
    """

    kind: Literal["dense", "on-policy"] = "dense"
    num_requests: int = 64
    num_speculative_tokens: int = 7
    output_len: int | Lengths = 128
    prompt_len: int | Lengths = 64
    num_reqs: int = 16
    slope: float = 0.5
    intercept: float = -0.2
    intercept_step: float = 0.0
    feature_mean: float = 1.0
    feature_sd: float = 2.0
    request_sd: float = 0.0
    drift: float = 0.0
    switch_at: float = 1.0
    switch_shift: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "num_speculative_tokens", "num_reqs"):
            if getattr(self, name) < 1:
                raise InputError(f"synthetic trace: {name} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0:
            raise InputError(f"synthetic trace: seed {self.seed} must be ≥ 0")
        for name in _SHORTEST:
            self.lengths(name)
        if self.kind == "on-policy" and self.num_reqs > self.num_requests:
            raise InputError(f"synthetic trace: num_reqs {self.num_reqs} is above num_requests {self.num_requests}")
        numbers = (self.slope, self.intercept, self.intercept_step, self.feature_mean, self.drift, self.switch_shift)
        spreads = (self.feature_sd, self.request_sd, self.switch_at)
        if not (np.isfinite([*numbers, *spreads]).all() and min(spreads) >= 0):
            raise InputError("synthetic trace: every coefficient must be finite, and spreads and switch_at ≥ 0")

    def card(self) -> TraceCard:
        """Return the card of the trace, with the law in its notes."""
        intercept = f"{self.intercept:g}{self.intercept_step:+g}·k"
        law = f"slope={self.slope:g} b_k={intercept} u~N(0, {self.request_sd:g}²)"
        change = f"drift={self.drift:g} switch_at={self.switch_at:g} switch_shift={self.switch_shift:g}"
        sizes = "; ".join(self._said(name) for name in _SHORTEST)
        return TraceCard(
            name=f"synthetic-{self.kind}-k{self.num_speculative_tokens}-seed{self.seed}",
            kind=self.kind,
            target="none",
            drafter="none",
            drafter_kind="synthetic",
            num_speculative_tokens=self.num_speculative_tokens,
            draft_sampling="greedy",
            acceptance_rule="greedy-match",
            temperature=0.0,
            engine="avsim synthetic source",
            hardware="none",
            prompts="none",
            licence="Apache-2.0",
            seed=self.seed,
            synthetic=True,
            complete_blocks=True,
            notes=f"P(accept) = σ(slope·f + b_k + u + drift·t + shift): {law} {change} "
            f"f~N({self.feature_mean:g}, {self.feature_sd:g}²); {sizes}",
        )

    def lengths(self, name: _Side) -> IntArray:
        """Return the length of each request's output or prompt, int64 `[num_requests]`."""
        law = getattr(self, name)
        law = law if isinstance(law, Lengths) else Fixed(law)
        # Apart from the draws of the blocks, which the law of the prompts so leaves as they are.
        rng = np.random.default_rng([self.seed, 1 + list(_SHORTEST).index(name)])
        try:
            return law.draw(self.num_requests, _SHORTEST[name], rng)
        except InputError as error:
            raise InputError(f"synthetic trace: {name}: {error}") from None

    def _said(self, name: _Side) -> str:
        law = getattr(self, name)
        if not isinstance(law, Lengths) or isinstance(law, Fixed):
            return f"{name}={law.tokens if isinstance(law, Fixed) else law}"
        drawn, most = self.lengths(name), getattr(law, "max", None)
        cut = "" if most is None else f", {int((drawn >= most).sum())} of max"
        return f"{name}~{format_spec(law)} (drawn: mean {drawn.mean():.1f}, {drawn.min()} to {drawn.max()}{cut})"

    def requests(self) -> pl.DataFrame:
        """Return the request table."""
        number = np.arange(self.num_requests)
        sizes = {"prompt_len": self.lengths("prompt_len"), "output_len": self.lengths("output_len")}
        return pl.DataFrame({"request": number, "source": number} | sizes).with_columns(temperature=pl.lit(0.0))

    def frames(self) -> Iterator[pl.DataFrame]:
        """Draw the blocks, in pieces of 2¹⁸ rows at most, or of one request."""
        return (frame for frame, _ in self._drawn()) if self.kind == "dense" else self._scheduled()

    def _drawn(self) -> Iterator[tuple[pl.DataFrame, IntArray]]:
        """Yield the dense blocks of some whole requests, and A of each block."""
        rng = np.random.default_rng(self.seed)
        offset = rng.normal(0.0, self.request_sd, self.num_requests)
        num_slots, counts = self.num_speculative_tokens, self.lengths("output_len") - 1
        ends = np.cumsum(counts)
        slot = np.arange(num_slots)[:, None]
        start = 0
        while start < self.num_requests:
            room = ends[start] - counts[start] + BLOCK_ROWS
            past = max(int(np.searchsorted(ends, room, side="right")), start + 1)
            requests, blocks = np.arange(start, past), counts[start:past]
            start = past
            time = requests / self.num_requests
            level = offset[requests] + self.drift * time + self.switch_shift * (time >= self.switch_at)
            request = np.repeat(requests, blocks)
            position = np.arange(len(request)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
            feature = rng.standard_normal((num_slots, len(request)), dtype=np.float32)
            feature *= np.float32(self.feature_sd)
            feature += np.float32(self.feature_mean)
            np.clip(feature, -MAX_LOG_ODDS, MAX_LOG_ODDS, out=feature)
            intercept = self.intercept + self.intercept_step * slot
            logit = self.slope * feature + intercept + np.repeat(level, blocks)
            label = rng.random(feature.shape, dtype=np.float32) < sigmoid(logit)
            accepted = np.minimum.accumulate(label, axis=0).sum(axis=0)
            frame = pl.DataFrame(
                {"request": request, "position": position, "num_accepted": accepted}
                | {slot_column("log_odds", k): feature[k] for k in range(num_slots)}
            ).with_columns(num_drafted=pl.lit(num_slots), num_admitted=pl.lit(num_slots))
            yield frame, accepted

    def _scheduled(self) -> Iterator[pl.DataFrame]:
        """Yield the blocks that a closed loop visits, in whole steps: requests start in order as others end."""
        free = [0] * self.num_reqs
        held, all_counts = pl.DataFrame(), self.lengths("output_len") - 1
        for frame, accepted in self._drawn():
            requests = frame["request"].unique(maintain_order=True)
            counts = all_counts[requests.to_numpy()]
            frame = frame.filter(pl.Series(walked(counts, frame["position"].to_numpy(), accepted)))
            starts = []
            for num_steps in frame.group_by("request", maintain_order=True).len()["len"].to_list():
                starts.append(free[0])
                heapq.heapreplace(free, free[0] + num_steps)
            start = pl.DataFrame({"request": requests, "_start": starts})
            step = pl.int_range(pl.len()).over("request") + pl.col("_start")
            frame = frame.join(start, on="request", maintain_order="left").select(
                pl.exclude("_start"), step.alias("step")
            )
            held = pl.concat([held, frame]) if len(held) else frame
            done = pl.col("step") < free[0]  # no later request starts before a place is free
            yield held.filter(done)
            held = held.filter(~done)
        yield held


def write_synthetic(path: str | Path, law: SyntheticLaw, overwrite: bool = False) -> Trace:
    """Write a trace of a known law; memory does not grow with its size.

    Raises:
        InputError: the path is taken.
    """
    return write_trace(path, law.card(), law.requests(), law.frames(), overwrite=overwrite)
