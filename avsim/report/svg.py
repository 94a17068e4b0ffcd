"""Figures as inline SVG whose colours follow the page, light or dark; needs the extra `plot`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

__all__ = [
    "BACKGROUND",
    "BOUND",
    "FIXED",
    "GRID",
    "INK",
    "MUTED",
    "SERIES",
    "figure",
    "figure_style",
    "inline_svg",
    "new_figure",
    "plain_label",
]

# Colours that no figure would use otherwise; each stands for a CSS variable of the page.
INK, MUTED, GRID, BACKGROUND, FIXED, BOUND = (f"#0101{n:02x}" for n in range(1, 7))
SERIES = tuple(f"#0102{n:02x}" for n in range(6))

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", BACKGROUND: "bg", FIXED: "fixed", BOUND: "bound"} | {
    color: f"s{n}" for n, color in enumerate(SERIES)
}
# Pixels per inch of figure: below the least, text cannot be read and the figure scrolls; above the most, it shouts.
_LEAST_PX, _MOST_PX = 75, 110
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "avsim",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw with matplotlib's defaults and the report's style, whatever the user has set, and leave both as found."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_label(text: str) -> str:
    """Return text as matplotlib shows it as it is: it reads $…$ as mathematics and drops a leading underscore."""
    return text.replace("$", r"\$").lstrip("_")


def figure(drawing: Any, name: str, title: str, caption: str) -> str:
    """Return a drawing with its title and caption as HTML; `name` is unique on the page."""
    svg = inline_svg(drawing, name, f"{title}. {caption}")
    return (
        f'<figure>\n<div class="scroll">{svg}</div>\n'
        f"<figcaption><strong>{escape(title)}.</strong> {escape(caption)}</figcaption>\n</figure>\n"
    )


def inline_svg(figure: Any, name: str, label: str) -> str:
    """Return a figure as an `<svg>` element; `name` keeps its ids apart from those of other figures on the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    opening = re.match(r"<svg[^>]*>", svg)
    assert opening is not None
    box = re.search(r'viewBox="[^"]*"', opening[0])
    assert box is not None
    width = figure.get_figwidth()
    size = f"min-width:{width * _LEAST_PX:.0f}px;max-width:{width * _MOST_PX:.0f}px"
    return f'<svg {box[0]} style="{size}" role="img" aria-label="{escape(label)}">{svg[opening.end() :]}\n'
