"""The rooms as a picture: the layers that pyproject.toml's import contracts name, as an SVG for light and dark."""

from html import escape
from pathlib import Path

from monitor import toml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("monitor", "trainer")
ROW, GAP, WIDTH, LEFT, RIGHT = 26, 6, 980, 560, 400
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; text-anchor: middle; dominant-baseline: central }
  .title { font-weight: 600 }
  .area { fill: #f6f8fa; stroke: #8c959f }
  .room { fill: #ffffff; stroke: #57606a }
  .arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) }
  #head path { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .area { fill: #161b22; stroke: #6e7681 }
    .room { fill: #0d1117; stroke: #8b949e }
    .arrow { stroke: #8b949e }
    #head path { fill: #8b949e }
  }
"""


def rooms() -> str:
    """The picture: what runs beside the nodes on the left, what is in the node image on the right."""
    contracts = toml.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {package: next(c["layers"] for c in contracts if c.get("containers") == [package]) for package in PACKAGES}
    left = stack(10, 10, LEFT, "monitor/: beside the nodes, never imports torch", layers["monitor"])
    node = stack(LEFT + 20, 10, RIGHT, "in the node image, never imports docker", ["node | serving"])
    top = 10 + height_of(1) + 34
    trainer = stack(LEFT + 20, top, RIGHT, "trainer/: one process is one rank", layers["trainer"])
    middle = LEFT + 20 + RIGHT / 2
    arrows = f'<path class="arrow" d="M {middle} {10 + height_of(1)} V {top - 8}"/>'
    arrows += f'<path class="arrow" d="M {LEFT + 10} {10 + height_of(1) / 2} H {LEFT + 16}"/>'
    arrows += f'<path class="arrow" d="M {LEFT + 10} {top + 60} H {LEFT + 16}"/>'
    tall = max(10 + height_of(len(layers["monitor"])), top + height_of(len(layers["trainer"]))) + 10
    head = '<marker id="head" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 10} {tall}" role="img" '
        f'aria-label="The rooms of syncbed, imports running downwards">\n<style>{STYLE}</style>\n'
        f'<defs>{head}<path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>\n{left}\n{node}\n{trainer}\n{arrows}\n</svg>\n'
    )


def height_of(rows: int) -> int:
    return 34 + rows * (ROW + GAP) + GAP


def stack(x: int, y: int, width: int, title: str, layers: list[str]) -> str:
    """A titled box with a row for each layer; rooms of one layer stand side by side."""
    parts = [f'<rect class="area" x="{x}" y="{y}" width="{width}" height="{height_of(len(layers))}" rx="8"/>']
    parts.append(f'<text class="title" x="{x + width / 2:g}" y="{y + 18}">{escape(title)}</text>')
    for row, layer in enumerate(layers):
        names = [name.strip() for name in layer.split("|")]
        free, letters = width - GAP * (len(names) + 1), sum(len(name) + 3 for name in names)
        top, left = y + 34 + row * (ROW + GAP), x + GAP
        for name in names:
            each = free * (len(name) + 3) / letters
            parts.append(f'<rect class="room" x="{left:g}" y="{top}" width="{each:g}" height="{ROW}" rx="4"/>')
            parts.append(f'<text x="{left + each / 2:g}" y="{top + ROW / 2:g}">{escape(name)}</text>')
            left += each + GAP
    return "\n".join(parts)
