"""Prints two tables of README.md: what the cut vocabulary accepts, and what products of few rows take.

    python experiments/sim-to-real/figures.py --target TARGET --eagle DRAFTERS/eagle --held-out DRAFTERS/held-out

Needs torch and numba; threads are those of `OMP_NUM_THREADS` and `NUMBA_NUM_THREADS`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from driver.tiles import linear, pack
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))

from common import load_head, load_sequences
from train_eagle import states

HERE = Path(__file__).parent
ROWS = (1, 2, 3, 4, 6, 8, 32, 96)
SHAPES = ((576, 576), (1536, 576), (576, 1536))  # of this target's attention and feed-forward


@torch.no_grad()
def acceptance(target: Path, eagle: Path, held_out: Path) -> list[str]:
    """Greedy acceptance in slot 0 at every output position, with the whole head and with the drafters' part of it."""
    embedding, sequences = load_head(target), load_sequences(held_out, "cpu")
    weights = {name: value.float() for name, value in load_file(eagle / "model.safetensors").items()}
    vocab = load_file(HERE / "drafters/eagle/model.safetensors")["draft_vocab"].long()
    counts = {"whole": [0, 0], f"{len(vocab):,} tokens": [0, 0]}
    for s in sequences:
        _, x = next(states(weights, s, embedding, s.prompt_len - 1))
        truth = s.tokens[s.prompt_len + 1 :]
        logits = x[: len(truth)] @ embedding.T
        for count, best in zip(counts.values(), (logits.argmax(1), vocab[logits[:, vocab].argmax(1)]), strict=True):
            count[0] += int((best == truth).sum())
            count[1] += len(truth)
    lines = ["| head | accepted in slot 0 |", "|---|---|"]
    return lines + [f"| {name} | {a / n:.3f} ({a:,} of {n:,}) |" for name, (a, n) in counts.items()]


def products() -> list[str]:
    """Times of the products of some rows with 30 layers of weights, as ratios to one row; medians of 15."""
    rng = np.random.default_rng(0)
    wide = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES for _ in range(30)]
    panels, plain = [pack(weight) for weight in wide], [torch.from_numpy(weight) for weight in wide]
    found: dict[str, list[float]] = {"torch": [], "driver": []}
    for rows in ROWS:
        inputs = {depth: rng.standard_normal((rows, depth)).astype(np.float32) for depth in (576, 1536)}
        outputs = {out: np.empty((rows, out), dtype=np.float32) for out in (576, 1536)}

        def by_torch(inputs: dict[int, np.ndarray] = inputs) -> None:
            for weight in plain:
                torch.nn.functional.linear(torch.from_numpy(inputs[weight.shape[1]]), weight)

        def by_driver(x: dict[int, np.ndarray] = inputs, y: dict[int, np.ndarray] = outputs, rows: int = rows) -> None:
            for panel in panels:
                linear(x[panel.shape[1]], panel, y[panel.shape[0] * panel.shape[2]], rows)

        found["torch"].append(median_ms(by_torch))
        found["driver"].append(median_ms(by_driver))
    lines = ["| rows | " + " | ".join(map(str, ROWS)) + " |", "|---" * (len(ROWS) + 1) + "|"]
    names = {"torch": "PyTorch (MKL)", "driver": "the driver's tiles"}
    for key, times in found.items():
        lines.append(f"| {names[key]} | " + " | ".join(f"{ms / times[0]:.2f}" for ms in times) + " |")
    return [*lines, "", f"One row: {found['driver'][0] / found['torch'][0]:.2f} of PyTorch's time in the driver."]


def median_ms(work: Callable[[], None]) -> float:
    work()
    times = []
    for _ in range(15):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "eagle", "held-out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print("\n".join([*acceptance(args.target, args.eagle, args.held_out), "", *products()]))


if __name__ == "__main__":
    main()
