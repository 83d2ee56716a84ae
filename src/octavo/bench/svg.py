"""Bar charts as an SVG file, which any browser shows."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

COLORS = ("#d1242f", "#bf8700", "#1f6feb", "#2da44e", "#8250df", "#57606a")
FONT = "font-family='system-ui, sans-serif'"
# Pixels.
CHART_WIDTH, BAR_HEIGHT, BAR_GAP, MARGIN, TITLE_HEIGHT, LABEL_HEIGHT = 240, 22, 18, 24, 44, 40
VALUE_WIDTH = 62


@dataclass(frozen=True, slots=True)
class Bars:
    """One chart: a title, and for each bar its name, its length (no less than 0) and what is written behind it. The longest fills the
    width."""

    title: str
    bars: list[tuple[str, float, str]]


def bar_charts(title: str, rows: list[tuple[str, list[Bars]]]) -> str:
    """Rows of charts, each row with a name, as one SVG document. The same values make the same text."""
    columns = max((len(charts) for _, charts in rows), default=0)
    heights = [LABEL_HEIGHT + 24 + max((len(chart.bars) for chart in charts), default=0) * (BAR_HEIGHT + BAR_GAP) for _, charts in rows]
    width = MARGIN + max(columns, 1) * (CHART_WIDTH + MARGIN)
    height = TITLE_HEIGHT + sum(heights) + MARGIN
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>",
        "<rect width='100%' height='100%' fill='white'/>",
        _text(MARGIN, 28, title, size=17, weight="bold"),
    ]
    top = TITLE_HEIGHT
    for (name, charts), row_height in zip(rows, heights, strict=True):
        parts.append(_text(MARGIN, top + 24, name, size=15, weight="bold"))
        for column, chart in enumerate(charts):
            parts += _chart(chart, MARGIN + column * (CHART_WIDTH + MARGIN), top + LABEL_HEIGHT)
        top += row_height
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(chart: Bars, left: int, top: int) -> list[str]:
    longest = max((value for _, value, _ in chart.bars), default=0.0) or 1.0
    parts = [_text(left, top + 12, chart.title, size=13)]
    y = top + 24
    for place, (name, value, shown) in enumerate(chart.bars):
        length = round(value / longest * (CHART_WIDTH - VALUE_WIDTH), 1)
        parts.append(_text(left, y + 10, name, size=11, fill="#57606a"))
        parts.append(f"<rect x='{left}' y='{y + 14}' width='{length}' height='{BAR_HEIGHT - 6}' fill='{COLORS[place % len(COLORS)]}'/>")
        parts.append(_text(left + length + 5, y + 27, shown, size=12))
        y += BAR_HEIGHT + BAR_GAP
    return parts


def _text(x: float, y: float, text: str, *, size: int, weight: str = "normal", fill: str = "#1f2328") -> str:
    return f"<text x='{x}' y='{y}' {FONT} font-size='{size}' font-weight='{weight}' fill='{fill}'>{escape(text)}</text>"
