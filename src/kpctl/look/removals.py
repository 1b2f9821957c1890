"""Which Services an apply would remove from the kernel although no file names them. Pure.

The kernel has no list of Services. Their names stand in the comments of rules and elements; where
there is none (IPVS, or iptables in large clusters), a Service is known by where it is served.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from kubeproxy.facts.address import join_host_port, parse_ip

_COMMENT = re.compile(r'comment (?:"([^"]*)"|([^\s"-]\S*))')
_NAME = re.compile(r"(?<![\w./-])([a-z0-9][a-z0-9-]*)/([a-z0-9][a-z0-9.-]*)(?![\w./])")
_SERVER = re.compile(r"^-A (?:-t|-u|--sctp-service) (\S+)")
_RULE = re.compile(r"^-t \S+ -A KUBE-SERVICES .*?-d (\S+?)(?:/32|/128)? .*?--dport (\d+)")


def unnamed_services(
    removed: Iterable[str], services: Collection[str], places: Collection[str]
) -> list[str]:
    """Return the Services in these lines that are none of `services`, served at none of `places`.

    They are given as `shop/web`, or as `the Service at 10.96.0.10:80`.
    """
    found: dict[str, None] = {}
    for line in removed:
        names = list(_names(line))
        found |= dict.fromkeys(name for name in names if name not in services)
        place = "" if names else _place(line)
        if place and place not in places:
            found[f"the Service at {place}"] = None
    return sorted(found)


def _names(line: str) -> Iterator[str]:
    for quoted, plain in _COMMENT.findall(line):
        for namespace, name in _NAME.findall(quoted or plain):
            # A network such as 10.0.0.0/8 is no name.
            if re.search("[a-z]", name):
                yield f"{namespace}/{name}"


def _place(line: str) -> str:
    server = _SERVER.search(line)
    if server:
        return server[1]
    rule = _RULE.search(line)
    return join_host_port(rule[1], int(rule[2])) if rule and parse_ip(rule[1]) else ""
