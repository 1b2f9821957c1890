"""What is fuzzed: functions of bytes that return if all is well and raise what was found.

Any bytes must lead to a value or to one of the errors that the caller of the codec handles. Some
targets demand more: what is held stays bounded, pieces of any size mean the same, a stream goes on
after what was refused.

The kernel is no attacker, but what its tables hold is written by other programs; a sink turns any
exception of a parser into a failed round. So netlink parsers may raise `MALFORMED`, and nothing
that would come from a mistake in the parser itself.
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping

import msgspec

from kpctl.snapshot.answers import decode_answer
from kubeproxy.api import decode, objects
from kubeproxy.api.auth.access import Access, ExecSpec
from kubeproxy.api.auth.exec_plugin import decode_credential
from kubeproxy.api.auth.kubeconfig import access_from, merge, parse_kubeconfig
from kubeproxy.api.json_text import NotJson, cut_deep, parse_json
from kubeproxy.api.manifest_text import decode_text, parse_manifest
from kubeproxy.api.response_wire import (
    MOST_PIECE_BYTES,
    Head,
    Malformed,
    open_body,
    open_content,
    parse_head,
)
from kubeproxy.api.source import Kind, Upsert
from kubeproxy.api.watch import Failed, Garbled, Tracker, decode_status
from kubeproxy.config.decode import decode_config
from kubeproxy.config.defaults import apply_defaults, complete_platform
from kubeproxy.config.validate import validate
from kubeproxy.errors import ConfigError, ObjectError, Unavailable
from kubeproxy.facts.address import parse_cidr, parse_ip
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.go.csv import parse_record
from kubeproxy.go.duration import parse_duration
from kubeproxy.go.hostport import split_host_port
from kubeproxy.go.quantity import parse_quantity
from kubeproxy.go.yaml import YamlError, parse_documents
from kubeproxy.inspection.types import Changes, Held, History, Status
from kubeproxy.kernel.conntrack import entries
from kubeproxy.kernel.conntrack import wire as conntrack
from kubeproxy.kernel.ipset import wire as ipset
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.nfacct import wire as nfacct
from kubeproxy.kernel.nflog import wire as nflog
from kubeproxy.kernel.nftables import traces
from kubeproxy.kernel.nftables import wire as nftables
from kubeproxy.kernel.route import wire as route
from kubeproxy.kernel.sock_diag import wire as sock_diag
from kubeproxy.logs.entry import Entry, format_json, format_text
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.comments import service_port_of
from kubeproxy.modes.netfilter.rules.text import format_restore, parse_save
from kubeproxy.modes.nftables.compile import codec as expressions
from kubeproxy.modes.userspace.carrier.messages import FrameDecoder
from kubeproxy.status.http import Response
from kubeproxy.status.http_reader import RequestReader
from kubeproxy.status.http_wire import (
    MAX_HEAD_BYTES,
    Refused,
    format_refusal,
    format_response,
)

Target = Callable[[bytes], None]

MALFORMED = (struct.error, ValueError, IndexError, KeyError)


def all_of(data: bytes, parsers: Iterable[Callable[[bytes], object]]) -> None:
    """Give the same bytes to each parser. One that refuses them is no reason to skip the others."""
    for parse in parsers:
        with contextlib.suppress(*MALFORMED):
            found = parse(data)
            if isinstance(found, Iterable):
                for _ in found:
                    pass


# --- netlink ---


def netlink(data: bytes) -> None:
    """Datagrams, attributes and errors, as every family has them."""
    for message in codec.iter_messages(data):
        for _, value in codec.iter_attrs(message.body):
            codec.text(value)
            codec.be(value)
            all_of(value, (codec.u16, codec.u32))
        with contextlib.suppress(*MALFORMED):
            codec.parse_failure(message)
    codec.parse_attrs(data)


def conntrack_messages(data: bytes) -> None:
    for family in Family:
        with contextlib.suppress(*MALFORMED):
            conntrack.parse_listing(data, family, Protocol.UDP)
        with contextlib.suppress(*MALFORMED):
            entries.parse_entries(data, family)
    with contextlib.suppress(*MALFORMED):
        entries.parse_events(data)


def ipset_messages(data: bytes) -> None:
    all_of(data, (ipset.parse_revision, ipset.parse_head))
    for kind in ipset.SetType:
        with contextlib.suppress(*MALFORMED):
            list(ipset.parse_entries(data, kind))


def ipvs_messages(data: bytes) -> None:
    all_of(data, (ipvs.parse_service, ipvs.parse_timeouts))
    for family in Family:
        with contextlib.suppress(*MALFORMED):
            ipvs.parse_destination(data, family)


def small_families(data: bytes) -> None:
    """nfacct, nflog, rtnetlink and sock_diag."""
    for family in Family:
        sock_diag.parse_socket(data, family)
    all_of(
        data,
        (nfacct.parse_counter, route.parse_link, route.parse_address, route.parse_address_link),
    )
    for message in codec.iter_messages(data):
        with contextlib.suppress(*MALFORMED):
            nflog.parse_packet(message)


_NFTABLES = (
    *(nftables.parse_table, nftables.parse_chain, nftables.parse_set, nftables.parse_object),
    *(nftables.parse_flowtable, nftables.parse_notification, nftables.parse_committer),
    traces.parse_trace,
)


def nftables_messages(data: bytes) -> None:
    """Tables, chains, sets, notifications and traces."""
    for message in codec.iter_messages(data):
        for parse in _NFTABLES:
            with contextlib.suppress(*MALFORMED):
                found = parse(message)
                if isinstance(found, nftables.SetInfo):
                    expressions.parse_set(found)


def nftables_rules(data: bytes) -> None:
    """Rules and elements, down to the expressions that ours are compared with."""
    for message in codec.iter_messages(data):
        with contextlib.suppress(*MALFORMED):
            expressions.parse_rule(nftables.parse_rule(message))
        with contextlib.suppress(*MALFORMED):
            for element in nftables.parse_elements(nftables.parse_element_list(message)):
                for raw in (element.key, element.data):
                    with contextlib.suppress(*MALFORMED):
                        nftables.parse_value(raw or b"")
                        nftables.parse_verdict(raw or b"")


def iptables_save(data: bytes) -> None:
    """What iptables-save prints of everyone's rules."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        tables = parse_save(text)
    except ValueError:
        return
    assert parse_save(format_restore(tables)) == tables
    for table in tables:
        for chain in table.rules:
            for line in table.lines(chain):
                service_port_of(line)
                canonical_rule(line)


