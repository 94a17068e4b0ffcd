"""One figure: measured against predicted ratio to `none`, drawn as SVG without a plotting package."""

from __future__ import annotations

from html import escape
from typing import Any

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#882255", "#44aa99",
    "#332288", "#ddcc77",
)  # fmt: skip
SIZE, EDGE = 460, 52


def plot_ratios(rows: list[dict[str, Any]]) -> str:
    """Return the figure: one mark per cell and arm, coloured by arm; the diagonal, ±5 %, and 1 on both axes."""
    rows = [row for row in rows if not row["arm"].endswith(" again")]
    values = [row[name] for row in rows for name in ("predicted", "measured_low", "measured_high")] + [1.0]
    low, high = min(values) - 0.05, max(values) + 0.05
    arms = list(dict.fromkeys(row["arm"] for row in rows))

    def at(value: float) -> float:
        return EDGE + (value - low) / (high - low) * (SIZE - 2 * EDGE)

    def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
        return f'<line x1="{at(x1):.1f}" y1="{SIZE - at(y1):.1f}" x2="{at(x2):.1f}" y2="{SIZE - at(y2):.1f}" {style}/>'

    thin, dashed = 'stroke="#999"', 'stroke="#999" stroke-dasharray="3 3"'
    parts = [line(low, low, high, high, thin), line(1, low, 1, high, dashed), line(low, 1, high, 1, dashed)]
    for factor in (0.95, 1.05):
        parts.append(
            line(
                low / min(factor, 1),
                low * factor / min(factor, 1),
                high / max(factor, 1),
                high * factor / max(factor, 1),
                dashed,
            )
        )
    for row in rows:
        colour = COLOURS[arms.index(row["arm"]) % len(COLOURS)]
        x, y = at(row["predicted"]), SIZE - at(row["measured"])
        title = escape(f"{row['cell']} {row['arm']}: predicted {row['predicted']:.3f}, measured {row['measured']:.3f}")
        parts.append(line(row["predicted"], row["measured_low"], row["predicted"], row["measured_high"],
                          f'stroke="{colour}"'))  # fmt: skip
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{title}</title></circle>')
    for index, arm in enumerate(arms):
        y = EDGE + 16 * index
        parts.append(f'<circle cx="{SIZE + 4}" cy="{y}" r="4" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{SIZE + 14}" y="{y + 4}">{escape(arm)}</text>')
    step = 0.1 if high - low < 1.2 else 0.2
    tick = round(low / step + 0.5) * step
    while tick < high:
        parts.append(f'<text x="{at(tick):.1f}" y="{SIZE - EDGE + 16}" text-anchor="middle">{tick:.1f}</text>')
        parts.append(f'<text x="{EDGE - 6}" y="{SIZE - at(tick) + 4:.1f}" text-anchor="end">{tick:.1f}</text>')
        tick += step
    parts.append(f'<text x="{SIZE / 2}" y="{SIZE - 12}" text-anchor="middle">predicted ratio to none</text>')
    parts.append(
        f'<text x="14" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 14 {SIZE / 2})">measured</text>'
    )
    box = f'viewBox="0 0 {SIZE + 240} {SIZE}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, f'<rect width="{SIZE + 240}" height="{SIZE}" fill="#fff"/>', *parts, "</svg>"]) + "\n"
