"""All tensor-parallel ranks put avsim's estimator in, or none does: ranks that trim differently would hang.

Ranks write what they propose into the store of torch's process group, and whoever has seen all of it, or has waited
long enough, writes the verdict by compare-and-set: the first one counts, for everybody. A collective would not do: a
rank on which avsim is not switched on would never join it, and the others would wait for good.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

__all__ = ["WAIT_S", "agree"]

WAIT_S = 300.0
"""How long ranks may load a model one after the other."""
_YES = "yes"
_POLL_S = 0.05


def agree(
    store: Any, rank: int, ranks: Sequence[int], proposal: str, refusal: str | None, wait_s: float = WAIT_S
) -> str | None:
    """Return why no rank deploys, None if all do; the same on every rank.

    Args:
        store: of `torch.distributed`, shared by the ranks.
        rank: this one.
        ranks: of the tensor-parallel group.
        proposal: what this rank would deploy; all must propose the same.
        refusal: why this rank cannot, None if it can.
        wait_s: for the others.
    """
    if len(ranks) == 1:
        return refusal
    group = "-".join(map(str, ranks))
    # The same number on all ranks, as all of them load the same models in the same order.
    number = store.add(f"avsim-deploy/{group}/count/{rank}", 1)
    prefix = f"avsim-deploy/{group}/{number}"
    mine = f"no: rank {rank}: {refusal}" if refusal is not None else f"deploy: {proposal}"
    store.set(f"{prefix}/{rank}", mine)
    verdict = mine if refusal is not None else _verdict(store, prefix, ranks, wait_s)
    decided = store.compare_set(f"{prefix}/verdict", "", verdict).decode()
    return None if decided == _YES else decided.removeprefix("no: ")


def _verdict(store: Any, prefix: str, ranks: Sequence[int], wait_s: float) -> str:
    """Wait for all proposals and return what follows from them."""
    found, deadline = [], time.monotonic() + wait_s
    for rank in ranks:
        key = f"{prefix}/{rank}"
        while not store.check([key]):
            if time.monotonic() > deadline:
                return f"no: rank {rank} has not said which bundle it has; is AVSIM_DEPLOY set for all workers?"
            time.sleep(_POLL_S)
        proposal = store.get(key).decode()
        if proposal.startswith("no: "):
            return str(proposal)
        found.append(proposal)
    if len(set(found)) > 1:
        return f"no: ranks {ranks[0]} to {ranks[-1]} have different bundles: {', '.join(sorted(set(found)))}"
    return _YES
