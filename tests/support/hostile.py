"""Texts that someone puts into objects, in the hope that a program takes them for something else.

None of them passes as a name (`api.decode`). `NAMES` have no blanks, quotes, slashes or control
characters, so that what comes later is tested with them, too: it must not rely on that check alone.
"""

from __future__ import annotations

import re

from tests.support.builders import endpoint, endpoint_slice, port, service

from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family
from kubeproxy.facts.service import ServiceFacts

NAMES = (
    *("web;reboot", "$(reboot)", "`reboot`", "a|b", "a&b", ">x", "<x", "a>b", "*", "?", "~", "!"),
    *("--jump", "-j", "-A", "COMMIT", "*nat", ":KUBE-SERVICES", "#comment", "%s%n%x", "{}", "}"),
    *("{{7*7}}", "${PATH}", "[red]x[bold]", "[link=x]", "<img-src=x-onerror=alert(1)>", "&amp;"),
    *("@everyone", "=1+1", "a,b", "a:b", "a=b", "__proto__", "null", "true", "~user", "a" * 253),
)

ESCAPE, CSI, BIDI = "\x1b[2J\x1b]0;title\x07", "\x9b2J", "\u202e"
LOG_LINE = 'I0101 00:00:00.000000       1 x.go:1] "forged"'
TEXTS = (
    *(ESCAPE, CSI, BIDI, "\r", "\x00", "\x7f", "\x85", "\u2028", "\ud800", "a\nb", "a\tb"),
    *(f"x\n{LOG_LINE}", "x\nCOMMIT\n*nat", 'a" -j ACCEPT "', "a' b", "a\\", "a/b", "", "x" * 254),
)

_CONTROL = re.compile(r"[^\n\t -~\u00a0-\U0010ffff]|[\u200b-\u200f\u2028-\u202e\u2060-\u2069]")


def commands_in(text: str) -> list[str]:
    """What a terminal would obey, or show where it is not, instead of printing it."""
    return _CONTROL.findall(text)


def hostile_services(family: Family = Family.IPV4) -> list[tuple[ServiceFacts, SliceFacts]]:
    """A Service of each name, in a namespace of each name, all of them served."""
    is_ipv4 = family is Family.IPV4
    found = []
    for number, name in enumerate(NAMES, 1):
        full = f"{NAMES[-number]}/{name}"
        facts = service(
            full,
            cluster_ip=f"10.96.0.{number}" if is_ipv4 else f"fd00:96::{number:x}",
            ports=[port(80, node_port=30000 + number)],
            affinity_seconds=60 * (number % 2),
            external_local=number % 3 == 0,
            external_ips=[f"203.0.113.{number}" if is_ipv4 else f"2001:db8::{number:x}"],
        )
        target = endpoint(f"10.244.1.{number}" if is_ipv4 else f"fd00:244::{number:x}", local=True)
        endpoints = [target] if number % 4 else []
        found.append((facts, endpoint_slice(full, endpoints, slice_name=f"s-{number}")))
    return found
