"""YAML as upstream reads and writes it: version 1.1 scalars, first document, last duplicate wins.

PyYAML's scanner and emitter have the same ancestor as Go's, so texts of syntax errors and rules of
quoting agree. What a plain scalar means does not, and is defined here. PyYAML is imported when a
file is read or written, not before. What the values mean is left to the caller.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

from kubeproxy.go.quoting import quote
from kubeproxy.go.text import is_integer, parse_based_integer

if TYPE_CHECKING:
    import yaml

_TEXT = "tag:yaml.org,2002:str"
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
    """The text is not YAML."""


class Document(msgspec.Struct, frozen=True):
    """The first document of a file, and the keys that occur twice in one mapping."""

    value: object
    duplicates: tuple[str, ...] = ()


def parse_yaml(text: str) -> Document:
    """Parse the first document. Raises YamlError with upstream's wording."""
    duplicates: list[str] = []
    try:
        node = _first_node(text)
        value = None if node is None else _value(node, duplicates)
    except RecursionError:
        raise YamlError("yaml: document is nested too deeply or contains itself") from None
    return Document(value, tuple(duplicates))


def _first_node(text: str) -> yaml.Node | None:
    import yaml

    loader = yaml.CSafeLoader(text)
    try:
        return loader.get_node() if loader.check_node() else None
    except yaml.MarkedYAMLError as error:
        raise YamlError(_syntax_error(error)) from None
    except yaml.reader.ReaderError as error:
        raise YamlError(f"yaml: {error.reason}") from None
    finally:
        loader.dispose()


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


def _value(node: yaml.Node, duplicates: list[str]) -> object:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return _mapping(node, duplicates)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, duplicates) for item in node.value]
    return _scalar(node)


def _mapping(node: yaml.MappingNode, duplicates: list[str]) -> dict[str, object]:
    merged: dict[str, object] = {}
    own: dict[str, object] = {}
    for key_node, value_node in node.value:
        value = _value(value_node, duplicates)
        if key_node.value == "<<" and not getattr(key_node, "style", None):
            merged |= _merge_sources(value)
            continue
        key = _key(key_node)
        if key in own:
            line = key_node.start_mark.line + 1
            duplicates.append(f"line {line}: key {quote(key)} already set in map")
        own[key] = value
    return merged | own


def _merge_sources(value: object) -> dict[str, object]:
    sources = value if isinstance(value, list) else [value]
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged |= source if isinstance(source, dict) else {}
    return merged


def _key(node: yaml.Node) -> str:
    """Return a key as JSON has it: a string, for numbers and booleans their text."""
    if not isinstance(node.value, str):
        raise YamlError(f"yaml: line {node.start_mark.line + 1}: invalid map key")
    value = _scalar(node)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalar(node: yaml.Node) -> object:
    text = str(node.value)
    is_plain = not getattr(node, "style", None)
    value = resolve(text) if is_plain else text
    if isinstance(value, float) and not math.isfinite(value):
        # YAML has such numbers, but the file passes through JSON, which has none.
        name = "NaN" if math.isnan(value) else f"{'-' if value < 0 else '+'}Inf"
        raise YamlError(f"json: unsupported value: {name}")
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