# --- the API server ---

_GOOD = b'{"type":"ADDED","object":{"metadata":{"name":"good","namespace":"ns"},"spec":{}}}\n'


def watch_stream(data: bytes) -> None:
    """A watch in pieces; the first byte is their size. A new stream after it works as ever."""
    size = data[0] + 1 if data else 1
    for kind in (Kind.SERVICE, Kind.ENDPOINT_SLICE):
        tracker = Tracker(kind)
        tracker.begin_list()
        for start in range(1, len(data), size):
            events = tracker.feed(data[start : start + size])
            if events and isinstance(events[-1], Failed | Garbled):
                break
        tracker.begin_stream()
        last = tracker.feed(_GOOD)
        assert any(isinstance(event, Upsert) for event in last), last


def list_page(data: bytes) -> None:
    for kind in Kind:
        tracker = Tracker(kind)
        tracker.begin_list()
        list(tracker.feed_page(data).events)
    decode_status(data)


def api_objects(data: bytes) -> None:
    """Objects as JSON, decoded into facts."""
    uses: dict[type, Callable[[object], object]] = {
        objects.Service: _use_service,
        objects.EndpointSlice: _use_slice,
        objects.Node: _use_node,
        objects.ServiceCIDR: _use_service_cidr,
    }
    for kind, use in uses.items():
        with contextlib.suppress(NotJson, ObjectError):
            use(parse_json(msgspec.json.Decoder(kind), data).value)


def _use_service(found: object) -> None:
    assert isinstance(found, objects.Service)
    decode.is_selected_service(found)
    for family in Family:
        decode.decode_service(found, family)


def _use_slice(found: object) -> None:
    assert isinstance(found, objects.EndpointSlice)
    decode.is_selected_slice(found)
    decode.decode_slice(found, "worker-a")


def _use_node(found: object) -> None:
    assert isinstance(found, objects.Node)
    decode.decode_node_ips(found)
    decode.decode_pod_cidrs(found)
    decode.decode_zone(found)
    decode.is_eligible_node(found)


def _use_service_cidr(found: object) -> None:
    assert isinstance(found, objects.ServiceCIDR)
    decode.decode_service_cidrs(found)


def json_cutting(data: bytes) -> None:
    """What is cut because it is deep is JSON if it was before."""
    cut = cut_deep(data, 20)
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return
    json.loads(cut)


_SPEC = ExecSpec("plugin", "client.authentication.k8s.io/v1")


def credential(data: bytes) -> None:
    with contextlib.suppress(Unavailable):
        decode_credential(data, _SPEC)


# --- HTTP ---


def http_requests(data: bytes) -> None:
    """Requests in pieces; the first byte is their size."""
    size = data[0] + 1 if data else 1
    whole = _requests(data[1:], max(len(data), 1))
    assert _requests(data[1:], size) == whole


