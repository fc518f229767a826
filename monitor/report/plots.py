"""A plot of a page: series of plain numbers, drawn as SVG by matplotlib.

What is drawn is what the series hold, so that tests can hold it against results. Colours are Okabe and Ito's, which
colour-blind readers tell apart, and lines differ in dashes and markers too. Ink is `currentColor`: the page's, light or
dark. The same numbers give the same bytes. Axes of quantities start at 0, or are
logarithmic.
"""

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#b8a800")
DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DEEP = "#0060a0"  # white letters are read on it
INK, PAPER = "#010203", "#fdfeff"  # stand for the page's colours, and for nothing else
FEW = 30  # points of a line that are marked each
WIDTH, HEIGHT = 5.2, 3.2  # inches; pages scale it, and on a phone its letters must still be read
STYLE: dict[Any, Any] = {  # matplotlib's settings
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
PHASE_NAMES = {"sync": "exposed sync"}  # of a step, where pages call one otherwise than events do
LEGEND_ROOM = 84  # letters of a legend that fit below the axes, line and gap of an entry counted as 9
ROOM = 56  # letters of labels that fit below bars that stand


@dataclass(frozen=True)
class Series:
    """Points by x; y None is a gap. `low` and `high`: the interval of each point, where there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
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
    marks: list[Span] = field(default_factory=list)  # what was done to the run; a line where it took no time
    y_top: float | None = None  # at least this far up
    whole_x: bool = False  # x counts something: ticks at whole numbers
    per_epoch: int | None = None  # x counts steps, this many an epoch: epochs are shown above
    log: bool = False  # both axes are logarithmic


@dataclass(frozen=True)
class Bars:
    """Stacked bars, one for each label; `parts` maps a part's name to its height in each bar, None counting as 0."""

    name: str
    title: str
    y_label: str
    labels: list[str]
    parts: Mapping[str, Sequence[float | None]]


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

    with rc_context({**STYLE, "svg.hashsalt": plot.name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # letters stay letters in the SVG: the viewer has fonts of its own
        square = isinstance(plot, Matrix)
        figure = Figure(figsize=(4.8, 4.4) if square else (WIDTH, HEIGHT), layout="constrained")
        FigureCanvasSVG(figure)
        draw = {Lines: _lines, Bars: _bars, Matrix: _matrix}[type(plot)]
        draw(plot, figure.subplots())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_a_page(out.getvalue(), plot.title)


def alone(text: str) -> str:
    """What svg() gave, as a file by itself: with a background, light or dark as the viewer is.

    Colours are plain ones, as not every viewer knows CSS variables.
    """
    text = re.sub(r"var\(--\w+, ([#\w]+)\)", r"\1", text)
    dark = "@media (prefers-color-scheme: dark) { svg { color: #e4e8ec; background: #15191e } }"
    style = f"<style>svg {{ color: #1c2127; background: #ffffff }} {dark}</style>"
    end = text.index(">") + 1
    return text[:end] + "\n " + style + text[end:] + "\n"


def _for_a_page(text: str, title: str) -> str:
    """Without the prologue of a file, sized by its place, in the page's ink, and named for those who cannot see it."""
    from html import escape

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)  # names that nothing refers to and other plots have too
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--paper, white)")
    text = text.replace(COLOURS[0], f"var(--blue, {COLOURS[0]})")  # too dark for a dark page
    text = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', r'\1 width="\2"', text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="([\d.]+)pt"', r'\1 height="\2"', text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


def _lines(plot: Lines, axes) -> None:
    for span, shade in zip(plot.spans, (0.10, 0.04) * len(plot.spans), strict=False):
        axes.axvspan(span.start, span.end, color=INK, alpha=shade, linewidth=0)
        axes.annotate(
            _short(span.label), ((span.start + span.end) / 2, 1), xycoords=("data", "axes fraction"), ha="center",
            va="bottom", fontsize=7,
        )  # fmt: skip
    for mark, top in zip(plot.marks, (0.98, 0.48) * len(plot.marks), strict=False):  # neighbours do not overlap
        if mark.end > mark.start:
            axes.axvspan(mark.start, mark.end, color=COLOURS[1], alpha=0.15, linewidth=0)
        axes.axvline(mark.start, color=COLOURS[1], linewidth=0.8, linestyle=":")
        axes.annotate(
            _short(mark.label), (mark.start, top), xycoords=("data", "axes fraction"), rotation=90, ha="right",
            va="top", fontsize=7, color=COLOURS[1],
        )  # fmt: skip
    for i, series in enumerate(plot.series):
        _line(series, i, axes)
    numbers = [v for s in plot.series for v in (*s.y, *(s.high or ())) if v is not None and math.isfinite(v)]
    if plot.log:
        axes.set(xscale="log", yscale="log")
    else:
        axes.set_ylim(0, 1.08 * max([plot.y_top or 0, *numbers]) or 1)
        if min((x for s in plot.series for x in s.x), default=-1) >= 0:
            axes.set_xlim(left=0)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.whole_x:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if per_epoch := plot.per_epoch:
        above = axes.secondary_xaxis("top", functions=(lambda step: step / per_epoch, lambda epoch: epoch * per_epoch))
        above.set_xlabel("epoch")
    _legend(axes, len(plot.series))


def _line(series: Series, i: int, axes) -> None:
    y = [math.nan if v is None else v for v in series.y]
    if series.ideal:
        axes.plot(series.x, y, color=INK, alpha=0.5, linestyle="--", linewidth=1, label=_short(series.label))
        return
    colour, few = COLOURS[i % len(COLOURS)], len(series.x) <= FEW
    axes.plot(
        series.x, y, color=colour, dashes=DASHES[i // len(COLOURS) % 4 if few else i % 4], linewidth=1.4,
        marker=MARKERS[i % len(MARKERS)] if few else None, markersize=4, label=_short(series.label),
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
    """Lying where their labels are long or many: labels are read, not guessed."""
    labels = [_short(label, 60) for label in plot.labels]
    lying = max(map(len, labels), default=0) > 10 or sum(len(label) + 2 for label in labels) > ROOM
    places = range(len(labels))
    bottom = [0.0] * len(plot.labels)
    for i, (part, heights) in enumerate(plot.parts.items()):
        lengths = [height or 0.0 for height in heights]
        look = {"label": _short(part), "color": COLOURS[i % len(COLOURS)], "edgecolor": PAPER, "linewidth": 0.6}
        look["hatch"] = ("", "//", "--", "xx", "\\\\")[i % 5]
        if lying:
            axes.barh(places, lengths, left=bottom, height=0.7, **look)
        else:
            axes.bar(places, lengths, bottom=bottom, width=0.7, **look)
        bottom = [b + k for b, k in zip(bottom, lengths, strict=True)]
    top = 1.08 * max(bottom, default=0) or 1
    if lying:
        axes.figure.set_figheight(max(HEIGHT, 1.2 + 0.28 * len(labels)))
        axes.set_yticks(list(places), labels)
        axes.invert_yaxis()
        axes.set_xlim(0, top)
        axes.set_xlabel(plot.y_label)
        axes.grid(axis="y", visible=False)
    else:
        axes.set_xticks(list(places), labels)
        axes.set_ylim(0, top)
        axes.set_ylabel(plot.y_label)
        axes.grid(axis="x", visible=False)
    _legend(axes, len(plot.parts))


def _matrix(plot: Matrix, axes) -> None:
    """Cells let the paper through, so that few is faint on a dark page as well."""
    from matplotlib.colors import to_rgba

    shares = [[count / max(sum(row), 1) for count in row] for row in plot.counts]
    cells = [[to_rgba(DEEP, 0.03 + 0.97 * share) for share in row] for row in shares]
    axes.pcolormesh(cells, edgecolors="none")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    labels = [_short(label, 20) for label in plot.labels]
    places = [place + 0.5 for place in range(len(labels))]
    axes.set_xticks(places, labels, rotation=45, ha="right", fontsize=7)
    axes.set_yticks(places, labels, fontsize=7)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=False)
    for row, counts in enumerate(plot.counts):
        for column, count in enumerate(counts):
            ink = "white" if shares[row][column] > 0.5 else INK
            axes.text(column + 0.5, row + 0.5, str(count), ha="center", va="center", fontsize=7, color=ink)


def _legend(axes, entries: int) -> None:
    """Below the axes, so that they keep the width; in as many columns as there is room for."""
    if entries > 1:
        longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
        columns = min(3 if entries in (3, 5, 6, 9) else 4, max(1, LEGEND_ROOM // (longest + 9)))
        axes.figure.legend(fontsize=8, ncols=columns, loc="outside lower left", handlelength=2.6)


def _short(label: str, letters: int = 40) -> str:
    """A label on one line, short enough to leave room for what is plotted."""
    flat = " ".join(label.split())
    return flat if len(flat) <= letters else flat[: letters - 1] + "…"
