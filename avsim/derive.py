"""An on-policy trace from a dense one: what an engine would have recorded while serving it under a policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from avsim import registry
from avsim.costs.linear import step_counter
from avsim.errors import InputError
from avsim.metrics.savings import flatten_log
from avsim.policies import FixedDepth
from avsim.simulate import Arm, simulate
from avsim.sources import Trace, write_trace
from avsim.sources.schema import slot_column
from avsim.workload import Pool, request_sequences

__all__ = ["derive_on_policy"]


def derive_on_policy(
    trace: Trace, path: str | Path, policy: FixedDepth, concurrency: int, *, seed: int = 0, overwrite: bool = False
) -> Trace:
    """Walk a dense trace in a closed loop, each request once, and write the blocks that were visited.

    Only for fixed depths: they need no step costs, so the walk depends on the verdicts alone. The card says derived,
    and keeps the dense trace's name and hash.

    Raises:
        InputError: the trace is not dense, or the folder cannot be written.
    """
    if concurrency < 1:
        raise InputError(f"concurrency must be at least 1, not {concurrency}")
    num_slots = policy.depth(trace.card.num_speculative_tokens)
    pool = Pool.from_trace(trace)
    order = request_sequences([np.arange(len(pool.start))], 1, [[seed]])
    log = simulate(pool, Arm(policy), order, concurrency, step_counter(), log=True).log
    assert log is not None
    walk = flatten_log(log)
    step = np.repeat(np.arange(len(walk.ms)), walk.num_reqs)
    rows, admitted = walk.rows[walk.active], walk.admitted[walk.active]
    blocks = trace.blocks(trace.features)
    recorded = np.minimum(blocks.num_drafted[rows], num_slots)
    verified = np.minimum(admitted, recorded)
    columns: dict[str, np.ndarray] = {
        "step": step,
        "request": trace.requests["request"].to_numpy()[blocks.request[rows]],
        "position": blocks.position[rows],
        "num_drafted": recorded,
        "num_admitted": verified,
        "num_accepted": np.minimum(blocks.num_accepted[rows], verified),
    }
    for name in trace.features:
        for slot in range(num_slots):
            columns[slot_column(name, slot)] = blocks.features[name][slot, rows]
    frame = pl.DataFrame(columns).with_columns(pl.col(pl.Float32).fill_nan(None))
    steps = pl.DataFrame({"step": np.arange(len(walk.ms)), "num_reqs": walk.num_reqs}).with_columns(
        num_target_tokens=pl.Series(walk.num_reqs + np.bincount(step, verified, len(walk.ms)).astype(np.int64)),
        num_prefill_tokens=pl.lit(0, dtype=pl.Int64),
    )
    card = replace(
        trace.card,
        name=f"{trace.card.name}-{registry.format_spec(policy).replace(':', '')}-c{concurrency}",
        kind="on-policy",
        num_speculative_tokens=num_slots,
        engine="avsim closed loop",
        engine_version=None,
        seed=seed,
        derived_from=f"{trace.card.name} ({trace.card.content_hash[:15]}…), walked with "
        f"{registry.format_spec(policy)} at {concurrency} requests by avsim's closed loop; no engine ran it",
    )
    return write_trace(path, card, trace.requests, [frame], steps=steps, overwrite=overwrite)