def http_responses(data: bytes) -> None:
    """What an API server answers, in pieces; the first byte is their size."""
    size = data[0] + 1 if data else 1
    head, _, body = data[1:].partition(b"\r\n\r\n")
    try:
        found = parse_head(head + b"\r\n\r\n")
    except Malformed:
        return
    assert 100 <= found.status <= 999
    whole = _content(found, body, max(len(body), 1))
    assert _content(found, body, size) == whole


def _content(head: Head, data: bytes, size: int) -> bytes | None:
    """The content of a response; None if it is not one, or not at its end."""
    taken = b""
    try:
        body, content = open_body(head), open_content(head)
        for start in range(0, len(data), size):
            if not body.is_done:
                left = body.feed(data[start : start + size])
                while left:
                    piece, left = content.decode(left)
                    taken += piece
                    assert len(piece) <= max(MOST_PIECE_BYTES, size)
        if not body.is_done:
            body.end()
        return taken + content.end()
    except Malformed:
        return None


def _requests(data: bytes, size: int) -> list[object]:
    reader, found = RequestReader(), list[object]()
    try:
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
            while incoming := reader.next():
                closes = incoming.closes
                shown = format_response(Response(b"x"), incoming.head, 0, closes=closes)
                assert shown.startswith(b"HTTP/1.") and shown.count(b"\r\n\r\n") == 1
                found.append(incoming)
                if closes:
                    return found
            assert reader.held_bytes <= MAX_HEAD_BYTES + size
    except Refused as refused:
        assert format_refusal(refused).startswith(b"HTTP/1.1 ")
        found.append(refused.line)
    return found


# --- our own processes ---


def inspection(data: bytes) -> None:
    """What a daemon of another version answers to kpctl."""
    for kind in (Status, History, Held, Changes):
        with contextlib.suppress(msgspec.DecodeError):
            decode_answer(data, kind)


def carrier_frames(data: bytes) -> None:
    for direction in (FrameDecoder.commands, FrameDecoder.replies):
        decoder = FrameDecoder()
        decoder.feed(data)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            for _ in direction(decoder):
                pass


_HEADER = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [^ ]+\] ")


def log_lines(data: bytes) -> None:
    """A line per message, whatever is in it."""
    text = data.decode("utf-8", "surrogateescape")
    values: dict[str, object] = {"a": text, "list": [text], "name": ServiceName(text, text)}
    for entry in (
        Entry(message=text, values=values, error=text),
        Entry(message=text, is_structured=False),
    ):
        first, *others = format_text(entry).split("\n")[:-1]
        assert _HEADER.match(first)
        assert all(line.startswith(("\t", " >")) for line in others)
        line = format_json(entry)
        assert line.endswith("}\n") and line.count("\n") == 1
        json.loads(line)


# --- files and flags ---


def yaml_text(data: bytes) -> None:
    with contextlib.suppress(YamlError):
        for _ in parse_documents(data):
            pass


def manifests(data: bytes) -> None:
    with contextlib.suppress(ObjectError):
        parse_manifest(decode_text(data))


def configuration(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ConfigError):
        config = complete_platform(apply_defaults(decode_config(text).config))
        validate(config)


def kubeconfig(data: bytes) -> None:
    try:
        found = parse_kubeconfig(data)
    except ValueError:
        return
    with contextlib.suppress(ConfigError):
        access = access_from(merge([found]))
        assert isinstance(access, Access) and access.host is not None


_TEXTS: Mapping[str, Callable[[str], object]] = {
    "duration": parse_duration,
    "quantity": parse_quantity,
    "record": parse_record,
    "host and port": split_host_port,
    "address": parse_ip,
    "network": parse_cidr,
}


def small_texts(data: bytes) -> None:
    """Values of flags and fields: durations, quantities, lists, addresses."""
    text = data.decode("utf-8", "replace")
    for parse in _TEXTS.values():
        with contextlib.suppress(ValueError):
            parse(text)


TARGETS: Mapping[str, Target] = {
    "netlink": netlink,
    "conntrack": conntrack_messages,
    "ipset": ipset_messages,
    "ipvs": ipvs_messages,
    "small-families": small_families,
    "nftables": nftables_messages,
    "nftables-rules": nftables_rules,
    "iptables-save": iptables_save,
    "response": http_responses,
    "watch": watch_stream,
    "list": list_page,
    "objects": api_objects,
    "json-cutting": json_cutting,
    "credential": credential,
    "http": http_requests,
    "inspection": inspection,
    "carrier": carrier_frames,
    "log": log_lines,
    "yaml": yaml_text,
    "manifests": manifests,
    "configuration": configuration,
    "kubeconfig": kubeconfig,
    "small-texts": small_texts,
}
