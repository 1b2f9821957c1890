"""Numbers, booleans, sizes, quoted strings and addresses as Go reads and prints them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.go.floats import format_general, format_json_number, parse_float32
from kubeproxy.go.hostport import split_host_port
from kubeproxy.go.quantity import Quantity, parse_quantity
from kubeproxy.go.quoting import quote
from kubeproxy.go.text import parse_bool, parse_int32, parse_uint31


@pytest.mark.parametrize(
    ("text", "value"),
    [("14", 14), ("-5", -5), ("+5", 5), ("0x1F", 31), ("0o17", 15), ("017", 15), ("0b11", 3),
     ("1_000", 1000), ("0", 0), ("-2147483648", -(1 << 31))],
)  # fmt: skip
def test_integers_of_any_base(text: str, value: int) -> None:
    assert parse_int32(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "error"),
    [
        (parse_int32, "x", 'strconv.ParseInt: parsing "x": invalid syntax'),
        (parse_int32, "", 'strconv.ParseInt: parsing "": invalid syntax'),
        (parse_int32, "1.5", 'strconv.ParseInt: parsing "1.5": invalid syntax'),
        (parse_int32, "08", 'strconv.ParseInt: parsing "08": invalid syntax'),
        (
            parse_int32,
            "2147483648",
            'strconv.ParseInt: parsing "2147483648": value out of range',
        ),
        (parse_uint31, "-1", 'strconv.ParseUint: parsing "-1": invalid syntax'),
        (
            parse_uint31,
            "2147483648",
            'strconv.ParseUint: parsing "2147483648": value out of range',
        ),
        (parse_bool, "yes", 'strconv.ParseBool: parsing "yes": invalid syntax'),
        (parse_float32, "a", 'strconv.ParseFloat: parsing "a": invalid syntax'),
        (parse_float32, "1e40", 'strconv.ParseFloat: parsing "1e40": value out of range'),
    ],
)
def test_errors_have_gos_words(parse: Callable[[str], object], text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_words_for_true(word: str) -> None:
    assert parse_bool(word) is True


@pytest.mark.parametrize("word", ["0", "f", "F", "FALSE", "false", "False"])
def test_words_for_false(word: str) -> None:
    assert parse_bool(word) is False


@pytest.mark.parametrize(
    ("value", "text"), [(5.0, "5"), (2.5, "2.5"), (-1.0, "-1"), (0.1, "0.1"), (0.0, "0")]
)
def test_floats_are_short(value: float, text: str) -> None:
    assert format_general(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (5.0, "5"), (2.5, "2.5"), (1e20, "1" + "0" * 20), (1e21, "1e+21"), (1e-7, "1e-7")],
)
def test_numbers_in_json_errors_have_short_exponents(value: float, text: str) -> None:
    assert format_json_number(value) == text


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain", '"plain"'),
        ('a"b', r'"a\"b"'),
        ("a\\b", r'"a\\b"'),
        ("a\nb\t", r'"a\nb\t"'),
        ("\x00\x7f", r'"\x00\x7f"'),
        ("\u200b", r'"\u200b"'),
        ("\U000e0001", r'"\U000e0001"'),
        ("müll", '"müll"'),
    ],
)
def test_quoting(text: str, quoted: str) -> None:
    assert quote(text) == quoted


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("10.0.0.1:80", ("10.0.0.1", "80")),
        ("[::1]:80", ("::1", "80")),
        (":80", ("", "80")),
        ("host:", ("host", "")),
    ],
)
def test_host_and_port_are_split(text: str, pair: tuple[str, str]) -> None:
    assert split_host_port(text) == pair


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("foo", "missing port in address"),
        ("::1", "too many colons in address"),
        ("[::1]", "missing port in address"),
        ("[::1]x:80", "missing port in address"),
        ("[::1]:80:90", "too many colons in address"),
        ("[::1:80", "missing ']' in address"),
        ("a[b:80", "unexpected '[' in address"),
        ("a]b:80", "unexpected ']' in address"),
        ("[a[b]:80", "unexpected '[' in address"),
        ("[a]:8]0", "unexpected ']' in address"),
    ],
)
def test_bad_host_and_port_say_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        split_host_port(text)
    assert str(caught.value) == f"address {text}: {reason}"


def test_an_empty_address_is_not_shown() -> None:
    with pytest.raises(ValueError, match=r"^missing port in address$"):
        split_host_port("")


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("0", 0, "0"),
        ("512", 512, "512"),
        ("1000", 1000, "1k"),
        ("1500", 1500, "1500"),
        ("1k", 1000, "1k"),
        ("2Ki", 2048, "2Ki"),
        ("1024Ki", 1048576, "1Mi"),
        ("1.5Ki", 1536, "1536"),
        ("0.5Ki", 512, "512"),
        ("100m", 1, "100m"),
        ("1e3", 1000, "1e3"),
        ("5e0", 5, "5e0"),
        ("-3M", -3000000, "-3M"),
    ],
)
def test_sizes_and_their_canonical_form(text: str, value: int, canonical: str) -> None:
    assert parse_quantity(text) == Quantity(value, canonical)


@pytest.mark.parametrize("text", ["", "abc", "1 k", "1.2.3"])
def test_bad_sizes_name_the_syntax(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match the regular expression"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1K", "1kk", "1ki"])
def test_bad_suffixes_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="unable to parse quantity's suffix"):
        parse_quantity(text)


@given(
    st.integers(min_value=0, max_value=1 << 50),
    st.sampled_from(["", "k", "M", "Ki", "Mi", "e3", "m"]),
)
def test_the_canonical_form_has_the_same_value(number: int, suffix: str) -> None:
    quantity = parse_quantity(f"{number}{suffix}")
    assert parse_quantity(quantity.text) == quantity
