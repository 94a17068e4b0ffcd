"""Whether a bundle is whole, and whether this machine's kernels do with it what NumPy does."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from avsim import __version__
from avsim.deploy.bundle import Bundle, read_bundle

__all__ = ["bundle_rows", "check_bundle"]

_SLOTS, _VOCAB = 8, 10_000  # a vocabulary that the kernels split, as they do a real one
_BEFORE_REFIT = 20  # steps, so that any interval has a refit within the stream


def check_bundle(path: Path, *, steps: int = 60) -> list[dict[str, Any]]:
    """Check a bundle's hash and version, and its kernels against NumPy from its own state on a made-up stream.

    Kernels are left out where torch or Triton is missing, or where there is neither a GPU nor Triton's interpreter.

    Args:
        steps: of the stream.

    Returns:
        For each check its name, `passed` (None if it was left out) and what was found.

    Raises:
        InputError: it is no bundle, or was altered.
    """
    bundle = read_bundle(path)
    same = bundle.avsim_version == __version__
    said = "this version" if same else f"made by avsim {bundle.avsim_version}, this is {__version__}; bundle it anew"
    return [
        {"check": "content hash", "passed": True, "found": bundle.sha256},
        {"check": "avsim version", "passed": same, "found": said},
        {"check": "kernels against NumPy", **_kernels(bundle, steps)},
    ]


def _kernels(bundle: Bundle, steps: int) -> dict[str, Any]:
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return {"passed": None, "found": f"left out: {' and '.join(missing)} not installed here"}
    import torch

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and not torch.cuda.is_available():
        return {"passed": None, "found": "left out: no GPU; TRITON_INTERPRET=1 runs them on the CPU, slowly"}
    from avsim.testing.kernel_parity import check_kernel_parity

    device, state = "cpu" if interpreted else "cuda", bundle.state
    start = max(state.steps_since_refit, bundle.estimator.refit_interval - _BEFORE_REFIT)
    parity = check_kernel_parity(
        bundle.estimator,
        device=device,
        num_slots=bundle.num_speculative_tokens,
        max_num_reqs=_SLOTS,
        vocab=_VOCAB,
        num_steps=steps,
        state=replace(state, steps_since_refit=start),
    )
    where = "Triton's interpreter" if interpreted else torch.cuda.get_device_name()
    if not parity.holds:
        return {"passed": False, "found": f"{where}: {'; '.join(parity.failures)}"}
    worst = max(parity.worst.values(), default=0.0)
    refits = f"{parity.refits} refit{'s' * (parity.refits != 1)}"
    found = f"{where}: {parity.steps} steps, {refits}, at most {worst:.2g} of what rounding allows"
    return {"passed": True, "found": found}


def bundle_rows(bundle: Bundle) -> list[dict[str, Any]]:
    """Return what a bundle holds as rows for people: `what` and `value`."""
    learned = bundle.learned
    if learned.get("how") == "cold":
        how = "nothing: a cold start"
    else:
        how = ", ".join(f"{learned[name]:,} {name}" for name in ("steps", "blocks", "refits") if name in learned)
    table = bundle.cost_table
    found: dict[str, Any] = {
        "estimator": bundle.spec,
        "learned from": how + (", then frozen" if learned.get("frozen") else ""),
        **{f"trace {number}": _trace(trace) for number, trace in enumerate(bundle.traces, 1)},
        "K": bundle.num_speculative_tokens,
        "target": bundle.target,
        "drafter": f"{bundle.drafter} ({bundle.drafter_kind})",
        "draft sampling": bundle.draft_sampling,
        "acceptance rule": bundle.acceptance_rule,
        "engine": f"vLLM {', '.join(bundle.engine_versions)}",
        "cost table": "vLLM's own profile" if table is None else f"{table['card']['name']}: {table['made_by']}",
        "made by": f"avsim {bundle.avsim_version}",
        "sha256": bundle.sha256,
    }
    if bundle.synthetic:
        found["SYNTHETIC"] = "fitted to made-up traces; it says nothing about a real drafter"
    return [{"what": name, "value": str(value)} for name, value in found.items()]


def _trace(trace: Any) -> str:
    temperature = trace["temperature"]
    at = "mixed temperatures" if temperature is None else f"T = {temperature:g}"
    return f"{trace['name']} ({trace['kind']}, {at}, {trace['num_blocks']:,} blocks, {trace['content_hash'][:19]}…)"
