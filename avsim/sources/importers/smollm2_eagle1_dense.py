"""The seed trace: SmolLM2-135M-Instruct with a small EAGLE-1 head, a draft block at every output position."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from avsim.errors import InputError
from avsim.features import log_odds_from_log_prob
from avsim.sources.card import TraceCard
from avsim.sources.importers.base import Imported, Importer
from avsim.sources.parquet import read_table
from avsim.sources.schema import slot_column

__all__ = ["SmolLM2Eagle1Dense"]

NUM_SLOTS = 5
COLUMNS = (
    "mode",
    "req",
    "position",
    "slot",
    "q_d",
    "p_d",
    "log_max_q",
    "lse",
    "entropy",
    "reached",
    "accept",
    "l0",
    "l1",
)
SHORT_NAMES = {"greedy": "greedy", "sampled-target-sampled-draft": "sampled"}
NOTES = (
    "A weak drafter: an EAGLE-1 head (one decoder layer, the target's frozen output head) trained for 10 minutes. "
    "Recorded on a CPU; target weights in Q4_1, computed in fp32. Outputs are cut at 160 tokens. Part of the drafter's "
    "training text was CodeAlpaca (CC-BY-NC), which bears on the drafter's weights, not on these numbers. "
    "log_odds comes from the float32 log-probability of the most likely draft token; margin comes from float16 logits "
    "and entropy is float16. log_odds_f32 needs the full logits, which were not kept."
)


@dataclass(frozen=True)
class SmolLM2Eagle1Dense(Importer):
    """Imports one mode of the seed trace.

    `greedy`: T = 0, argmax drafts. `sampled-target-greedy-draft`: T = 1, argmax drafts.
    `sampled-target-sampled-draft`: T = 1, sampled drafts, exact rejection sampling.
    """

    name: ClassVar[str] = "smollm2-eagle1-dense"
    reads: ClassVar[str] = "a folder with rows.parquet and requests.parquet"
    positional: ClassVar[str] = "mode"

    mode: Literal["greedy", "sampled-target-greedy-draft", "sampled-target-sampled-draft"] = "greedy"

    def read(self, source: Path) -> Imported:
        path = source / "rows.parquet"
        rows, requests = read_table(path), read_table(source / "requests.parquet")
        for name in COLUMNS:
            if name not in rows.columns:
                raise InputError(f"{path}: column {name!r} is missing; this importer reads {self.reads}")
        rows = rows.filter(pl.col("mode") == self.mode).sort("req", "position", "slot")
        temperature = 0.0 if self.mode == "greedy" else 1.0
        requests = requests.filter(pl.col("temp") == temperature).sort("req")
        if rows.is_empty() or requests.is_empty():
            raise InputError(f"{path}: no rows of mode {self.mode!r}")
        blocks = _blocks(rows, sampled_draft=self.mode == "sampled-target-sampled-draft")
        table = requests.select(
            pl.col("req").alias("request"),
            pl.Series("source", _sources(requests, blocks)),
            "prompt_len",
            "output_len",
            pl.col("temp").alias("temperature"),
            "category",
        )
        return Imported(self._card(temperature), table, [blocks])

    def _card(self, temperature: float) -> TraceCard:
        return TraceCard(
            name=f"smollm2-eagle1-{SHORT_NAMES.get(self.mode, self.mode)}",
            kind="dense",
            target="SmolLM2-135M-Instruct",
            drafter="EAGLE-1 head, one decoder layer, trained for 10 minutes",
            drafter_kind="eagle",
            num_speculative_tokens=NUM_SLOTS,
            draft_sampling="probabilistic" if self.mode == "sampled-target-sampled-draft" else "greedy",
            acceptance_rule="greedy-match" if self.mode == "greedy" else "standard",
            temperature=temperature,
            engine="stand-alone dense tracer, no serving engine",
            hardware="CPU",
            vocab_size=49152,
            prompts="GSM8K test, HumanEval, MT-bench, Vicuna-bench, Spec-Bench (held out from the drafter's training)",
            licence="measured by the avsim project; free to use and to ship",
            complete_blocks=False,
            notes=NOTES,
        )


def _blocks(rows: pl.DataFrame, *, sampled_draft: bool) -> pl.DataFrame:
    def of(name: str) -> NDArray[np.float64]:
        return rows[name].cast(pl.Float64).to_numpy()

    reached = rows["reached"].to_numpy()
    with np.errstate(invalid="ignore"):
        # Rounding leaves some recorded probabilities just above 1.
        target_logprob = np.where(reached, np.minimum(np.log(of("p_d")), 0), np.nan)
        accept_prob = np.where(reached, np.minimum(of("p_d") / of("q_d"), 1), np.nan)
    features: dict[str, NDArray[np.floating]] = {
        "log_odds": log_odds_from_log_prob(of("log_max_q")),
        "entropy": of("entropy"),
        "margin": of("l0") - of("l1"),
        "logsumexp": of("lse"),
        "draft_logprob": np.minimum(np.log(of("q_d")), 0),
        "target_logprob": target_logprob,
    }
    if sampled_draft:
        features["accept_prob"] = accept_prob
    slots = [
        pl.col(name).filter(pl.col("slot") == slot).first().cast(pl.Float32).alias(slot_column(name, slot))
        for name in features
        for slot in range(NUM_SLOTS)
    ]
    drafted = pl.len().alias("num_drafted")
    accepted = (pl.col("reached") & pl.col("accept")).sum().alias("num_accepted")
    table = rows.select("req", "position", "slot", "reached", "accept").with_columns(
        pl.Series(name, values) for name, values in features.items()
    )
    return (
        table.group_by("req", "position", maintain_order=True)
        .agg(drafted, accepted, *slots)
        .rename({"req": "request"})
        .with_columns(pl.col("num_drafted").alias("num_admitted"))
    )


def _sources(requests: pl.DataFrame, blocks: pl.DataFrame) -> list[int]:
    """Give requests that start alike one source: equal prompt length, and equal first blocks within rounding."""
    columns = [slot_column("log_odds", slot) for slot in range(NUM_SLOTS)]
    starts: list[tuple[int, int, NDArray[np.float64], list[int]]] = []
    sources = []
    for request, prompt_len in requests.select("req", "prompt_len").iter_rows():
        start = blocks.filter(pl.col("request") == request).head(8)
        odds = start.select(columns).to_numpy().astype(np.float64)
        accepted = start["num_accepted"].to_list()
        for source, other_len, other_odds, other_accepted in starts:
            if (
                prompt_len == other_len
                and accepted == other_accepted
                and np.allclose(odds, other_odds, atol=1e-2, rtol=0, equal_nan=True)
            ):
                sources.append(source)
                break
        else:
            starts.append((request, prompt_len, odds, accepted))
            sources.append(request)
    return sources
