"""A plot of a page: series of plain numbers, drawn as SVG by matplotlib.

What is drawn is what the series hold, so that tests can hold it against results. Colours are Okabe and Ito's, which
colour-blind readers tell apart, and lines differ in dashes and markers too. Ink is `currentColor`: the page's, light or
dark. The same numbers give the same bytes. Axes of quantities start at 0.
"""

import io
import math
import re
from dataclasses import dataclass, field

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#b8a800")
DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, PAPER = "#010203", "#fdfeff"  # stand for the page's colours, and for nothing else
FEW = 30  # points of a line that are marked each
WIDTH, HEIGHT = 6.4, 3.4  # inches; pages scale it


@dataclass(frozen=True)
class Series:
    """Points by x; y None is a gap. `low` and `high`: the interval of each point, where there is one."""

    label: str
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    ideal: bool = False  # a line to hold others against: grey, dashed, no points


@dataclass(frozen=True)
class Span:
    """A part of the x axis with a name: a phase of a run."""

    label: str
    start: float
    end: float


@dataclass(frozen=True)
class Lines:
    """Curves and points over a common x axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    spans: list[Span] = field(default_factory=list)
    y_top: float | None = None  # at least this far up
    whole_x: bool = False  # x counts something: ticks at whole numbers


@dataclass(frozen=True)
class Bars:
    """Stacked bars, one for each label; `parts` maps a part's name to its height in each bar, None counting as 0."""

    name: str
    title: str
    y_label: str
    labels: list[str]
    parts: dict[str, list[float | None]]


@dataclass(frozen=True)
class Matrix:
    """Counts as a map: rows are true classes, columns predicted ones; shades are shares of the row."""

    name: str
    title: str
    x_label: str
    y_label: str
    labels: list[str]
    counts: list[list[int]]


Plot = Lines | Bars | Matrix


def svg(plot: Plot) -> str:
    """The plot as an SVG element that fits a page of any width."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {
        **{"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.family": "sans-serif", "font.size": 9},
        **{"text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.grid": True},
        **{"grid.color": INK, "grid.alpha": 0.15, "grid.linewidth": 0.6, "axes.axisbelow": True},
    }
    with rc_context(style):
        square = isinstance(plot, Matrix)
        figure = Figure(figsize=(5.2, 4.6) if square else (WIDTH, HEIGHT), layout="constrained")
        FigureCanvasSVG(figure)
        draw = {Lines: _lines, Bars: _bars, Matrix: _matrix}[type(plot)]
        draw(plot, figure.subplots())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_a_page(out.getvalue(), plot.title)


def _for_a_page(text: str, title: str) -> str:
    """Without the prologue of a file, sized by its place, in the page's ink, and named for those who cannot see it."""
    from html import escape

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--paper, white)")
    text = text.replace(COLOURS[0], f"var(--blue, {COLOURS[0]})")  # too dark for a dark page
    text = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', r'\1 width="\2"', text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="([\d.]+)pt"', r'\1 height="\2"', text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


def _lines(plot: Lines, axes) -> None:
    for span, shade in zip(plot.spans, (0.10, 0.04) * len(plot.spans), strict=False):
        axes.axvspan(span.start, span.end, color=INK, alpha=shade, linewidth=0)
        axes.annotate(
            span.label, ((span.start + span.end) / 2, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom",
            fontsize=7,
        )  # fmt: skip
    for i, series in enumerate(plot.series):
        _line(series, i, axes)
    known = [v for s in plot.series for v in (*s.y, *(s.high or ())) if v is not None and math.isfinite(v)]
    axes.set_ylim(0, 1.08 * max([plot.y_top or 0, *known]) or 1)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.whole_x:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, len(plot.series))


def _line(series: Series, i: int, axes) -> None:
    y = [math.nan if v is None else v for v in series.y]
    if series.ideal:
        axes.plot(series.x, y, color=INK, alpha=0.5, linestyle="--", linewidth=1, label=series.label)
        return
    colour, few = COLOURS[i % len(COLOURS)], len(series.x) <= FEW
    axes.plot(
        series.x, y, color=colour, dashes=DASHES[i // len(COLOURS) % 4 if few else i % 4], linewidth=1.4,
        marker=MARKERS[i % len(MARKERS)] if few else None, markersize=4, label=series.label,
    )  # fmt: skip
    if series.low and series.high:
        points = [p for p in zip(series.x, y, series.low, series.high, strict=True) if None not in p]
        if points:
            x, centre, low, high = zip(*points, strict=True)
            reach = [
                [c - b for c, b in zip(centre, low, strict=True)],
                [t - c for c, t in zip(centre, high, strict=True)],
            ]
            axes.errorbar(x, centre, reach, color=colour, linestyle="none", capsize=3, linewidth=1)


def _bars(plot: Bars, axes) -> None:
    """Lying where their labels are long: labels are read, not guessed."""
    lying = max(map(len, plot.labels), default=0) > 10
    places = range(len(plot.labels))
    bottom = [0.0] * len(plot.labels)
    for i, (part, heights) in enumerate(plot.parts.items()):
        known = [height or 0.0 for height in heights]
        look = {"label": part, "color": COLOURS[i % len(COLOURS)], "edgecolor": PAPER, "linewidth": 0.6}
        look["hatch"] = ("", "//", "--", "xx", "\\\\")[i % 5]
        if lying:
            axes.barh(places, known, left=bottom, height=0.7, **look)
        else:
            axes.bar(places, known, bottom=bottom, width=0.7, **look)
        bottom = [b + k for b, k in zip(bottom, known, strict=True)]
    top = 1.08 * max(bottom, default=0) or 1
    if lying:
        axes.figure.set_figheight(max(HEIGHT, 1.2 + 0.28 * len(plot.labels)))
        axes.set_yticks(list(places), plot.labels)
        axes.invert_yaxis()
        axes.set_xlim(0, top)
        axes.set_xlabel(plot.y_label)
        axes.grid(axis="y", visible=False)
    else:
        axes.set_xticks(list(places), plot.labels)
        axes.set_ylim(0, top)
        axes.set_ylabel(plot.y_label)
        axes.grid(axis="x", visible=False)
    _legend(axes, len(plot.parts))


def _matrix(plot: Matrix, axes) -> None:
    shares = [[count / max(sum(row), 1) for count in row] for row in plot.counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(plot.labels))
    axes.set_xticks(list(places), plot.labels, rotation=45, ha="right", fontsize=7)
    axes.set_yticks(list(places), plot.labels, fontsize=7)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=False)
    for row, counts in enumerate(plot.counts):
        for column, count in enumerate(counts):
            dark = shares[row][column] > 0.55
            axes.text(column, row, str(count), ha="center", va="center", fontsize=6, color="white" if dark else "black")


def _legend(axes, entries: int) -> None:
    """Below the axes, so that they keep the width."""
    if entries > 1:
        axes.figure.legend(fontsize=8, ncols=4, loc="outside lower left", handlelength=2.6)
