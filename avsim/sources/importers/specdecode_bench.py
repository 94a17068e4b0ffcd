"""SpecDecode-Bench acceptance lengths: real H100 runs with a length at every output position (arXiv 2601.11580)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import polars as pl

from avsim.errors import InputError
from avsim.sources.card import TraceCard
from avsim.sources.importers.base import Imported, Importer
from avsim.sources.parquet import reading

__all__ = ["SpecDecodeBench"]

NUM_SLOTS = 20


@dataclass(frozen=True)
class SpecDecodeBench(Importer):
    """Imports the acceptance lengths of one drafter from one .jsonl file; there are no features.

    `acc_len[i]` tokens, the bonus included, would be emitted by a step whose last token already emitted is i; so the
    block at position i accepts `acc_len[i] − 1` of 20. Every entry is kept, the one at the last output token too
    (`past_end_blocks`), though no request goes on from there. Only lengths count: the token lists of the file are
    longer or shorter than `acc_len` in many rows.
    """

    name: ClassVar[str] = "specdecode-bench"
    reads: ClassVar[str] = "a .jsonl file of SpecDecode-Bench"
    positional: ClassVar[str] = "drafter"

    drafter: Literal["eagle", "ngram"] = "eagle"

    def read(self, source: Path) -> Imported:
        prompts: list[int] = []
        lengths: list[list[int]] = []
        with reading(source), source.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                prompt_len, accepted = self._parse(line, f"{source} line {number}")
                prompts.append(prompt_len)
                lengths.append(accepted)
        if not lengths:
            raise InputError(f"{source}: no requests; this importer reads {self.reads}")
        requests = pl.DataFrame({"prompt_len": prompts, "output_len": [len(row) for row in lengths]}).select(
            pl.int_range(pl.len()).alias("request"),
            pl.int_range(pl.len()).alias("source"),
            "prompt_len",
            "output_len",
            pl.lit(0.0).alias("temperature"),
            pl.lit(source.stem).alias("category"),
        )
        blocks = (
            pl.DataFrame({"request": range(len(lengths)), "num_accepted": lengths})
            .with_columns(pl.int_ranges(pl.col("num_accepted").list.len()).alias("position"))
            .explode("num_accepted", "position")
            .with_columns(
                pl.lit(NUM_SLOTS).alias("num_drafted"),
                pl.lit(NUM_SLOTS).alias("num_admitted"),
                pl.col("num_accepted") - 1,
            )
        )
        return Imported(self._card(source.stem), requests, [blocks])

    def _parse(self, line: str, where: str) -> tuple[int, list[int]]:
        try:
            row = json.loads(line)
            lengths = row[f"acc_{self.drafter}"]["acc_len"]
            prompt_len = len(row["prompt_token_ids"])
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not valid JSON ({error.msg}); this importer reads {self.reads}") from None
        except (KeyError, TypeError):
            raise InputError(
                f"{where}: it needs prompt_token_ids and acc_{self.drafter}.acc_len; this importer reads {self.reads}"
            ) from None
        good = isinstance(lengths, list) and lengths and all(type(value) is int for value in lengths)
        if not good or not (min(lengths) >= 1 and max(lengths) <= NUM_SLOTS + 1):
            raise InputError(f"{where}: acc_len must be a list of whole numbers from 1 to {NUM_SLOTS + 1}")
        return prompt_len, lengths

    def _card(self, dataset: str) -> TraceCard:
        return TraceCard(
            name=f"specdecode-bench-{dataset}-{self.drafter}",
            kind="dense",
            target="Llama-3.1-8B-Instruct",
            drafter="EAGLE" if self.drafter == "eagle" else "n-gram",
            drafter_kind=self.drafter,
            num_speculative_tokens=NUM_SLOTS,
            draft_sampling="greedy",
            acceptance_rule="greedy-match",
            temperature=0.0,
            engine="vLLM",
            hardware="1×H100",
            vocab_size=128256,
            prompts=dataset,
            licence="none stated by its authors: for private tests and experiments, not to be copied or shipped",
            complete_blocks=True,
            past_end_blocks=True,
            notes="Acceptance lengths only, no features. Lengths run past the end near the end of an output.",
        )
