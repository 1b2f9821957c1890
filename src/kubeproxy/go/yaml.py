"""YAML as upstream reads and writes it: version 1.1 scalars, the last duplicate wins.

PyYAML's scanner and emitter have the same ancestor as Go's, so texts of syntax errors and rules of
quoting agree. What a plain scalar means does not, and is defined here. PyYAML is imported when a
file is read or written, not before. What the values mean is left to the caller.

Values are built from the parser's events, without recursion. A text of a few hundred bytes may
stand for billions of nodes, each an alias of several others. So nodes are counted as if they were
decoded one by one, by upstream's rule, and aliases share one value: reading takes time by the size
of the text, and walking over the result meets a few million nodes at most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from kubeproxy.go.floats import format_float32, format_general
from kubeproxy.go.quoting import quote
from kubeproxy.go.text import is_integer, parse_based_integer

if TYPE_CHECKING:
    import yaml

MOST_LEVELS = 100
"""No file read here needs twenty. The parser's time per token grows with the depth."""

_FEW_NODES = 400_000
_MANY_NODES = 4_000_000
_CORE = "tag:yaml.org,2002:"
_TEXT = f"{_CORE}str"
_TYPES = {"bool": bool, "int": int, "float": float, "null": type(None)}
_NOT_FINITE = {"+Inf": ".inf", "-Inf": "-.inf", "NaN": ".nan"}
_TYPE_NAMES = {kind: name for name, kind in _TYPES.items()}
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(
        ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True
    ),
    **dict.fromkeys(
        ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False
    ),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9:.]+(?:Z|[+-][0-9:]+)?)?")


class YamlError(ValueError):
    """The text is not YAML, or stands for more than can be read."""


class Document(msgspec.Struct, frozen=True):
    """One document of a file, and the keys that occur twice in one mapping."""

    value: object
    duplicates: tuple[str, ...] = ()


def parse_yaml(text: str | bytes) -> Document:
    """Parse the first document. Raises YamlError with upstream's wording."""
    return next(parse_documents(text), Document(None))


def parse_documents(text: str | bytes) -> Iterator[Document]:
    """Parse one document after the other. Raises YamlError with upstream's wording."""
    import yaml

    try:
        loader = yaml.CSafeLoader(text)
        builder = _Builder()
        while (event := loader.get_event()) is not None:
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                builder.take(event)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield Document(builder.value, tuple(builder.duplicates))
                builder = _Builder()
    except yaml.MarkedYAMLError as error:
        raise YamlError(_syntax_error(error)) from None
    except yaml.reader.ReaderError as error:
        raise YamlError(f"yaml: {error.reason}") from None
    except UnicodeEncodeError:
        raise YamlError("yaml: the text holds half a character (a lone surrogate)") from None


def _syntax_error(error: yaml.MarkedYAMLError) -> str:
    """Word a syntax error: `yaml: line 3: did not find expected key`.

    Upstream counts lines from one in its scanner and from zero in its parser.
    """
    from yaml.scanner import ScannerError

    line = 0
    if error.problem_mark is not None and error.problem_mark.line:
        line = error.problem_mark.line + isinstance(error, ScannerError)
    elif error.context_mark is not None:
        line = error.context_mark.line
    where = f"line {line}: " if line else ""
    return f"yaml: {where}{error.problem}"


class _Anchor:
    """A named value, and how many nodes it stands for: none while it is being built."""

    __slots__ = ("size", "value")

    def __init__(self, value: object = None, size: int = 0) -> None:
        self.value = value
        self.size = size


class _Sequence:
    """A list that is being built."""

    __slots__ = ("_items",)
    awaits_key = False

    def __init__(self) -> None:
        self._items: list[object] = []

    def add(self, value: object, line: int, *, is_merge: bool) -> None:
        self._items.append(value)

    def finish(self) -> object:
        return self._items


class _Mapping:
    """A mapping that is being built."""

    __slots__ = ("_duplicates", "_is_merge", "_key", "_merged", "_own", "awaits_key")

    def __init__(self, duplicates: list[str]) -> None:
        self.awaits_key = True
        self._duplicates = duplicates
        self._own: dict[str, object] = {}
        self._merged: dict[str, object] = {}
        self._key = ""
        self._is_merge = False

    def add(self, value: object, line: int, *, is_merge: bool) -> None:
        """Take a key or the value that belongs to the key before."""
        if self.awaits_key:
            self._key, self._is_merge = _key(value, line), is_merge
            if not is_merge and self._key in self._own:
                text = f"line {line}: key {quote(self._key)} already set in map"
                self._duplicates.append(text)
        elif self._is_merge:
            self._merged |= _merge_sources(value)
        else:
            self._own[self._key] = value
        self.awaits_key = not self.awaits_key

    def finish(self) -> object:
        return self._merged | self._own if self._merged else self._own


class _Open(msgspec.Struct):
    """A container that is being built, and what is needed when it ends."""

    container: _Sequence | _Mapping
    line: int
    nodes_before: int
    anchor: _Anchor | None


