"""Speed of the kernels on a CUDA GPU, each beside vLLM's own and plain PyTorch in the same run: `make bench-gpu`.

    python -m tests.perf.bench_gpu --out gpu.csv        # --minutes bounds it; --dry-run runs every case once, untimed

Every case is captured in a CUDA graph that goes round several sets of inputs, together larger than the L2 cache, and
is replayed; a time is the median over replays, divided by the calls in the graph. The yardstick is a copy of as many
bytes as the logits have, taken in the same way: `share_of_copy` is what a kernel would need at the copy's bandwidth if
it read the logits once, over what it needed. Host time between launches is not in these times.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from avsim import estimators
from avsim.costs.base import CostTables
from avsim.kernels import device_estimator
from tests.live import vllm_reference

VOCABS = (32_000, 128_256, 151_936, 262_144)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
REQS = (1, 8, 64, 256, 1024)
SLOTS = (3, 7, 16)
LEARNERS = (
    "online-logistic:feature=log_odds_f32,sums=float32",
    "bayes-logistic",
    "request-adaptive",
    "multi-logistic",
    "isotonic",
    "beta-bernoulli",
)
PREDICTORS = ("online-logistic:feature=log_odds_f32,sums=float32", "bayes-logistic", "multi-logistic", "isotonic")
COLUMNS = ("operation", "implementation", "dtype", "vocab", "rows", "K", "us", "p10_us", "p90_us", "share_of_copy")
_L2_BYTES = 128 << 20  # more than the L2 of any GPU that is sold; each case rotates over at least this much
_MOST_BYTES = 24 << 30


@dataclass
class Bench:
    """Collects rows of the table, within a time limit."""

    device: torch.device
    ends: float
    dry: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0

    def measure(self, calls: list[Callable[[], object]], **facts: Any) -> float | None:
        """Time calls that do the same on different inputs; return the median, µs, of one."""
        if time.monotonic() > self.ends:
            self.skipped += 1
            return None
        if self.dry:
            calls[0]()
            self.rows.append(facts)
            return None
        try:
            times = graph_times_us(calls)
        except torch.cuda.OutOfMemoryError:
            self.skipped += 1
            return None
        low, high = np.percentile(times, [10, 90])
        middle = statistics.median(times)
        self.rows.append(facts | {"us": middle, "p10_us": float(low), "p90_us": float(high)})
        return middle


def graph_times_us(calls: list[Callable[[], object]], replays: int = 30) -> list[float]:
    """Return the time of one call in each replay of a graph that holds all of them, µs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:  # compiles, and allocates what is allocated once
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        repeats = max(1, 24 // len(calls))
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                for call in calls:
                    call()
        for _ in range(3):
            graph.replay()
        times = []
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / (repeats * len(calls)))
    return times


