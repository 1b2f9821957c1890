"""On which line of a YAML text a field stands. Pure.

Looked for only when there is something to complain about: values are built without marks, and a
second parser run is cheap for one mistake.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml

MOST_CHARACTERS = 4 << 20
"""Nodes need some hundred bytes each. In a larger text, lines are not looked for."""

_AT = re.compile(r" - at `(?:key in )?\$(\S*)`$")
_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]")


class Lines:
    """The lines of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._roots: list[yaml.Node] | None = None

    def find(self, document: int, path: Sequence[str | int]) -> int:
        """Return the line, from 1, of a field or of the nearest around it; 0 if it is not found."""
        import yaml

        if self._roots is None:
            self._roots = _compose(self._text)
        if not 0 <= document < len(self._roots):
            return 0
        node = self._roots[document]
        line = node.start_mark.line + 1
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                if step >= len(node.value):
                    break
                node = node.value[step]
                line = node.start_mark.line + 1
            elif isinstance(node, yaml.MappingNode):
                found = [(k, v) for k, v in node.value if k.value == step]
                if not found:
                    break
                key, node = found[-1]
                line = key.start_mark.line + 1
            else:
                break
        return line


def _compose(text: str) -> list[yaml.Node]:
    import yaml

    if len(text) > MOST_CHARACTERS:
        return []
    try:
        # Only nodes are made: nothing is constructed from them.
        return list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, UnicodeError, RecursionError):
        return []


def path_in(reason: str) -> tuple[str | int, ...]:
    """Return the path at the end of a message of msgspec: `… - at `$.spec.ports[0].port``."""
    found = _AT.search(reason)
    steps = _STEP.findall(found[1]) if found else []
    return tuple(int(index) if index.isdigit() else name or 0 for name, index in steps)
