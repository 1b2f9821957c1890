"""The cluster of the flows as an SVG, drawn from its topology. Pure.

Colours follow the reader's light or dark preference; no font or script is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from kpctl.lab.topology import Host, Node, Topology

_STYLE = """\
text { font: 13px sans-serif; fill: #1f2328 } .dim { fill: #57606a; font-size: 12px }
rect { fill: #f6f8fa; stroke: #8c959f; rx: 6px } .pod { fill: #ddf4ff } .out { fill: #fff8c5 }
path { stroke: #8c959f; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .dim { fill: #9198a1 } rect { fill: #161b22; stroke: #6e7681 }
.pod { fill: #0c2d6b } .out { fill: #4b2900 } }"""
_POD, _HEIGHT, _GAP = 150, 46, 12
_NODE = _POD + 2 * _GAP


def cluster_svg(topology: Topology) -> str:
    """A column per node, its client above and its pods inside."""
    rows = max(len(node.pods) for node in topology.nodes)
    width = len(topology.nodes) * (_NODE + _GAP) + _GAP
    top = _HEIGHT + 3 * _GAP
    height = top + 44 + rows * (_HEIGHT + _GAP) + _GAP
    body = "\n".join(
        line
        for number, node in enumerate(topology.nodes)
        for line in _column(topology, node, _GAP + number * (_NODE + _GAP), top, height)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n<title>The cluster of the flows</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _column(topology: Topology, node: Node, left: int, top: int, height: int) -> Iterator[str]:
    client = next((each for each in topology.clients if each.ingress == node.name), None)
    if client is not None:
        yield _box(left + _GAP, 0 + 2, _POD, "out", client)
        middle = left + _NODE // 2
        yield f'<path d="M{middle} {_HEIGHT + 2}V{top}"/>'
    yield f'<rect x="{left}" y="{top}" width="{_NODE}" height="{height - top - _GAP}"/>'
    yield _text(left + _GAP, top + 18, node.name)
    yield _text(left + _GAP, top + 34, node.addresses.ipv4, "dim")
    for number, pod in enumerate(node.pods):
        y = top + 44 + number * (_HEIGHT + _GAP)
        yield _box(left + _GAP, y, _POD, "pod", pod)


def _box(x: int, y: int, width: int, style: str, host: Host) -> str:
    return (
        f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{_HEIGHT}"/>\n'
        + _text(x + 10, y + 19, host.name)
        + "\n"
        + _text(x + 10, y + 36, host.addresses.ipv4, "dim")
    )


def _text(x: int, y: int, text: str, style: str = "") -> str:
    extra = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{extra}>{text}</text>'
