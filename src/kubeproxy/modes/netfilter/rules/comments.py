"""Comments as marks of ownership: which service port a rule in a shared chain belongs to. Pure.

Why: after a restart nothing but the rules themselves shows whose they are. Each rule of ours in a
shared chain has a comment that begins with the service port's name, as upstream writes it, and
names its protocol with `-p`. Promise: a rule that does not name a service port for certain is
recognised as none. Leaves to others: comments with another meaning.
"""

from __future__ import annotations

import re

from kubeproxy.modes.netfilter.items import SortKey

# iptables-save quotes every comment, but restore input need not quote one without spaces.
_COMMENT = re.compile(r'--comment (?:"([^"]*)"|(\S+))')
_PROTOCOL = re.compile(r"(?<= )-p (\S+)")


def comment_of(line: str) -> str | None:
    """The comment of a rule line, without quotes, or None if it has none."""
    found = _COMMENT.search(line)
    return None if found is None else found[1] or found[2]


def service_port_of(line: str) -> SortKey | None:
    """Namespace, name, port and protocol from a rule line, or None if it names no service port.

    The comment is `ns/name:port` or `ns/name`, alone or followed by a space and more words.
    """
    comment, protocol = comment_of(line), _PROTOCOL.search(line)
    if comment is None or protocol is None:
        return None
    namespace, slash, rest = comment.partition(" ")[0].partition("/")
    name, _, port = rest.partition(":")
    return (namespace, name, port, protocol[1].upper()) if slash else None
