"""rtnetlink: links and addresses as messages, both directions. Pure.

Why: the proxy lists the host's addresses, hears about changes, and (ipvs) keeps one dummy link.
That is five message types, a table of numbers. Promise: what is formatted here the kernel
accepts, what the kernel sends is parsed without loss of what we use. Leaves to others: sending
(`kernel.interfaces`).
"""

from __future__ import annotations

import socket
import struct

import msgspec

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec

RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22

GROUP_IPV4_ADDRESSES = 5
GROUP_IPV6_ADDRESSES = 9

SCOPE_LINK = 253

_IFLA_IFNAME = 3
_IFLA_LINKINFO = 18
_IFLA_INFO_KIND = 1
_IFA_ADDRESS = 1
_IFA_LOCAL = 2

_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")

_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_FAMILY = {int(number): family for family, number in _AF.items()}


class Link(msgspec.Struct, frozen=True, gc=False):
    """A network device; `kind` is its driver's name (`dummy`, `veth`), empty for a plain one."""

    index: int
    name: str
    kind: str = ""


class LinkAddress(msgspec.Struct, frozen=True, gc=False):
    """One address on one link, in canonical text."""

    link: int
    family: Family
    address: str
    prefix_length: int
    scope: int = 0


def list_links() -> bytes:
    """Body of a dump of all links."""
    return _IFINFO.pack(0, 0, 0, 0, 0)


def get_link(name: str) -> bytes:
    """Body of a request for one link."""
    return _IFINFO.pack(0, 0, 0, 0, 0) + codec.attr_str(_IFLA_IFNAME, name)


def new_link(name: str, kind: str) -> bytes:
    """Body that creates a link; it is not set up."""
    info = codec.attr_nested(_IFLA_LINKINFO, codec.attr_str(_IFLA_INFO_KIND, kind))
    return get_link(name) + info


def delete_link(index: int) -> bytes:
    return _IFINFO.pack(0, 0, index, 0, 0)


def parse_link(body: bytes) -> Link:
    """The link an RTM_NEWLINK speaks of."""
    _, _, index, _, _ = _IFINFO.unpack_from(body)
    attrs = codec.parse_attrs(body, _IFINFO.size)
    info = codec.parse_attrs(attrs.get(_IFLA_LINKINFO, b""))
    return Link(index, codec.text(attrs[_IFLA_IFNAME]), codec.text(info.get(_IFLA_INFO_KIND, b"")))


def list_addresses(family: Family | None = None) -> bytes:
    """Body of a dump of all addresses, of one family or of both."""
    return _IFADDR.pack(_AF[family] if family else 0, 0, 0, 0, 0)


def host_address(link: int, address: str) -> bytes:
    """Body that adds or deletes a host address (/32 or /128) on a link."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    head = _IFADDR.pack(family, len(packed) * 8, 0, 0, link)
    # The kernel wants the local address; IFA_ADDRESS is the peer's, the same without a peer.
    return head + codec.attr(_IFA_LOCAL, packed) + codec.attr(_IFA_ADDRESS, packed)


def address_link(body: bytes) -> int:
    """The link index an address message speaks of."""
    return int(_IFADDR.unpack_from(body)[4])


def parse_address(body: bytes) -> LinkAddress | None:
    """The address an RTM_NEWADDR or RTM_DELADDR speaks of; None for another kind of address."""
    number, prefix_length, _, scope, link = _IFADDR.unpack_from(body)
    attrs = codec.parse_attrs(body, _IFADDR.size)
    raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
    family = _FAMILY.get(number)
    if family is None or raw is None:
        return None
    return LinkAddress(link, family, socket.inet_ntop(number, raw), prefix_length, scope)
