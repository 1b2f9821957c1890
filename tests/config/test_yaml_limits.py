"""YAML that stands for far more than it says: bounded by upstream's rules, in time and memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.costs import megabytes, seconds_for

from kubeproxy.go.yaml import MOST_LEVELS, YamlError, parse_documents, parse_yaml

EXCESSIVE = "document contains excessive aliasing"


def bomb(levels: int, width: int = 9) -> str:
    """A text of a few hundred bytes that stands for `width ** levels` nodes."""
    lines = [f"a0: &a0 [{','.join(['x'] * width)}]"]
    lines += [
        f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * width)}]"
        for level in range(1, levels)
    ]
    return "\n".join(lines)


def repeated(nodes: int, aliases: int, padding: int = 0) -> str:
    """Nodes without alias first, then a list that is named once and repeated by alias."""
    return f"p: [{'y,' * padding}]\nb: &b [{'x,' * (nodes - 1)}]\nc: [{'*b,' * aliases}]\n"


@pytest.mark.parametrize("levels", [4, 8, 12, 40])
def test_a_bomb_is_refused_before_it_is_expanded(levels: int) -> None:
    def refuse() -> None:
        with pytest.raises(YamlError, match=EXCESSIVE):
            parse_yaml(bomb(levels))

    assert seconds_for(refuse) < megabytes(200)
    tracemalloc.start()
    refuse()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_bomb_of_mappings_and_merges_is_refused() -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [
        f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}, <<: *a{n - 1}, r: [*a{n - 1}, *a{n - 1}]}}"
        for n in range(1, 12)
    ]
    with pytest.raises(YamlError, match=EXCESSIVE):
        parse_yaml("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "is_excessive"),
    [
        (bomb(3), False),
        (bomb(4, 3), False),
        (repeated(11, 10), False),  # not more than 100 nodes by alias
        (repeated(11, 90), False),  # 990 of 1,200 nodes: 83 %
        (repeated(100, 60), False),  # 6,000 of 6,165 nodes: 97 %
        (repeated(1_000, 300), True),  # 300,000 of 301,307 nodes: more than 99 %
        (repeated(1_000, 300, padding=4_000), False),
        (repeated(1_000, 400, padding=390_000), False),  # 400,000 of 791,400: 51 % of 89 % allowed
        (repeated(1_000, 700, padding=10_000), True),  # 700,000 of 711,700: 98 % of 91 % allowed
    ],
)  # fmt: skip
def test_aliases_count_as_upstream_counts_them(text: str, is_excessive: bool) -> None:
    if is_excessive:
        with pytest.raises(YamlError, match=EXCESSIVE):
            parse_yaml(text)
    else:
        parse_yaml(text)


def test_every_document_is_counted_for_itself() -> None:
    texts = [repeated(11, 90)] * 20
    assert len(list(parse_documents("---\n".join(texts)))) == 20


def test_an_alias_shares_the_value_it_names() -> None:
    value = parse_yaml("a: &x [1]\nb: *x\nc: &y 5\n*y : {<<: &z {d: 1}, e: *z}").value
    assert isinstance(value, dict)
    assert value["a"] is value["b"]
    assert value["5"] == {"d": 1, "e": {"d": 1}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&a [*a]", "anchor 'a' value contains itself"),
        ("a: &b {c: [*b]}", "anchor 'b' value contains itself"),
        ("a: &b {<<: *b}", "anchor 'b' value contains itself"),
        ("[*nothing]", "unknown anchor 'nothing' referenced"),
        ("{a: {<<: 5}}", "map merge requires map or sequence of maps as the value"),
        ("? &a [b]\n: 1", "line 1: invalid map key"),
        ("x: &a [b]\n*a : 1", "line 2: invalid map key"),
        ("a: !!int word", "cannot decode !!str `word` as a !!int"),
        ("a: !!bool 5", "cannot decode !!int `5` as a !!bool"),
        ("a: \ud800", "half a character"),
    ],
)
def test_what_cannot_be_read_is_named_in_upstreams_words(text: str, reason: str) -> None:
    with pytest.raises(YamlError, match="yaml: ") as caught:
        parse_yaml(text)
    assert reason in str(caught.value)


def test_an_anchor_may_be_named_again_inside() -> None:
    assert parse_yaml("&a [&a [1], *a]").value == [[1], [1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("!!float 5", 5.0),
        ("!!null ''", None),
        ("!!bool yes", True),
        ("!other 5", "5"),
        ("! 5", "5"),
        ("!!python/object:os.system 5", "5"),
        ("!!set {a, b}", {"a": None, "b": None}),
    ],
)
def test_explicit_tags_mean_what_they_say(text: str, value: object) -> None:
    found = parse_yaml(f"x: {text}").value
    assert found == {"x": value}
    assert isinstance(found, dict) and type(found["x"]) is type(value)


@pytest.mark.parametrize("shape", ["[{}]", "{{a: {}}}", "[{{a: {}}}]", "- {}"])
def test_depth_has_a_limit(shape: str) -> None:
    def nest(levels: int) -> str:
        text = "1"
        for _ in range(levels):
            text = shape.format(text)
        return text

    per_shape = shape.count("[") + shape.count(": ") + shape.count("-")
    parse_yaml(nest(MOST_LEVELS // per_shape))
    with pytest.raises(YamlError, match=f"exceeded max depth of {MOST_LEVELS}"):
        parse_yaml(nest(MOST_LEVELS // per_shape + 1))


@pytest.mark.parametrize("piece", ["[", "{a: ", "- ", "? ", "[{a: ", "!!seq [", "&a ["])
def test_any_depth_ends_quickly(piece: str) -> None:
    """Scanning open brackets takes time by the square of their number."""

    def refuse() -> None:
        with pytest.raises(YamlError):
            parse_yaml(piece * 200_000)

    assert seconds_for(refuse) < megabytes(200)


@pytest.mark.parametrize(
    "scalar",
    [
        "9" * 1_000_000,
        "0x" + "f" * 100_000,
        "0b" + "1" * 100_000,
        "0." + "1" * 100_000,
        "1e" + "9" * 100_000,
        "1:" * 100_000 + "1",
        "+" * 100_000,
        "1_" * 100_000,
        "2026-01-01T" + "1" * 100_000,
        "'" + "a" * 1_000_000 + "'",
    ],
    ids=lambda text: text[:8],
)
def test_a_huge_scalar_is_read_or_refused(scalar: str) -> None:
    def read() -> None:
        found = parse_yaml(f"a: {scalar}").value
        assert isinstance(found, dict) and isinstance(found["a"], str | int | float)
        parse_yaml(f"{scalar}: a" if len(scalar) < 1000 else f"? {scalar}\n: a")

    assert seconds_for(read) < megabytes(400)


WORDS = st.sampled_from(
    ["&a ", "*a", "&b ", "*b", "[", "]", "{", "}", ",", ": ", "- ", "\n", "x", "<<", "? ", "!!int "]
)


@given(st.lists(WORDS, max_size=30).map("".join) | st.text() | st.binary())
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    try:
        for document in parse_documents(text):
            assert document is not None
    except YamlError as error:
        assert str(error)
