"""What `avsim list` lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avsim import costs, estimators, policies
from avsim.sources import IMPORTERS, open_trace

__all__ = ["LISTINGS"]

Rows = list[dict[str, Any]]


def _classes(classes: dict[str, type]) -> Rows:
    rows = []
    for name, cls in sorted(classes.items()):
        options = ", ".join(
            field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
            for field in dataclasses.fields(cls)
        )
        rows.append({"name": name, "what": _first_line(cls), "options": options})
    return rows


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _costs(folder: Path) -> Rows:
    rows = []
    for name in costs.presets():
        card = costs.load(name).card
        rows.append({"name": name, "model": card.model, "hardware": card.hardware, "kind": card.kind})
    for kind, cls in sorted(costs.available().items()):
        if getattr(cls, "spec", None):
            rows.append({"name": f"{kind}:…", "model": "", "hardware": "", "kind": f"spec: {_first_line(cls.spec)}"})
    for name in costs.shapes.models():
        shape = costs.shapes.model(name)
        size = f"{shape.total_params / 1e9:,.0f} B parameters, {shape.active_params / 1e9:,.0f} B per token"
        rows.append({"name": f"model={name}", "model": name, "hardware": "", "kind": f"shape for roofline: {size}"})
    for name in costs.shapes.gpus():
        gpu = costs.shapes.gpu(name)
        facts = f"{gpu.hbm_gb:g} GB, {gpu.hbm_gb_s / 1000:g} TB/s, {gpu.tflops['bf16']:,.0f} TFLOP/s bf16"
        rows.append({"name": f"gpu={name}", "model": "", "hardware": name, "kind": f"GPU for roofline: {facts}"})
    return rows


def _traces(folder: Path) -> Rows:
    rows = []
    for path in sorted(folder.glob("*/trace.json")):
        card = open_trace(path.parent).card
        rows.append(
            {
                "path": str(path.parent),
                "kind": card.kind,
                "target": card.target,
                "drafter": card.drafter,
                "K": card.num_speculative_tokens,
                "drafts": card.draft_sampling,
                "blocks": card.num_blocks,
            }
        )
    return rows


def _sources(folder: Path) -> Rows:
    return [{"name": name, "what": _first_line(importer)} for name, importer in sorted(IMPORTERS.items())]


LISTINGS: dict[str, Callable[[Path], Rows]] = {
    "estimators": lambda folder: _classes(estimators.available()),
    "policies": lambda folder: _classes(policies.available()),
    "costs": _costs,
    "sources": _sources,
    "traces": _traces,
}
