"""What Go makes of a text and what we make of it is the same, for a table of texts.

`go_scalars.jsonl` is the output of upstream's own v1.36.4 code: its flags, its decoder of
configuration files and its YAML reader. A row is [kind, where, text, value, error]:

    flag   a flag, given once for each text → what the flag prints
    file   a field of a configuration file in YAML → the field as JSON after defaults
    json   the same in a JSON file
    yaml   a YAML document → JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kubeproxy.config.decode import decode_config
from kubeproxy.config.defaults import apply_defaults
from kubeproxy.config.document import json_text, read_document
from kubeproxy.config.flags import FLAGS
from kubeproxy.config.parse import parse_flags
from kubeproxy.config.types import API_VERSION, KIND
from kubeproxy.config.write import config_document
from kubeproxy.errors import ConfigError

Row = tuple[str, str, list[str] | str, str | None, str]
TABLE = Path(__file__).with_name("go_scalars.jsonl")
HEAD = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"


def rows(kind: str, *, where: str | None = None) -> Iterator[Row]:
    for line in TABLE.read_text("utf-8").split("\n"):
        row: Row | None = json.loads(line) if line else None
        if row and row[0] == kind and where in (None, row[1]):
            yield row


def flag_result(name: str, texts: list[str]) -> str:
    values = parse_flags([f"--{name}={text}" for text in texts]).values
    return FLAGS[name].kind.format(values[name])


def yaml_file(field: str, text: str) -> str:
    *sections, last = field.split(".")
    lines = [f"{'  ' * depth}{name}:\n" for depth, name in enumerate(sections)]
    return HEAD + "".join(lines) + f"{'  ' * len(sections)}{last}: {text}\n"


def json_file(field: str, text: str) -> str:
    for name in reversed(field.split(".")):
        text = f'{{"{name}": {text}}}'
    return f'{{"apiVersion": "{API_VERSION}", "kind": "{KIND}", {text[1:]}'


def file_result(field: str, content: str) -> object:
    decoded = decode_config(content)
    if decoded.strict_problem:
        raise ConfigError(decoded.strict_problem)
    found: object = config_document(apply_defaults(decoded.config))
    for name in field.split("."):
        assert isinstance(found, dict)
        found = found[name]
    return found


@pytest.mark.parametrize("name", sorted({row[1] for row in rows("flag")}))
def test_a_flag_is_read_and_shown_as_by_go(name: str) -> None:
    for _, _, texts, value, error in rows("flag", where=name):
        assert isinstance(texts, list)
        try:
            assert (texts, flag_result(name, texts)) == (texts, value)
        except ConfigError as refused:
            assert str(refused).endswith(f" flag: {error}") and error, (texts, str(refused), error)


@pytest.mark.parametrize("kind", ["file", "json"])
@pytest.mark.parametrize("field", sorted({row[1] for row in rows("file")}))
def test_a_field_is_read_and_shown_as_by_go(kind: str, field: str) -> None:
    for _, _, text, value, error in rows(kind, where=field):
        content = yaml_file(field, str(text)) if kind == "file" else json_file(field, str(text))
        try:
            shown = msgspec.json.encode(file_result(field, content))
            assert (text, json.loads(shown), error) == (text, json.loads(value or "null"), "")
        except ConfigError as refused:
            assert (text, str(refused), None) == (text, error, value)


def test_yaml_becomes_the_same_json() -> None:
    for _, _, text, value, error in rows("yaml"):
        # The keys that every document needs are left out of the comparison.
        content = str(text) + HEAD
        try:
            fields = json_text(read_document(content).fields)
            assert (text, json.loads(fields), error) == (text, json.loads(value or "null"), "")
        except ConfigError as refused:
            assert (text, str(refused), None) == (text, error, value)