def logit_sets(rows: int, vocab: int, dtype: torch.dtype, device: torch.device, dry: bool) -> list[torch.Tensor]:
    """Return logits `[rows, vocab]` several times over, together beyond the L2 cache."""
    size = rows * vocab * torch.finfo(dtype).bits // 8
    sets = 1 if dry else min(max(2, -(-_L2_BYTES // size)), 24)
    generator = torch.Generator(device).manual_seed(0)
    return [
        (3 * torch.randn(rows, vocab, generator=generator, device=device, dtype=torch.float32)).to(dtype)
        for _ in range(sets)
    ]


def bench_predict(bench: Bench, vocabs: tuple[int, ...], rows_of: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Logits to confidence."""
    for dtype, vocab, rows in ((d, v, r) for d in dtypes for v in vocabs for r in rows_of):
        if 4 * rows * vocab * torch.finfo(getattr(torch, dtype)).bits // 8 > _MOST_BYTES:
            bench.skipped += 1
            continue
        sets = logit_sets(rows, vocab, getattr(torch, dtype), bench.device, bench.dry)
        facts = {"operation": "logits to confidence", "dtype": dtype, "vocab": vocab, "rows": rows, "K": 1}
        targets = [torch.empty_like(logits) for logits in sets]
        pairs = zip(targets, sets, strict=True)
        copies = [lambda to=to, of=of: to.copy_(of) for to, of in pairs]
        copy_us = bench.measure(copies, **facts | {"operation": "copy", "implementation": "torch"})
        del targets, copies
        # A copy reads and writes; one reading of the logits moves half of that.
        once_us = None if copy_us is None else copy_us / 2
        for name, predict in predictors(rows, bench.device):
            took = bench.measure([lambda of=of, p=predict: p(of) for of in sets], **facts | {"implementation": name})
            if took and once_us:
                bench.rows[-1]["share_of_copy"] = once_us / took
        del sets
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def predictors(rows: int, device: torch.device) -> Iterator[tuple[str, Callable[[torch.Tensor], object]]]:
    """Yield each implementation as a function of logits `[rows, vocab]`."""
    slots = torch.arange(rows, dtype=torch.int32, device=device)
    step, temperature = torch.zeros((), dtype=torch.int64, device=device), torch.ones(rows, device=device)
    out = torch.empty(rows, 1, device=device)
    theirs = vllm_reference.OnlineAcceptanceEstimator(rows, 1, device)
    yield "vLLM", lambda logits: theirs.predict(logits, slots, step, out, temperature)
    for spec in PREDICTORS:
        ours = device_estimator(estimators.make(spec), rows, 1, device)
        yield f"avsim {spec.partition(':')[0]}", lambda logits, e=ours: e.predict(logits, slots, step, out, temperature)

    def plain(logits: torch.Tensor) -> torch.Tensor:
        z = logits.float()
        top = z.max(dim=1, keepdim=True).values
        odds = -((z - top).exp().sum(dim=1) - 1).clamp(min=0).log()
        return torch.sigmoid(0.5 * odds.clamp(-40, 40) - 0.2, out=out[:, 0])

    yield "torch", plain


def bench_step(bench: Bench, reqs_of: tuple[int, ...], slots_of: tuple[int, ...]) -> None:
    """Verdicts to statistics, and the refit, as one engine step runs them."""
    for num_slots, reqs in ((k, r) for k in slots_of for r in reqs_of):
        mapping = torch.arange(reqs, dtype=torch.int32, device=bench.device)
        accepted = torch.randint(0, num_slots + 1, (reqs,), device=bench.device, dtype=torch.int32)
        rejected = torch.minimum(num_slots - accepted, torch.ones_like(accepted))
        facts = {"vocab": "", "rows": reqs, "K": num_slots, "dtype": ""}
        for name, made in learners(reqs, num_slots, bench.device):
            made.features.normal_(1.0, 2.0)
            made.predictions.uniform_(0.1, 0.9)
            step = partial(made.step, mapping, accepted + 1, rejected)
            bench.measure([step], **facts | {"operation": "accumulate", "implementation": name})
            if hasattr(made, "estimator"):
                bench.measure([made._refit], **facts | {"operation": "refit", "implementation": name})


def learners(reqs: int, num_slots: int, device: torch.device) -> Iterator[tuple[str, Any]]:
    """Yield vLLM's estimator and avsim's, such that a timed step never refits."""
    theirs = vllm_reference.OnlineAcceptanceEstimator(reqs, num_slots, device)
    theirs.REFIT_INTERVAL = 1 << 30
    yield "vLLM", theirs
    for spec in LEARNERS:
        joint = "," if ":" in spec else ":"
        ours = device_estimator(estimators.make(f"{spec}{joint}refit_interval={1 << 30}"), reqs, num_slots, device)
        yield f"avsim {spec.partition(':')[0]}", ours


def bench_budget(bench: Bench, reqs_of: tuple[int, ...], slots_of: tuple[int, ...]) -> None:
    """Live survivals to admitted counts, at half of all drafts; and what sizes the budget."""
    for num_slots, reqs in ((k, r) for k in slots_of for r in reqs_of):
        confidence = torch.rand(reqs, num_slots, device=bench.device)
        mapping = torch.arange(reqs, dtype=torch.int32, device=bench.device)
        full = torch.full((reqs,), num_slots, dtype=torch.int32, device=bench.device)
        capacities, budget = full.clone(), max(1, reqs * num_slots // 2)
        ours = allocator(reqs, num_slots, bench.device)
        theirs = vllm_reference.assign_draft_token_budget
        facts = {"operation": "allocate", "vocab": "", "rows": reqs, "K": num_slots, "dtype": ""}
        implementations = (
            ("avsim", partial(ours.allocate, confidence, mapping, capacities, budget)),
            ("vLLM, not compiled", partial(theirs, confidence, mapping, capacities, budget, num_slots)),
        )
        for name, spend in implementations:
            call = partial(spend_anew, spend, capacities, full)
            bench.measure([call], **facts | {"implementation": name})
        sizing = partial(ours.size, confidence, mapping, full, (reqs, reqs, reqs))
        bench.measure([sizing], **facts | {"operation": "size", "implementation": "avsim"})


def bench_whole(bench: Bench, vocab: int, reqs_of: tuple[int, ...], num_slots: int) -> None:
    """All that adaptive verification does on the device in one step: learn, K predictions, allocate."""
    for reqs in reqs_of:
        sets = logit_sets(reqs, vocab, torch.bfloat16, bench.device, bench.dry)
        facts = {"operation": "whole step", "dtype": "bfloat16", "vocab": vocab, "rows": reqs, "K": num_slots}
        for name, estimator in learners(reqs, num_slots, bench.device):
            bench.measure([WholeStep(estimator, name == "vLLM", sets, num_slots)], **facts | {"implementation": name})


def allocator(reqs: int, num_slots: int, device: torch.device) -> Any:
    """Return avsim's budget on the device, with costs that rise evenly."""
    from avsim.kernels.device.budget import DeviceBudget  # imports Triton, which `vllm_reference` has to set up first

    verify = np.linspace(5.0, 30.0, reqs * (num_slots + 1) + 1)
    tables = CostTables(np.linspace(1.0, 2.0, reqs + 1), verify)
    return DeviceBudget(reqs, num_slots, tables, 1 << 20, device, draft_sampling="probabilistic")


class WholeStep:
    """One step of adaptive verification with every request drafting K tokens, half of which are admitted."""

    def __init__(self, estimator: Any, theirs: bool, sets: list[torch.Tensor], num_slots: int) -> None:
        device, reqs = sets[0].device, len(sets[0])
        self.estimator, self.sets, self.num_slots = estimator, sets, num_slots
        self.mapping = torch.arange(reqs, dtype=torch.int32, device=device)
        self.slots = torch.arange(num_slots, device=device)
        self.temperature, self.confidence = torch.ones(reqs, device=device), torch.empty(reqs, num_slots, device=device)
        self.sampled = torch.full_like(self.mapping, 2)
        self.rejected, self.full = torch.ones_like(self.mapping), torch.full_like(self.mapping, num_slots)
        self.capacities = self.full.clone()
        budget = max(1, reqs * num_slots // 2)
        allocate = vllm_reference.assign_draft_token_budget if theirs else allocator(reqs, num_slots, device).allocate
        last = (budget, num_slots) if theirs else (budget,)
        self.allocate = partial(allocate, self.confidence, self.mapping, self.capacities, *last)

    def __call__(self) -> None:
        self.estimator.step(self.mapping, self.sampled, self.rejected)
        for slot in range(self.num_slots):
            logits = self.sets[slot % len(self.sets)]
            self.estimator.predict(logits, self.mapping, self.slots[slot], self.confidence, self.temperature)
        spend_anew(self.allocate, self.capacities, self.full)


def spend_anew(spend: Callable[[], object], capacities: Any, full: Any) -> None:
    """Allocate from full capacities, which an allocation overwrites."""
    capacities.copy_(full)
    spend()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="gpu.csv")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--dry-run", action="store_true", help="every case once at small sizes, without a time")
    given = parser.parse_args(words)
    if not torch.cuda.is_available() and not given.dry_run:
        print("no CUDA device: nothing can be measured (--dry-run runs the cases on a CPU)", file=sys.stderr)
        return 2
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = Bench(device, time.monotonic() + 60 * given.minutes, given.dry_run)
    small = given.dry_run
    bench_budget(bench, (1, 3) if small else REQS, (3,) if small else SLOTS)
    bench_step(bench, (1, 3) if small else REQS, (3,) if small else SLOTS)
    bench_whole(bench, 100 if small else 128_256, (3,) if small else (1, 8, 64, 256), 3 if small else 7)
    for dtypes in (("bfloat16",), ("float32",)):
        bench_predict(bench, (100, 5_000) if small else VOCABS, (1, 3) if small else ROWS, dtypes)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, not timed"
    date = datetime.date.today().isoformat()
    with open(given.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("gpu", "date", "torch", *COLUMNS), restval="")
        writer.writeheader()
        writer.writerows({"gpu": gpu, "date": date, "torch": torch.__version__} | row for row in bench.rows)
    print(f"{len(bench.rows)} cases on {gpu} → {given.out}; {bench.skipped} left out for time or memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
