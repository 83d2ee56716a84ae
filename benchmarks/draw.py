"""Draws plots with matplotlib, in an environment of its own: draw.py FOLDER, with comparison/plots.py's list on standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
# The same results make the same file.
matplotlib.rcParams["svg.hashsalt"] = "octavo"
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import NullFormatter, ScalarFormatter  # noqa: E402

COLORS = ("#1f6feb", "#2da44e", "#d1242f", "#8250df", "#bf8700", "#57606a")


def draw(plot: dict[str, Any], folder: Path) -> None:
    """Writes one file."""
    panels = [panel for panel in plot["panels"] if panel["series"]]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(max(6.4, 4.4 * len(panels)), 4.0), squeeze=False, layout="constrained")
    for panel, place in zip(panels, axes[0], strict=True):
        draw_panel(panel, place)
    figure.suptitle(plot["title"], fontsize=12)
    figure.savefig(folder / plot["file"], metadata={"Date": None})
    pyplot.close(figure)


def draw_panel(panel: dict[str, Any], axes: Axes) -> None:
    """Series of one colour each; a dashed one has the colour of the one before it."""
    color = -1
    for series in panel["series"]:
        dashed = series.get("dashed", False)
        color += not dashed
        x, y = zip(*series["points"], strict=True)
        axes.plot(x, y, "--" if dashed else "-", marker="o", markersize=4, color=COLORS[color % len(COLORS)], label=series["name"])
    for axis, logarithmic, scale in ((axes.xaxis, panel["log_x"], axes.set_xscale), (axes.yaxis, panel["log_y"], axes.set_yscale)):
        if logarithmic:
            scale("log")
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(NullFormatter())
    axes.set_xticks(sorted({point[0] for series in panel["series"] for point in series["points"]}))
    if not panel["log_y"]:
        axes.set_ylim(bottom=0)
    axes.set_title(panel["title"], fontsize=10)
    axes.set_xlabel(panel["x"])
    axes.set_ylabel(panel["y"])
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    for each in json.load(sys.stdin):
        draw(each, Path(sys.argv[1]))
