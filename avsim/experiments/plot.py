"""Plots of experiments: one SVG, the same bytes for the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from avsim.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["make_plot", "save_plot"]

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, so that a changed label is a changed line
    "svg.hashsalt": "avsim",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def make_plot(columns: int = 1, *, width: float = 7.0, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Return a figure with some axes side by side, in inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError("plots of experiments need matplotlib: pip install 'avsim[plot]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update(_STYLE)
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), squeeze=False)
    return figure, list(axes[0])


def save_plot(figure: Figure, out: Path) -> None:
    """Write plot.svg into a folder, without the date."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure.savefig(out / "plot.svg", metadata={"Date": None})
