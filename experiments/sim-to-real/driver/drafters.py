"""The two drafters. Both map [embedding of token j + 1 ; hidden state j] to an estimate of hidden state j + 1.

`eagle` takes the map's result through one decoder layer with a key-value cache of its own, as vLLM's EAGLE does: its
first pass runs over all rows that the target has just verified, rejected ones too, and overwrites what earlier drafts
left in its cache. `linear` is the map alone: no cache, so it reads one row per request and a skipped step costs
nothing. The target's head, cut to the tokens that are drafted at all, gives the logits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .layers import project
from .model import Cache, Decoder, Rows, Target, read_weights
from .tiles import pack


@dataclass(eq=False)
class Drafter:
    """A drafter of either kind.

    Attributes:
        mapping: the packed map `[2 · width → width]`.
        layer: the decoder layer; None for `linear`.
        vocab: token id of each logit, int64 `[V']`; head: the target's, for these tokens, packed.
    """

    name: str
    mapping: np.ndarray
    layer: Decoder | None
    vocab: np.ndarray
    head: np.ndarray
    embedding: np.ndarray

    @classmethod
    def load(cls, folder: Path, target: Target) -> Drafter:
        """Load a folder that `pack_drafters.py` wrote."""
        kind = json.loads((folder / "card.json").read_text())["kind"]
        weights = read_weights(folder / "model.safetensors")
        vocab = weights["draft_vocab"].astype(np.int64)
        layer = None
        if kind == "eagle":
            config = json.loads((folder / "config.json").read_text())
            layer = Decoder.of(weights, "", config, len(target.decoder.cos))
        head = pack(target.embedding[vocab])
        return cls(folder.name, pack(weights["fc.weight"]), layer, vocab, head, target.embedding)

    @property
    def reads_all_rows(self) -> bool:
        """Whether the first pass must see every row that the target verified, drafting or not."""
        return self.layer is not None

    def cache(self, num_slots: int) -> Cache | None:
        """Return an empty cache, if it needs one."""
        return None if self.layer is None else self.layer.cache(num_slots)

    def run(self, tokens: Rows, hidden: np.ndarray, slot: Rows, position: Rows, cache: Cache | None) -> np.ndarray:
        """Return the estimates `[n, width]` of rows: the tokens behind positions, and the hidden states at them."""
        x = project(np.concatenate([self.embedding[tokens], hidden], axis=1), self.mapping)
        return x if self.layer is None or cache is None else self.layer.run(x, slot, position, cache)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Return logits `[n, V']` over `vocab`."""
        return project(x, self.head)
