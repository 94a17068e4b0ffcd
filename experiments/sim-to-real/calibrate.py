"""Step 1: dense traces of the calibration prompts, one per drafter and temperature, by `avsim.capture.dense`.

The tracer knows EAGLE checkpoints with the target's whole vocabulary. Both drafters are written as such (`linear` as
one whose layer adds nothing), and their logits are cut to the drafted tokens on the way out: −inf elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import settings
import torch
import workshop
from safetensors.torch import load_file, save_file
from workshop import HERE, Workshop, say

from avsim.capture.dense import drafters as tracers
from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.drafters import eagle
from avsim.capture.dense.model import Model
from avsim.capture.dense.run import DenseSettings, run_dense

KIND = "eagle-cut"
LICENCE = "measured by the avsim project; free to use and to ship"


class CutEagle:
    """avsim's EAGLE drafter with a head of the drafted tokens only."""

    kind = "eagle"
    num_slots: int | None = None
    hidden_layers = eagle.Eagle.hidden_layers

    def __init__(self, inner: eagle.Eagle, vocab: Any):
        self.inner, self.vocab = inner, vocab
        inner.head = inner.target.head.weight[vocab]

    def begin(self, tokens: Any, hidden: Any | None) -> Any:
        return self.inner.begin(tokens, hidden)

    def slot(self, state: Any, ends: Any, drafted: Any) -> SlotOutput:
        cut = self.inner.slot(state, ends, drafted).logits
        whole = torch.full((len(cut), self.inner.target.vocab_size), -torch.inf)
        whole[:, self.vocab] = cut
        return SlotOutput(whole)


def load(argument: str, target: Model) -> CutEagle:
    """Load `NAME=FOLDER`: a shipped drafter and its copy in EAGLE layout."""
    name, _, folder = argument.partition("=")
    vocab = load_file(HERE / "drafters" / name / "model.safetensors")["draft_vocab"].long()
    return CutEagle(eagle.load(folder, target), vocab)


def register() -> None:
    """Make the tracer know this drafter."""
    module = ModuleType(f"{tracers.__name__}.eagle_cut")
    module.load = load  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    tracers.MODULES[KIND] = "eagle_cut"


def write_eagle(name: str, folder: Path) -> None:
    """Write a shipped drafter in the layout of vLLM's `EagleLlamaForCausalLM`."""
    if (folder / "config.json").is_file():
        return
    weights = load_file(HERE / "drafters" / name / "model.safetensors")
    weights.pop("draft_vocab")
    for key, like in load_file(HERE / "drafters" / "eagle" / "model.safetensors").items():
        if key not in weights and key != "draft_vocab":
            weights[key] = torch.zeros_like(like)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text((HERE / "drafters" / "eagle" / "config.json").read_text())


def calibrate(shop: Workshop, date: str) -> None:
    """Make the traces that are not there yet; a killed one goes on after its last finished group of prompts."""
    register()
    _ = shop.target  # sets the threads
    for name, temperature in shop.setup.conditions:
        out, folder = shop.trace(name, temperature), shop.out / "drafters" / name
        if out.exists():
            continue
        write_eagle(name, folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        say(f"calibration trace {out.name}")
        asked = DenseSettings(
            target=str(shop.models / "target"),
            drafter=f"{KIND}:{name}={folder}",
            prompts=(str(HERE / "prompts" / "calibration.jsonl"),),
            num_slots=shop.setup.num_slots,
            temperature=temperature,
            draft_sampling="probabilistic" if temperature else "greedy",
            max_tokens=shop.setup.max_tokens,
            batch=24,
            seed=shop.setup.seed,
            num_top=0,
            limit=shop.setup.calibration_prompts,
            target_name="SmolLM2-135M-Instruct",
            drafter_name=f"sim-to-real {name}",
            licence=LICENCE,
        )
        progress = lambda done, total, what: say(f"  {done} of {total} {what}")  # noqa: E731
        run_dense(asked, out, date=date, outputs=shop.out / "outputs", resume=True, progress=progress)


if __name__ == "__main__":
    calibrate(workshop.parse(sys.argv[1]), settings.now()[:10])
