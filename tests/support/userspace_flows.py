"""The flow corpus as it holds in userspace mode.

What a proxy in user space cannot do is left out here and nowhere else, each with its reason:
SCTP; the client's address (the pod sees the node that carried the connection); and flows in which
connections or affinity outlive the proxy that carries and remembers them.
"""

from __future__ import annotations

from msgspec.structs import replace

from kpctl.flows.flow import (
    OTHERWISE,
    Apply,
    Check,
    Flow,
    Packets,
    ServiceText,
    Step,
    SwitchMode,
)
from kpctl.flows.text import Expected
from kubeproxy.facts.ids import Protocol

NOT_IN_USERSPACE = {
    "04-node-port-localhost-ipv6": "node ports are served at ::1 too: nothing is routed there",
}
NOT_OURS = {
    **NOT_IN_USERSPACE,
    "08-affinity-restart": "affinity is remembered by the process that is restarted",
    "11-restart": "open connections are carried by the process that is restarted",
}


def without_sctp(service: ServiceText) -> ServiceText:
    ports = tuple(port for port in service.ports if port.protocol is not Protocol.SCTP)
    return replace(service, ports=ports)


def unseen(expected: Expected) -> Expected:
    """The endpoint sees the proxy, not the client."""
    answers = tuple(replace(a, seen="") for a in expected.answers)
    return replace(expected, answers=answers)


def adapted(step: Step, sctp_ports: frozenset[str]) -> Step:
    if isinstance(step, Apply):
        return Apply(tuple(map(without_sctp, step.services)))
    if not isinstance(step, Packets):
        return step
    kept = [
        Check(check.packet, {OTHERWISE: unseen(check.expected("userspace"))})
        for check in step.checks
        if check.packet.protocol is not Protocol.SCTP and check.packet.port not in sctp_ports
    ]
    return Packets(tuple(kept))


def for_userspace(flow: Flow) -> Flow:
    sctp = frozenset(
        port.name for s in flow.services for port in s.ports if port.protocol is Protocol.SCTP
    )
    return replace(
        flow,
        services=tuple(map(without_sctp, flow.services)),
        steps=tuple(adapted(step, sctp) for step in flow.steps),
    )


def is_ours(flow: Flow) -> bool:
    switches = [step.other for step in flow.steps if isinstance(step, SwitchMode)]
    return (
        flow.name not in NOT_OURS
        and flow.runs_in("userspace")
        and all("userspace" in other for other in switches)
    )
