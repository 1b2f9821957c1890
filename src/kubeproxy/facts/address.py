"""Addresses and networks as canonical text.

API objects may spell an address in several ways (leading zeros, IPv4-mapped IPv6, upper case).
Everything behind `api.decode` sees one spelling, so that equal addresses are equal strings.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from kubeproxy.facts.ids import Family

_PLAIN_GROUP = re.compile(r"[1-9a-f][0-9a-f]{0,3}", re.ASCII)
"""The last group of most IPv6 addresses: not zero, and as canonical text spells it."""
_SURPLUS_ZEROS = re.compile(r"(?<![0-9a-fA-F])0+(?=[0-9a-fA-F]{4})")
"""Zeros in front of the four digits of a group, which upstream accepts and Python does not."""
_LONGEST_ADDRESS = 128
"""No spelling of an address needs more; a longer text is refused before it is looked at."""


def parse_ip(text: str) -> tuple[Family, str] | None:
    """Family and canonical text of an address, or None.

    "Sloppy" like upstream: IPv4 numbers may have leading zeros and are decimal; an IPv4-mapped
    IPv6 address is an IPv4 address.
    """
    if len(text) > _LONGEST_ADDRESS:
        return None
    network, _, host = text.rpartition(".")
    if host in _OCTETS and _is_plain_ipv4_network(network):
        return Family.IPV4, text
    if ":" in text:
        return (Family.IPV6, text) if _is_plain_ipv6(text) else _parse_ipv6(text)
    stripped = _strip_zeros(text)
    return (Family.IPV4, stripped) if stripped else None


def _strip_zeros(text: str) -> str | None:
    """Dotted IPv4 without leading zeros, or None if it is no IPv4 address."""
    parts = text.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    numbers = [int(part) for part in parts]
    return ".".join(map(str, numbers)) if max(numbers) < 256 else None


def _parse_ipv6(text: str) -> tuple[Family, str] | None:
    if "%" in text:
        return None
    head, _, tail = text.rpartition(":")
    if "." in tail:
        stripped = _strip_zeros(tail)
        if stripped is None:
            return None
        text = f"{head}:{stripped}"
    address = _ipv6_address(text) or _ipv6_address(_SURPLUS_ZEROS.sub("", text))
    if address is None:
        return None
    if address.ipv4_mapped is not None:
        return Family.IPV4, str(address.ipv4_mapped)
    return Family.IPV6, address.compressed


def _ipv6_address(text: str) -> ipaddress.IPv6Address | None:
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        return None


def parse_cidr(text: str) -> tuple[Family, str] | None:
    """Family and canonical (masked) text of a network, or None."""
    base, slash, length = text.partition("/")
    parsed = parse_ip(base)
    if parsed is None or not slash or not (length.isascii() and length.isdigit()):
        return None
    family, address = parsed
    # A mapped address counts as IPv4, but its prefix length was written for 128 bits.
    prefix = int(length[-_LONGEST_ADDRESS:]) - (96 if ":" in base and family is Family.IPV4 else 0)
    if not 0 <= prefix <= family.bits:
        return None
    return family, str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))


def family_of(address_or_cidr: str) -> Family:
    """Family of a canonical text."""
    return Family.IPV6 if ":" in address_or_cidr else Family.IPV4


def is_zero_cidr(cidr: str) -> bool:
    """Does this canonical network contain every address of its family?"""
    return cidr.endswith("/0")


def is_loopback(address: str) -> bool:
    """Is this canonical address a loopback address?"""
    return address == "::1" or address.startswith("127.")


def is_ipv6_link_local(address: str) -> bool:
    """Is this canonical address in fe80::/10, as every IPv6 interface has one of its own?"""
    return address[:3] in ("fe8", "fe9", "fea", "feb") and address.find(":") == 4


def contains(cidr: str, address: str) -> bool:
    """Does the canonical network contain the canonical address of the same family?"""
    size, shift, prefix = _prefix_of(cidr)
    raw = pack_address(address)
    return len(raw) == size and int.from_bytes(raw, "big") >> shift == prefix


@lru_cache(maxsize=1024)
def _prefix_of(cidr: str) -> tuple[int, int, int]:
    """The bytes of an address, the bits behind the network's prefix, and that prefix."""
    network = ipaddress.ip_network(cidr)
    shift = network.max_prefixlen - network.prefixlen
    return network.max_prefixlen // 8, shift, int(network.network_address) >> shift


