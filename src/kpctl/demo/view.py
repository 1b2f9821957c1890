"""What demo and lab print, as rich renderables. Pure functions over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kpctl.flows.flow import ServiceText
from kpctl.flows.objects import World
from kpctl.lab.topology import Topology
from kubeproxy.facts.ids import Family

_BAR = 12
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue")


class Line(msgspec.Struct, frozen=True):
    """One route at one moment: answers by endpoint, failures, connections a second."""

    label: str
    counts: Mapping[str, int]
    failed: int
    rate: float


class Claim(msgspec.Struct, frozen=True):
    """Something the demo showed, and whether it was true."""

    text: str
    holds: bool
    detail: str = ""


def cluster_view(topology: Topology) -> RenderableType:
    """The nodes with their pods."""
    table = Table(title="the cluster", title_justify="left", header_style="bold")
    for column in ("host", "what", "IPv4", "IPv6"):
        table.add_column(column)
    for node in topology.nodes:
        table.add_section()
        table.add_row(f"[bold]{node.name}", "node", node.addresses.ipv4, node.addresses.ipv6)
        for pod in node.pods:
            table.add_row(f"  {pod.name}", "pod", pod.addresses.ipv4, pod.addresses.ipv6)
    table.add_section()
    for client in topology.clients:
        table.add_row(client.name, "outside", client.addresses.ipv4, client.addresses.ipv6)
    return table


def services_view(services: Sequence[ServiceText], world: World) -> RenderableType:
    """The Services with their addresses and endpoints."""
    table = Table(title="the Services", title_justify="left", header_style="bold")
    for column in ("service", "type", "cluster IPs", "port", "endpoints"):
        table.add_column(column)
    for service in services:
        addresses = "\n".join(world.cluster_ip(service.name, family) for family in Family)
        ports = "\n".join(
            f"{p.port}/{p.protocol.value}" + (f", node port {p.node_port}" if p.node_port else "")
            for p in service.ports
        )
        endpoints = ", ".join(endpoint.host for endpoint in service.endpoints)
        table.add_row(f"[bold]{service.name}", service.type, addresses, ports, endpoints)
    return table


def traffic_view(title: str, lines: Sequence[Line], hosts: Sequence[str]) -> RenderableType:
    """Where connections went: a row per route, a bar per endpoint."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("connections")
    for host in hosts:
        table.add_column(host)
    table.add_column("/s", justify="right")
    table.add_column("failed", justify="right")
    for line in lines:
        total = max(sum(line.counts.values()), 1)
        bars = [
            _bar(line.counts.get(h, 0), total, c) for h, c in zip(hosts, _COLOURS, strict=False)
        ]
        failed = Text(str(line.failed), style="bold red" if line.failed else "dim")
        table.add_row(f"[bold]{line.label}", *bars, f"{line.rate:.0f}", failed)
    return Panel(table, title=title, title_align="left", border_style="dim", expand=False)


def _bar(count: int, total: int, colour: str) -> Text:
    bar = Text(f"{count:>4} ")
    bar.append(f"{'█' * round(_BAR * count / total):<{_BAR // 2 + 1}}", style=colour)
    return bar


def look_view(commands: Sequence[str], excerpt: Sequence[str]) -> RenderableType:
    """How to look at the rules, and a few of them."""
    lines = [Text(f"$ {command}", style="bold") for command in commands]
    shown = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in excerpt]
    body = Group(*lines, Text(), *shown)
    title = "look at the rules yourself (while a lab runs: kpctl lab)"
    return Panel(body, title=title, title_align="left", border_style="dim")


def reasons_view(command: str, lines: Sequence[str]) -> RenderableType:
    """A command that explains, and what it prints."""
    body = Group(Text(f"$ {command}", style="bold"), Text(), *map(Text, lines))
    return Panel(body, title="ask the proxy why", title_align="left", border_style="dim")


def claims_view(claims: Sequence[Claim]) -> RenderableType:
    """What was shown, and whether it was true."""
    table = Table.grid(padding=(0, 1))
    for claim in claims:
        sign = "[green]✔" if claim.holds else "[red]✘"
        table.add_row(sign, claim.text, f"[dim]{claim.detail}")
    return table
