"""Any command line and any file is used or refused with an error, and never crashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.config.command import Exit, Settings, parse_command_line
from kubeproxy.config.decode import Decoded, decode_config
from kubeproxy.config.defaults import apply_defaults, complete_platform
from kubeproxy.config.flags import FLAGS
from kubeproxy.config.kinds import BOOL_MAP, DURATION, STRINGS, VMODULE
from kubeproxy.config.types import KubeProxyConfiguration, VModuleItem
from kubeproxy.config.validate import validate
from kubeproxy.config.write import config_document, format_config
from kubeproxy.errors import ConfigError
from kubeproxy.go.duration import Duration
from kubeproxy.go.yaml import YamlError, format_yaml, parse_yaml

HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
# The flags that make a run read or write something are left out.
NAMES = sorted(FLAGS.keys() - {"config"})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)
)


FIELDS = sorted(config_document(KubeProxyConfiguration()).keys() - HEAD.keys())


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(decode_config(text), Decoded)
    except ConfigError as error:
        assert str(error)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
def test_any_value_of_any_field_is_read_or_refused(fields: dict[str, object]) -> None:
    try:
        text = format_yaml(HEAD | fields)
        config = complete_platform(apply_defaults(decode_config(text).config))
    except ConfigError as error:
        assert str(error)
    else:
        validate(config)
        assert format_config(config)


@given(st.lists(st.text() | st.builds("--{}={}".format, st.sampled_from(NAMES), st.text())))
def test_any_command_line_is_answered(argv: list[str]) -> None:
    if any(word.startswith("--config") for word in argv):
        return
    assert isinstance(parse_command_line(argv), Exit | Settings)


@given(st.dictionaries(st.from_regex(r"[A-Za-z]+", fullmatch=True), st.booleans()))
def test_maps_of_gates_parse_back(gates: dict[str, bool]) -> None:
    assert BOOL_MAP.parse(BOOL_MAP.format(gates), None) == gates


@given(st.lists(st.tuples(st.from_regex(r"[a-z*?]+", fullmatch=True), st.integers(0, 9))))
def test_patterns_parse_back(pairs: list[tuple[str, int]]) -> None:
    items = tuple(VModuleItem(file_pattern=name, verbosity=level) for name, level in pairs)
    assert VMODULE.parse(VMODULE.format(items), None) == items


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126))))
def test_lists_parse_back(words: list[str]) -> None:
    value = tuple(word for word in words if word)
    assert STRINGS.parse(STRINGS.format(value)[1:-1], None) == value


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_duration_flags_parse_back(nanoseconds: int) -> None:
    value = Duration(nanoseconds)
    assert DURATION.parse(DURATION.format(value), None) == value


@pytest.mark.parametrize("text", ["a: &x [*x]", "[" * 5000 + "]" * 5000])
def test_endless_documents_are_refused(text: str) -> None:
    with pytest.raises(YamlError):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["{a: 1}: 2", "? [a]\n: 2", "a: \x01"])
def test_odd_documents_are_refused(text: str) -> None:
    with pytest.raises(YamlError, match="yaml: "):
        parse_yaml(text)
