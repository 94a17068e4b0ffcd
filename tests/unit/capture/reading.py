"""A trace as the tuples in which the scripted engine keeps its truth."""

from __future__ import annotations

import numpy as np
import polars as pl


def expected(script):
    """Blocks by (step, request) and requests that a trace of the script must hold."""
    blocks, requests = {}, {}
    for request in script.requests:
        emitted = max((block[2] + block[5] + 2 for block in request.blocks), default=0)
        output_len, aborted = script.ended.get(request.number, (emitted, True))
        fit = [block for block in request.blocks if block[2] <= output_len - 2]
        if fit or not aborted:
            requests[request.number] = (output_len, *request.values.values())
            blocks |= {block[:2]: block[2:] for block in fit}
    return blocks, requests


def found(trace):
    """The same from a trace, read without avsim's own reader."""
    table = pl.concat([pl.read_parquet(path) for path in sorted(trace.path.glob("blocks-*.parquet"))])
    width = trace.card.num_speculative_tokens
    blocks = {}
    for row in table.iter_rows(named=True):
        features = {
            name: np.array([row[f"{name}_{slot}"] for slot in range(width)], dtype=np.float32)
            for name in trace.features
        }
        names = ("position", "num_drafted", "num_admitted", "num_accepted")
        blocks[row["step"], row["request"]] = (*(row[name] for name in names), row.get("mask"), features)
    assert len(blocks) == table.height
    names = ("output_len", "prompt_len", "temperature", "top_p", "category", "arrival_s")
    requests = {row["request"]: tuple(row[name] for name in names) for row in trace.requests.iter_rows(named=True)}
    return blocks, requests


def assert_same(trace, script):
    """The trace holds exactly the blocks and requests of the script, bit for bit in every drafted slot."""
    (blocks, requests), (want_blocks, want_requests) = found(trace), expected(script)
    assert requests == want_requests
    assert blocks.keys() == want_blocks.keys()
    for at, (*counts, features) in want_blocks.items():
        assert list(blocks[at][:-1]) == counts
        drafted = counts[1]
        for name, values in features.items():
            assert np.array_equal(blocks[at][-1][name][:drafted], values[:drafted])
            assert np.isnan(blocks[at][-1][name][drafted:]).all()