def contained_in_any(address: str, cidrs: Iterable[str]) -> bool:
    return any(contains(cidr, address) for cidr in cidrs)


def canonical_cidrs(cidrs: Iterable[str]) -> tuple[str, ...]:
    """The networks among these texts, in canonical spelling; what is no network is left out."""
    parsed = (parse_cidr(cidr.strip()) for cidr in cidrs)
    return tuple(found[1] for found in parsed if found is not None)


def merge_cidrs(cidrs: Iterable[str], family: Family) -> tuple[str, ...]:
    """The fewest networks that mean the same as these, which are all of this family."""
    if family is Family.IPV4:
        merged = ipaddress.collapse_addresses(map(ipaddress.IPv4Network, cidrs))
        return tuple(map(str, merged))
    return tuple(map(str, ipaddress.collapse_addresses(map(ipaddress.IPv6Network, cidrs))))


def pack_address(address: str) -> bytes:
    """A canonical address in network byte order."""
    if ":" in address:
        network, _, host = address.rpartition(":")
        return _pack_ipv6_network(network) + int(host or "0", 16).to_bytes(2, "big")
    network, _, host = address.rpartition(".")
    return _pack_ipv4_network(network) + _OCTETS[host]


def unpack_address(raw: bytes) -> str:
    """The canonical text of an address in network byte order, of 4 or of 16 bytes."""
    if len(raw) == 4:
        return ".".join(map(str, raw))
    # With zeros at either end the last group may be part of `::`, and the first ones may be an
    # embedded IPv4 address: then the text is not a network's with a group behind it.
    if not any(raw[:2]) or not any(raw[14:]):
        return str(ipaddress.IPv6Address(raw))
    return f"{_ipv6_network_text(raw[:14])}{int.from_bytes(raw[14:], 'big'):x}"


# All but the last octet or group: few networks hold many endpoints, so these caches nearly always
# hit. Without them `ipaddress` is a second of a cold start with 100,000 IPv6 endpoints.

_OCTETS = {str(number): bytes((number,)) for number in range(256)}


@lru_cache(maxsize=4096)
def _is_plain_ipv4_network(octets: str) -> bool:
    """Are these the first three octets of a canonical address?"""
    parts = octets.split(".")
    return len(parts) == 3 and all(part in _OCTETS for part in parts)


def _is_plain_ipv6(text: str) -> bool:
    """Is this a canonical address for certain? Whether it is depends on the last group only if that
    is zero."""
    network, _, group = text.rpartition(":")
    return bool(_PLAIN_GROUP.fullmatch(group)) and _is_plain_ipv6_network(network)


@lru_cache(maxsize=4096)
def _is_plain_ipv6_network(groups: str) -> bool:
    """Are these all but the last group of a canonical address that is no IPv4 address?"""
    return _parse_ipv6(f"{groups}:1") == (Family.IPV6, f"{groups}:1")


@lru_cache(maxsize=4096)
def _pack_ipv4_network(octets: str) -> bytes:
    return bytes(map(int, octets.split(".")))


@lru_cache(maxsize=4096)
def _pack_ipv6_network(groups: str) -> bytes:
    return ipaddress.IPv6Address(f"{groups}:0").packed[:14]


@lru_cache(maxsize=4096)
def _ipv6_network_text(groups: bytes) -> str:
    return str(ipaddress.IPv6Address(groups + b"\0\1"))[:-1]


def join_host_port(address: str, port: int) -> str:
    """`10.0.0.1:80` or `[fd00::1]:80`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
