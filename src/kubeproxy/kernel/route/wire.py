"""rtnetlink: links and addresses as messages, both directions. Pure.

Why: the proxy lists the host's addresses, receives events about them, and (in ipvs mode) keeps one
dummy link. That is five message types, a table of numbers. Promise: the kernel accepts what is
formatted here, and what it sends is parsed without loss of what we use. Leaves to others: sending
(`table`).

Constants have the names of linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.
"""

from __future__ import annotations

import struct

import msgspec

from kubeproxy.facts.address import family_of, pack_address, unpack_address
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink import codec

RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22

RTNLGRP_IPV4_IFADDR = 5
RTNLGRP_IPV6_IFADDR = 9

_IFLA_IFNAME = 3
_IFLA_LINKINFO = 18
_IFLA_INFO_KIND = 1
_IFA_ADDRESS = 1
_IFA_LOCAL = 2

_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")

_FAMILIES = {family.af: family for family in Family}


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


def format_link_dump() -> bytes:
    """Body of an RTM_GETLINK for all links."""
    return _IFINFOMSG.pack(0, 0, 0, 0, 0)


def format_link_name(name: str) -> bytes:
    """Body of an RTM_GETLINK for one link."""
    return _IFINFOMSG.pack(0, 0, 0, 0, 0) + codec.attr_str(_IFLA_IFNAME, name)


def format_new_link(name: str, kind: str) -> bytes:
    """Body of an RTM_NEWLINK. The link it creates is down."""
    info = codec.attr_nested(_IFLA_LINKINFO, codec.attr_str(_IFLA_INFO_KIND, kind))
    return format_link_name(name) + info


def format_link_index(index: int) -> bytes:
    """Body of an RTM_DELLINK."""
    return _IFINFOMSG.pack(0, 0, index, 0, 0)


def parse_link(body: bytes) -> Link:
    """The link of an RTM_NEWLINK."""
    _, _, index, _, _ = _IFINFOMSG.unpack_from(body)
    attrs = codec.parse_attrs(body, _IFINFOMSG.size)
    info = codec.parse_attrs(attrs.get(_IFLA_LINKINFO, b""))
    return Link(index, codec.text(attrs[_IFLA_IFNAME]), codec.text(info.get(_IFLA_INFO_KIND, b"")))


def format_address_dump(family: Family | None = None) -> bytes:
    """Body of an RTM_GETADDR for all addresses, of one family or of both."""
    return _IFADDRMSG.pack(family.af if family else 0, 0, 0, 0, 0)


def format_host_address(link: int, address: str) -> bytes:
    """Body of an RTM_NEWADDR or RTM_DELADDR for a host address (/32 or /128) on a link."""
    packed = pack_address(address)
    head = _IFADDRMSG.pack(family_of(address).af, len(packed) * 8, 0, 0, link)
    # The kernel wants the local address; IFA_ADDRESS is the peer's, the same without a peer.
    return head + codec.attr(_IFA_LOCAL, packed) + codec.attr(_IFA_ADDRESS, packed)


def parse_address_link(body: bytes) -> int:
    """The link index of an RTM_NEWADDR or RTM_DELADDR."""
    return int(_IFADDRMSG.unpack_from(body)[4])


def parse_address(body: bytes) -> LinkAddress | None:
    """The address of an RTM_NEWADDR or RTM_DELADDR; None if it is not an IP address."""
    number, prefix_length, _, _, link = _IFADDRMSG.unpack_from(body)
    attrs = codec.parse_attrs(body, _IFADDRMSG.size)
    raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
    family = _FAMILIES.get(number)
    if family is None or raw is None:
        return None
    return LinkAddress(link, family, unpack_address(raw), prefix_length)
