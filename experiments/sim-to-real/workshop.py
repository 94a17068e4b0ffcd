"""What the steps share: models, prompts as tokens, the calibration pool, and the folder of a run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numba
import settings
import torch  # its OpenMP must not be initialised after numba's
from driver.drafters import Drafter
from driver.model import Target
from driver.prompts import Prompts

from avsim.capture.dense.prompts import read_prompts
from avsim.sources import open_trace
from avsim.workload import Pool

HERE = Path(__file__).parent
LONGEST_PROMPT = 224
FEATURES = ("log_odds", "entropy", "margin")


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"sim-to-real: {text}", file=sys.stderr, flush=True)


@dataclass(eq=False)
class Workshop:
    """A run's folder and everything that is loaded for it, when it is first needed."""

    setup: settings.Settings
    models: Path
    out: Path
    clock_name: str = "wall"

    @property
    def clock(self) -> Callable[[], float]:
        """What steps are timed with: the wall clock, or this thread's processor time where others use the machine."""
        return time.perf_counter if self.clock_name == "wall" else time.thread_time

    @cached_property
    def target(self) -> Target:
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        numba.set_num_threads(threads)
        torch.set_num_threads(threads)
        room = LONGEST_PROMPT + self.setup.max_tokens + 2 * (self.setup.num_slots + 1)
        return Target.load(self.models / "target", room)

    @cached_property
    def drafters(self) -> dict[str, Drafter]:
        return {name: Drafter.load(HERE / "drafters" / name, self.target) for name in self.setup.drafters}

    @cached_property
    def prompts(self) -> Prompts:
        """The prompts to be measured, in the target's chat format."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.models / "target", local_files_only=True)
        found = []
        for prompt in read_prompts([HERE / "prompts" / "measured.jsonl"])[0]:
            chat = [{"role": "user", "content": prompt.text}]
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            found.append([int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]])
        longest = max(map(len, found))
        if longest > LONGEST_PROMPT:
            raise SystemExit(f"a prompt of {longest} tokens; caches are made for {LONGEST_PROMPT}")
        return Prompts(self.target, found)

    def trace(self, drafter: str, temperature: float) -> Path:
        return self.out / "traces" / settings.condition_name(drafter, temperature)

    def cost_file(self, drafter: str, temperature: float) -> Path:
        return self.out / "costs" / f"{settings.condition_name(drafter, temperature)}.json"

    def pool(self, drafter: str, temperature: float, num_slots: int | None = None) -> Pool:
        """Return the calibration trace as the simulator's pool, cut to some slots."""
        return Pool.from_trace(open_trace(self.trace(drafter, temperature)), FEATURES, num_slots=num_slots)

    @property
    def predictions_file(self) -> Path:
        return self.out / "predictions.json"

    @property
    def blocks(self) -> list[Path]:
        """The measured blocks so far."""
        return sorted((self.out / "measured").glob("*.json"))


def kv_tokens_per_req(pool: Pool) -> float:
    """Return the context at which tables are made: the pool's mean, half of the output generated."""
    return float((pool.prompt_len + pool.output_len / 2).mean())


def describe_machine() -> dict[str, object]:
    """Return what the numbers depend on."""
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    model = next(
        (line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "unknown processor"
    )
    return {
        "processor": model, "cores": os.cpu_count(), "python": sys.version.split()[0], "numba": numba.__version__,
        "environment": {name: os.environ.get(name) for name in names}, "load_average": list(os.getloadavg()),
    }  # fmt: skip


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def parse(text: str) -> Workshop:
    """Make a workshop from the JSON that `run.py` passes to each step."""
    asked = json.loads(text)
    return Workshop(settings.read(Path(asked["settings"])), Path(asked["models"]), Path(asked["out"]), asked["clock"])
