"""Whatever an object holds, decoding it ends in facts or in one of two errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples

from kubeproxy.api import objects
from kubeproxy.api.decode import (
    decode_node_ips,
    decode_pod_cidrs,
    decode_service,
    decode_service_cidrs,
    decode_slice,
    is_eligible_node,
    is_selected_service,
    is_selected_slice,
)
from kubeproxy.api.source import Kind
from kubeproxy.errors import ObjectError
from kubeproxy.facts.ids import Family

TEXTS = st.one_of(
    st.sampled_from(
        [
            "TCP",
            "UDP",
            "Local",
            "ClientIP",
            "LoadBalancer",
            "IPv4",
            "IPv6",
            "FQDN",
            "InternalIP",
            "VIP",
        ]
    ),
    st.sampled_from(
        ["10.0.0.1", "fd00::1", "::ffff:1.2.3.4", "0.0.0.0", "10.0.0.0/8", "::/0", "None"]
    ),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "web", "default"]),
    st.sampled_from(["", "ü", "\x00", "a" * 300]),
    st.text(max_size=12),
)
NUMBERS = st.sampled_from([0, 1, 80, 65535, 65536, -1]) | st.integers()
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def shaped(info: msgspec.inspect.Type) -> st.SearchStrategy[object]:
    """Mostly what the type asks for, so that decoding gets far; now and then anything at all."""
    usual = _usual(info)
    return st.integers(0, 60).flatmap(lambda number: ANYTHING if number == 60 else usual)


def _usual(info: msgspec.inspect.Type) -> st.SearchStrategy[object]:
    match info:
        case msgspec.inspect.StructType():
            fields = {field.encode_name: shaped(field.type) for field in info.fields}
            return st.fixed_dictionaries({}, optional=fields)
        case msgspec.inspect.UnionType():
            known = [t for t in info.types if not isinstance(t, msgspec.inspect.CustomType)]
            return st.one_of([_usual(part) for part in known])
        case msgspec.inspect.ListType():
            return st.lists(shaped(info.item_type), max_size=3)
        case msgspec.inspect.StrType():
            return TEXTS
        case msgspec.inspect.IntType():
            return NUMBERS
        case msgspec.inspect.BoolType():
            return st.booleans()
        case _:
            return st.none()


def use_service(item: object) -> None:
    found = msgspec.convert(item, objects.Service)
    is_selected_service(found)
    for family in Family:
        decode_service(found, family)


def use_slice(item: object) -> None:
    found = msgspec.convert(item, objects.EndpointSlice)
    is_selected_slice(found)
    decode_slice(found, "worker-a")


def use_node(item: object) -> None:
    found = msgspec.convert(item, objects.Node)
    decode_node_ips(found)
    decode_pod_cidrs(found)
    is_eligible_node(found)


def use_service_cidr(item: object) -> None:
    decode_service_cidrs(msgspec.convert(item, objects.ServiceCIDR))


USES: dict[Kind, Callable[[object], None]] = {
    Kind.SERVICE: use_service,
    Kind.ENDPOINT_SLICE: use_slice,
    Kind.NODE: use_node,
    Kind.SERVICE_CIDR: use_service_cidr,
}


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
@given(data=st.data())
@settings(max_examples=examples(80), database=None)
def test_arbitrary_json_is_decoded_or_refused(kind: Kind, data: st.DataObject) -> None:
    """A round trip through JSON first, as an object arrives; only the two errors may escape."""
    item = data.draw(shaped(msgspec.inspect.type_info(kind.object_type)))
    with contextlib.suppress(msgspec.ValidationError, ObjectError):
        wire = msgspec.json.encode(item)
        msgspec.json.decode(wire, type=kind.object_type)
        USES[kind](msgspec.json.decode(wire))


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
@given(wire=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@settings(max_examples=examples(100), database=None)
def test_arbitrary_bytes_are_refused_as_values(kind: Kind, wire: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        msgspec.json.decode(wire, type=kind.object_type)
