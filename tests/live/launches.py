"""Count the specialisations that launches ask for, without a GPU: nothing is compiled or run.

    python tests/live/launches.py SCENARIO…        # {kernel: how many}, as JSON

A scenario is an estimator's name, `budget`, or `deployed:NAME`, which counts only what was not run before serving.

A kernel that is specialised anew for another number of requests would be compiled while an engine serves.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import ModuleType
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

from avsim import estimators
from avsim.costs import CostTables
from avsim.kernels import device_estimator

ASKED: dict[str, set[str]] = defaultdict(set)
BATCHES = (1, 2, 3, 15, 16, 17, 31, 32, 48, 64)
R, K = 64, 5


def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Stand in for `JITFunction.run`: bind as a launch does, and note what would be looked up in the cache."""
    binder = jit.create_function_from_signature(self.signature, self.params, make_backend(GPUTarget("cuda", 90, 32)))
    _, specialisation, options = binder(*args, **kwargs)
    ASKED[self.fn.__name__].add(repr((specialisation, sorted(options.items()))))


def ints(count: int, offset: int) -> torch.Tensor:
    """A slice of a larger tensor, so that its address has any alignment."""
    return torch.zeros(count + 8, dtype=torch.int32)[offset : offset + count]


def learn(name: str) -> None:
    kernels = device_estimator(estimators.make(f"{name}:refit_interval=2"), R, K, torch.device("cpu"))
    for offset, batch in enumerate(BATCHES):
        kernels.step(*(ints(batch, offset % 8) for _ in range(3)))


def budget() -> None:
    from avsim.kernels.device.budget import DeviceBudget

    tables = CostTables(np.ones(R + 1), np.ones(R * (K + 2)))
    made = DeviceBudget(R, K, tables, 1 << 30, torch.device("cpu"), draft_sampling="probabilistic")
    confidence = torch.ones(R, K)
    for offset, batch in enumerate(BATCHES):
        rows = (confidence, ints(batch, offset % 8), ints(batch, (offset + 1) % 8))
        made.allocate(*rows)
        made.allocate(*rows, batch)
        made.size(*rows, (batch, batch, batch))
        made.first_fall(*rows, (batch, batch, 16 * batch))
        made.size(*rows, ints(3, offset % 8))


def deployed(name: str) -> None:
    """Leave only what an engine asks for beyond what was run before it serves."""
    from avsim.deploy import allocation, trial
    from avsim.deploy.ledger import Ledger

    most, vocab = 256, 32_000
    estimator = estimators.make(f"{name}:refit_interval=2")
    kernels = device_estimator(estimator, most, K, torch.device("cpu"))
    trial._compare = lambda *given: None  # nothing runs here, so nothing can be right
    trial.try_out(kernels, estimator, estimator.start(K), vocab, torch.bfloat16)
    ledger = Ledger({"avsim": kernels.predictions}, 100)
    adaptive = ModuleType("adaptive")
    setattr(adaptive, allocation.FUNCTION, None)
    allocation.put_in(adaptive, lambda: True, kernels.predictions)
    before = {kernel: set(found) for kernel, found in ASKED.items()}
    confidence, temperature = torch.zeros(most, K), torch.zeros(most)
    for offset, batch in enumerate((*BATCHES, 255, most)):
        slots = torch.zeros(batch + 8, dtype=torch.int64)[offset % 8 :][:batch]
        logits = torch.zeros((1, vocab), dtype=torch.bfloat16).expand(batch * K, vocab)
        kernels.predict(logits[:batch], slots, torch.tensor(1), confidence, temperature)
        steps = torch.arange(K, dtype=torch.int32).repeat(batch)
        kernels.predict(logits, slots.repeat_interleave(K), steps, confidence, temperature)
        ledger.grade(slots, ints(batch, offset % 8), ints(batch, (offset + 3) % 8))
        kernels.step(slots, ints(batch, offset % 8), ints(batch, (offset + 3) % 8))
        getattr(adaptive, allocation.FUNCTION)(confidence, slots, ints(batch, offset % 8), batch, K)
    for kernel, found in ASKED.items():
        found -= before.get(kernel, set())


if __name__ == "__main__":
    jit.JITFunction.run = note
    for scenario in sys.argv[1:]:
        if scenario.startswith("deployed:"):
            deployed(scenario.removeprefix("deployed:"))
        else:
            budget() if scenario == "budget" else learn(scenario)
    print(json.dumps({name: len(found) for name, found in ASKED.items()}))