class _Builder:
    """Builds the value of one document from its events."""

    def __init__(self) -> None:
        self.value: object = None
        self.duplicates: list[str] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._nodes = 1
        self._aliased = 0

    def take(self, event: yaml.NodeEvent | yaml.CollectionEndEvent) -> None:
        import yaml

        if isinstance(event, yaml.ScalarEvent):
            self._count(1)
            value = _scalar(event)
            if event.anchor is not None:
                self._anchors[event.anchor] = _Anchor(value, 1)
            self._add(value, _line(event), is_merge=event.value == "<<" and not event.style)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event, is_mapping=isinstance(event, yaml.MappingStartEvent))
        else:
            self._take_alias(event)

    def _add(self, value: object, line: int, *, is_merge: bool = False) -> None:
        holder = self._open[-1].container if self._open else None
        if holder is None or not holder.awaits_key:  # as a key it becomes text
            _require_finite(value)
        if holder is None:
            self.value = value
        else:
            holder.add(value, line, is_merge=is_merge)

    def _begin(self, event: yaml.CollectionStartEvent, *, is_mapping: bool) -> None:
        line = _line(event)
        if len(self._open) == MOST_LEVELS:
            raise YamlError(f"yaml: line {line}: exceeded max depth of {MOST_LEVELS}")
        if self._open and self._open[-1].container.awaits_key:
            raise YamlError(f"yaml: line {line}: invalid map key")
        anchor = None
        if event.anchor is not None:
            anchor = self._anchors[event.anchor] = _Anchor()
        container = _Mapping(self.duplicates) if is_mapping else _Sequence()
        self._open.append(_Open(container, line, self._nodes, anchor))
        self._count(1)

    def _end(self) -> None:
        ended = self._open.pop()
        value = ended.container.finish()
        if ended.anchor is not None:
            ended.anchor.value = value
            ended.anchor.size = self._nodes - ended.nodes_before
        self._add(value, ended.line)

    def _take_alias(self, event: yaml.NodeEvent) -> None:
        anchor = self._anchors.get(event.anchor or "")
        if anchor is None:
            raise YamlError(f"yaml: unknown anchor '{event.anchor}' referenced")
        if not anchor.size:
            raise YamlError(f"yaml: anchor '{event.anchor}' value contains itself")
        self._count(1 + anchor.size, aliased=anchor.size)
        self._add(anchor.value, _line(event))

    def _count(self, nodes: int, *, aliased: int = 0) -> None:
        """Count nodes as upstream does while it decodes. Raises YamlError for too many aliases.

        Upstream checks after every single node. Within one alias the ratio only grows, so that
        its last node decides for all.
        """
        self._nodes += nodes
        self._aliased += aliased
        if self._aliased <= 100 or self._nodes <= 1000:
            return
        part = (self._nodes - _FEW_NODES) / (_MANY_NODES - _FEW_NODES)
        allowed = 0.99 - 0.89 * min(max(part, 0.0), 1.0)
        if self._aliased / self._nodes > allowed:
            raise YamlError("yaml: document contains excessive aliasing")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0


def _merge_sources(value: object) -> dict[str, object]:
    merged: dict[str, object] = {}
    for source in reversed(value if isinstance(value, list) else [value]):
        if not isinstance(source, dict):
            raise YamlError("yaml: map merge requires map or sequence of maps as the value")
        merged |= source
    return merged


def _key(value: object, line: int) -> str:
    """Return a key as JSON has it: a string, for numbers and booleans their text."""
    if isinstance(value, list | dict):
        raise YamlError(f"yaml: line {line}: invalid map key")
    if value is None:
        return "null"
    if isinstance(value, float):
        text = format_float32(value)  # what is too large for a float32 is infinite, too
        return _NOT_FINITE.get(text, text)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalar(event: yaml.ScalarEvent) -> object:
    text, tag = event.value, event.tag
    if tag is not None:
        return _tagged(text, tag.removeprefix(_CORE))
    return text if event.style else resolve(text)


def _require_finite(value: object) -> None:
    """Raise YamlError for a number that JSON, which the file passes through, does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else f"{'-' if value < 0 else '+'}Inf"
        raise YamlError(f"json: unsupported value: {name}")


def _tagged(text: str, name: str) -> object:
    """Return the value of a scalar with an explicit tag. Tags of other programs mean nothing."""
    if name not in _TYPES:
        return text
    value = resolve(text)
    if name == "float" and type(value) is int:
        return float(value)
    if type(value) is not _TYPES[name]:
        found = _TYPE_NAMES.get(type(value), "str")
        raise YamlError(f"yaml: cannot decode !!{found} `{text[:80]}` as a !!{name}")
    return value


def resolve(text: str) -> str | bool | int | float | None:
    """Return the value a plain scalar stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or _DATE.fullmatch(text):
        return text
    plain = text.replace("_", "")
    if is_integer(plain) and -(1 << 63) <= parse_based_integer(plain) < 1 << 64:
        return parse_based_integer(plain)
    # A number too large for a float stays a text.
    is_float = _FLOAT.fullmatch(plain) and math.isfinite(float(plain))
    return float(plain) if is_float else text


def format_yaml(value: object) -> str:
    """Format in block style with sorted keys, quoting strings only where they must be."""
    import yaml

    class Dumper(yaml.CSafeDumper):
        """A class of our own: representers are registered per class and would change other YAML."""

        def ignore_aliases(self, data: object) -> bool:
            # Called by PyYAML. Equal values are written out, not as anchor and alias.
            return True

    def represent_text(dumper: Dumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar(_TEXT, text, style=_style(text))

    def represent_plain(dumper: Dumper, value: float | None) -> yaml.ScalarNode:
        if isinstance(value, float):
            return dumper.represent_scalar(_TEXT, format_general(value))
        return dumper.represent_scalar(_TEXT, msgspec.json.encode(value).decode())

    # Which texts need quotes is decided by `_style`, by what *we* would read them as.
    Dumper.yaml_implicit_resolvers = {}
    Dumper.add_representer(str, represent_text)
    for kind in (bool, int, float, type(None)):
        Dumper.add_representer(kind, represent_plain)
    return str(
        yaml.dump(value, Dumper=Dumper, default_flow_style=False, allow_unicode=True, width=1 << 30)
    )


def _style(text: str) -> str | None:
    if "\n" in text:
        return "|"
    is_plain = resolve(text) is text and not _BASE_60.fullmatch(text) and not _DATE.fullmatch(text)
    return None if is_plain else '"'
