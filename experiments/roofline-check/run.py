"""How far is a roofline off the two published step-cost curves?  `.venv/bin/python experiments/roofline-check/run.py`

Fits the shares of bandwidth and FLOPs that are reached (two numbers), then also the latency of a kernel (three), to the
published verify times by least squares of the logarithm, and writes what is left over into README.md and results.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from avsim.costs import RooflineCost, StepShape, load
from avsim.costs.base import CostModel

HERE = Path(__file__).parent
SIZES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
CONTEXT = 1000
TERMS = ("bandwidth_efficiency", "compute_efficiency", "kernel_us")

CASES = (
    (
        "Llama-3.1-8B, 1×H100 (published: a straight line fitted to step times)",
        "llama-3.1-8b-h100-eagle",
        "roofline:model=llama-3.1-8b,gpu=h100,drafter=eagle,cpu_ms=0",
        SIZES,
        10_000,
        CONTEXT,
    ),
    (
        "DeepSeek-V4-Flash, 4×B300 (published: start-up profile, 8192 tokens of context)",
        "deepseek-v4-flash-tp4-b300",
        "roofline:model=deepseek-v4-flash,gpu=b300,tp=4,drafter=dspark,cpu_ms=0,head=false,kv_dtype=fp8,"
        "capture_limit=1024,context=8192",
        np.append(SIZES, 1024),
        256,
        8192,
    ),
)


def shape(sizes: np.ndarray, max_reqs: int, context: int) -> StepShape:
    """Return decoding steps of so many tokens, one a request up to the most requests."""
    reqs = np.minimum(sizes, max_reqs)
    return StepShape(reqs, sizes, reqs * float(context), np.zeros_like(sizes))


def fit(model: RooflineCost, steps: StepShape, truth: np.ndarray, terms: Sequence[str]) -> RooflineCost:
    """Return the model with the terms that minimise the squared logarithm of its error."""

    def changed(logs: np.ndarray) -> RooflineCost:
        return replace(model, **dict(zip(terms, np.exp(logs).tolist(), strict=True)))

    def error(logs: np.ndarray) -> np.ndarray:
        return np.log(changed(logs).verify_ms(steps) / truth)

    most = [0.0 if term.endswith("efficiency") else np.log(1000.0) for term in terms]
    start = np.log([getattr(model, term) for term in terms])
    return changed(least_squares(error, start, bounds=([np.log(1e-3)] * len(terms), most)).x)


def lines(name: str, published: CostModel, sizes: np.ndarray, steps: StepShape, models: dict[str, RooflineCost]):
    """Yield rows of a Markdown table, and of the CSV."""
    truth = published.verify_ms(steps)
    yield ["tokens", "published, ms", *(f"{label}, ms (error)" for label in models)]
    for index, size in enumerate(sizes.tolist()):
        row = [f"{size}", f"{truth[index]:.2f}"]
        for model in models.values():
            ms = model.verify_ms(steps)[index]
            row.append(f"{ms:.2f} ({(ms / truth[index] - 1) * 100:+.0f} %)")
        yield row
    off = [np.abs(model.verify_ms(steps) / truth - 1) * 100 for model in models.values()]
    yield ["median error", "", *(f"{np.median(one):.0f} %" for one in off)]
    yield ["worst error", "", *(f"{one.max():.0f} %" for one in off)]


def draft_lines(published: CostModel, model: RooflineCost, reqs: np.ndarray, context: int):
    """Yield rows that compare draft times, whose K is not published."""
    steps = shape(reqs, 10_000, context)
    yield ["requests", "published, ms", *(f"roofline, K = {k}, ms" for k in (1, 3, 5, 7))]
    for index, size in enumerate(reqs.tolist()):
        at = [model.draft_ms(replace(steps, draft_depth=np.full_like(reqs, k)))[index] for k in (1, 3, 5, 7)]
        yield [f"{size}", f"{published.draft_ms(steps)[index]:.2f}", *(f"{ms:.2f}" for ms in at)]


def markdown(rows) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def main() -> None:
    parts, records = [], []
    for title, preset, spec, sizes, max_reqs, context in CASES:
        published, plain = load(preset), load(spec)
        assert isinstance(plain, RooflineCost)
        steps = shape(sizes, max_reqs, context)
        truth = published.verify_ms(steps)
        two, three = fit(plain, steps, truth, TERMS[:2]), fit(plain, steps, truth, TERMS)
        models = {"defaults": plain, "2 fitted": two, "3 fitted": three}
        rows = list(lines(title, published, sizes, steps, models))
        found = "; ".join(
            f"{label}: " + ", ".join(f"{term} {getattr(model, term):.3g}" for term in TERMS)
            for label, model in models.items()
        )
        draft = list(draft_lines(published, three, np.array([1, 16, 64, 256]), context))
        parts += [
            f"### {title}\n\n`{spec}`\n\n{markdown(rows)}\n\n{found}.",
            f'The drafter, with the terms of "3 fitted" (nothing of it was fitted):\n\n{markdown(draft)}',
        ]
        for label, model in models.items():
            records += [
                (preset, label, int(size), f"{ms:.4f}", f"{model_ms:.4f}")
                for size, ms, model_ms in zip(sizes, truth, model.verify_ms(steps), strict=True)
            ]
    with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerows([("preset", "fit", "tokens", "published_ms", "roofline_ms"), *records])
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    begin, end = "<!-- table -->\n", "\n<!-- /table -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    readme.write_text(before + begin + "\n\n".join(parts) + end + after, encoding="utf-8")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
