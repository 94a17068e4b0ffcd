"""Prints the shipped shapes and data sheets with their sources: `python -m avsim.costs.shape_tables`."""

from __future__ import annotations

from avsim.costs.shapes import gpu, gpus, model, models

__all__ = ["markdown"]


def markdown() -> str:
    """Return two Markdown tables, for docs/cost-models.md."""
    lines = ["| model | parameters, B | per token, B | weights | source |", "|---|---|---|---|---|"]
    for name in models():
        shape = model(name)
        weights = shape.dtype if shape.dtype == shape.expert_dtype else f"{shape.dtype}, experts {shape.expert_dtype}"
        sizes = f"{shape.total_params / 1e9:,.1f} | {shape.active_params / 1e9:,.1f}"
        lines.append(f"| `{name}` | {sizes} | {weights} | {shape.source} |")
    lines += ["", "| GPU | GB | GB/s | dense TFLOP/s | link, GB/s one way | source |", "|---|---|---|---|---|---|"]
    for name in gpus():
        sheet = gpu(name)
        told = f"{sheet.source}. {sheet.notes}".strip()
        peaks = ", ".join(f"{dtype} {value:,.0f}" for dtype, value in sheet.tflops.items())
        lines.append(f"| `{name}` | {sheet.hbm_gb:g} | {sheet.hbm_gb_s:,g} | {peaks} | {sheet.link_gb_s:g} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
