"""Walks a dense trace and compares it, block by block, with an on-policy trace of the same prompts.

python experiments/captures/compare.py traces/smollm2-eagle-greedy traces/smollm2-eagle-live
"""

from __future__ import annotations

import sys

import numpy as np

from avsim.sources import open_trace


def main(dense_path: str, live_path: str) -> None:
    dense, live = open_trace(dense_path), open_trace(live_path)
    features = tuple({"log_odds"} & {*dense.card.recorded} & {*live.card.recorded})
    truth, seen = dense.blocks(features), live.blocks(features)
    row_of = {pair: row for row, pair in enumerate(zip(truth.request.tolist(), truth.position.tolist(), strict=True))}
    of_live = dict(zip(live.requests["request"], live.requests["output_len"], strict=True))
    of_dense = dict(zip(dense.requests["request"], dense.requests["output_len"], strict=True))
    total = equal = diverged = 0
    apart: list[float] = []
    for request in live.requests["request"].to_list():
        rows = np.flatnonzero(np.asarray(seen.request) == request)
        good = of_live[request] == of_dense[request]
        for row in rows:
            match = row_of.get((request, int(seen.position[row])))
            admitted = int(seen.num_admitted[row])
            accepted = None if match is None else min(int(truth.num_accepted[match]), admitted)
            if accepted != int(seen.num_accepted[row]):
                good = False
                break
            total += 1
            if admitted and features:
                apart.append(abs(float(seen.features["log_odds"][0][row] - truth.features["log_odds"][0][match])))
        equal += good
        diverged += not good
    print(f"{equal} of {equal + diverged} requests are the same block by block ({total} blocks compared equal)")
    if apart:
        print(f"log-odds of slot 0 differ by {np.median(apart):.1e} (median), {np.max(apart):.1e} (largest)")


if __name__ == "__main__":
    main(*sys.argv[1:])
