"""The effective configuration written out: the exact default, and what differs from it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.config.decode import decode_config
from kubeproxy.config.load import load
from kubeproxy.config.parse import parse_flags
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.config.write import config_document, format_config, write_config
from kubeproxy.errors import ConfigError
from kubeproxy.go.yaml import format_yaml, parse_yaml, resolve

GOLDEN = (Path(__file__).parent / "default.yaml").read_text()


def effective(*argv: str) -> KubeProxyConfiguration:
    return load(parse_flags(argv)).config


def test_the_default_is_written_byte_for_byte() -> None:
    assert format_config(effective("--write-config-to=x")) == GOLDEN


def test_a_minimal_file_gives_the_same(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    )
    assert format_config(effective(f"--config={config}")) == GOLDEN


def test_what_was_written_can_be_read(tmp_path: Path) -> None:
    config = effective("--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8,fd00::/8", "-v3")
    path = tmp_path / "out.yaml"
    write_config(str(path), config)
    assert decode_config(path.read_text()).strict_problem == ""
    assert effective(f"--config={path}") == config


def test_only_the_chosen_modes_periods_are_shown() -> None:
    shown = yaml.safe_load(format_config(effective("--proxy-mode=ipvs", "--masquerade-all")))
    assert (shown["ipvs"]["syncPeriod"], shown["ipvs"]["minSyncPeriod"]) == ("30s", "1s")
    assert (shown["iptables"]["syncPeriod"], shown["iptables"]["masqueradeAll"]) == ("0s", True)
    assert shown["nftables"]["syncPeriod"] == "0s"


def test_lists_and_ipv6_texts_look_as_upstream_writes_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        "bindAddress: '::'\nmode: nftables\nlogging: {flushFrequency: 7}\n"
        "featureGates: {ComponentFlagz: false}\n"
    )
    text = format_config(effective(f"--config={config}", "--nodeport-addresses=x"))
    assert "\nbindAddress: '::'\n" in text
    assert "\nhealthzBindAddress: '[::]:10256'\n" in text
    assert "\nnodePortAddresses:\n- primary\n" in text
    assert "\n  flushFrequency: 7\n" in text
    assert "\nfeatureGates:\n  ComponentFlagz: false\n" in text


def test_an_explicitly_empty_list_is_not_null() -> None:
    text = format_config(effective("--write-config-to=x", "--nodeport-addresses="))
    assert "\nnodePortAddresses: []\n" in text


def test_the_document_for_configz_holds_the_same() -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(config_document(effective())))
    assert decoded == yaml.safe_load(GOLDEN)


def test_an_unwritable_path_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_config(str(tmp_path / "no" / "file"), effective())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True), ("N", False), ("~", None), ("", None), ("010", 8), ("0x10", 16),
        ("0b11", 3), ("1_000", 1000), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("-7", -7),
        ("1:30", "1:30"), ("2026-11-15", "2026-11-15"), ("abc", "abc"), ("yES", "yES"),
        ("_1", "_1"), ("-.inf", -math.inf), ("1e999", "1e999"),
        ("10.0.0.0", "10.0.0.0"), ("99999999999999999999", 1e20),
    ],
)  # fmt: skip
def test_what_a_plain_scalar_means(text: str, value: object) -> None:
    found = resolve(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [("yes", '"yes"'), ("10", '"10"'), ("1:30", '"1:30"'), ("", '""'), ("fd00::1", "fd00::1"),
     ("2026-11-15", '"2026-11-15"'), ("a b", "a b"), ("- a", "'- a'"),
     ("=", "="), ("_1", "_1"), (".inf", '".inf"')],
)  # fmt: skip
def test_texts_are_quoted_only_where_they_must_be(value: str, text: str) -> None:
    assert format_yaml({"k": value}) == f"k: {text}\n"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62)
        | st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
    )
)  # fmt: skip
def test_yaml_that_is_formatted_parses_back(value: object) -> None:
    assert parse_yaml(format_yaml({"k": value})).value == {"k": value}


def test_a_flag_that_is_no_text_is_named() -> None:
    """As `--ipvs-scheduler=$'\\xff'`, whose byte Python holds as half a character."""
    config = msgspec.structs.replace(
        KubeProxyConfiguration(), hostname_override=os.fsdecode(b"a\xff")
    )
    with pytest.raises(ConfigError, match="it is not text in UTF-8"):
        format_config(config)
