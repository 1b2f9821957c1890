"""What becomes of a client's connection: who it is decides about policy, ranges and masquerading.

Pure, over plans. There are three kinds of clients, as in the rules of every mode: pods of this node
(by the local traffic detector), the node itself, and all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum

from msgspec import Struct

from kpctl.snapshot.target import WrongQuestion
from kubeproxy.facts.address import contained_in_any, contains, family_of, parse_ip
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import DetectorKind, NodeFacts
from kubeproxy.plan.guard import guard_text, refusal
from kubeproxy.plan.types import Frontend, Masquerade, Pool, ServicePlan, Verdict

FILTERS_SOURCES_FIRST = frozenset({"nftables"})
"""Modes that look at source ranges even where no endpoint would answer."""
CARRIES = frozenset({"userspace"})
"""Modes in which a process makes a connection of its own to the endpoint."""


class Kind(StrEnum):
    """Clients as the rules distinguish them."""

    POD = "a pod of this node"
    NODE = "the node itself"
    OUTSIDE = "anywhere else"


class Source(Struct, frozen=True):
    """A client. Without `address` it is any of its kind; `why` says how the kind was found."""

    kind: Kind
    address: str = ""
    why: str = ""

    @property
    def label(self) -> str:
        return f"{self.address} ({self.kind.value}: {self.why})" if self.why else self.kind.value


class Way(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a frontend does with one client's connections, and why.

    With `is_masqueraded` the endpoint sees an address of the node instead of the client's.
    """

    source: str
    verdict: str
    because: str
    endpoints: tuple[str, ...] = ()
    is_masqueraded: bool = False
    masquerade_because: str = ""

    @property
    def is_forwarded(self) -> bool:
        return self.verdict == Verdict.FORWARD.value


def check_source(text: str) -> str:
    """Return `node`, `outside` or a canonical address. Raises WrongQuestion."""
    if text in ("", "node", "outside"):
        return text
    parsed = parse_ip(text)
    if parsed is None:
        raise WrongQuestion(
            f"--from {text}: this is neither an IP address nor `node` nor `outside`"
        )
    return parsed[1]


def family_of_source(text: str) -> Family | None:
    """Return the family of a checked source, or None if it is of both."""
    return None if text in ("", "node", "outside") else family_of(text)


def sources_of(
    text: str, node: NodeFacts, local_addresses: Callable[[], Collection[str]]
) -> tuple[Source, ...]:
    """Return the clients that a checked `--from` means; without one, one of each kind.

    `local_addresses` returns those of endpoints on this node.
    """
    if text == "node":
        return (Source(Kind.NODE, node.ip, "by --from"),)
    if text == "outside":
        return (Source(Kind.OUTSIDE),)
    if text:
        return (_source_at(text, node, local_addresses),)
    pods = (Source(Kind.POD),) if node.detector.is_implemented else ()
    return (*pods, Source(Kind.NODE), Source(Kind.OUTSIDE))


def _source_at(
    address: str, node: NodeFacts, local_addresses: Callable[[], Collection[str]]
) -> Source:
    detector = node.detector
    if address == node.ip or address in node.addresses:
        return Source(Kind.NODE, address, "the node has this address")
    match detector.kind:
        case DetectorKind.CIDR:
            is_pod = contains(detector.value, address)
            where = "within" if is_pod else "not within"
            why = f"{where} {detector.value}, by which pods are recognised"
            return Source(Kind.POD if is_pod else Kind.OUTSIDE, address, why)
        case DetectorKind.NONE:
            return Source(Kind.OUTSIDE, address, "no local traffic detector, so no pod is one")
    by = f"pods are recognised by the interface {detector.value}"
    if address in local_addresses():
        return Source(Kind.POD, address, f"an endpoint on this node; {by}")
    return Source(Kind.OUTSIDE, address, f"no endpoint on this node; {by}")


def way_of(
    plan: ServicePlan, frontend: Frontend, source: Source, *, node: NodeFacts, mode: str
) -> Way:
    """Decide as the rules do."""
    filters = plan.has_endpoints or mode in FILTERS_SOURCES_FIRST
    if filters and not _is_admitted(frontend, source, node):
        ranges = ", ".join(frontend.source_ranges)
        return Way(
            source.label, Verdict.DROP.value, f"not within loadBalancerSourceRanges {ranges}"
        )
    refused = _refused(plan, source, node)
    if refused:
        return Way(source.label, Verdict.DROP.value, refused)
    ranges = "; ".join(filter(None, (_condition(frontend, source), _guard_condition(plan, source))))
    if frontend.has_short_circuit and source.kind is not Kind.OUTSIDE:
        because = "policy Local does not apply to pods of this node and the node itself"
        return _forward(plan.cluster, frontend, source, (because, ranges), node=node, mode=mode)
    if frontend.verdict is Verdict.FORWARD:
        pool = plan.pool(frontend.pool)
        reasons = (frontend.reason, pool.reason, ranges)
        return _forward(pool, frontend, source, reasons, node=node, mode=mode)
    return Way(source.label, frontend.verdict.value, frontend.reason)


def _is_admitted(frontend: Frontend, source: Source, node: NodeFacts) -> bool:
    address = source.address or (node.ip if source.kind is Kind.NODE else "")
    if not frontend.source_ranges or not address or address in frontend.vip_sources:
        return True
    # A node within the ranges may come with the VIP itself as its address.
    return contained_in_any(address, frontend.source_ranges)


def _refused(plan: ServicePlan, source: Source, node: NodeFacts) -> str:
    """Why lists of sources keep this client out; without an address it may be any of its kind."""
    address = source.address or (node.ip if source.kind is Kind.NODE else "")
    if not plan.has_endpoints or not address:
        return ""
    return refusal(plan.guard, address)


def _guard_condition(plan: ServicePlan, source: Source) -> str:
    if plan.guard is None or source.kind is Kind.NODE:
        return ""
    return "admitted by its lists of sources" if source.address else guard_text(plan.guard)


def _condition(frontend: Frontend, source: Source) -> str:
    if not frontend.source_ranges:
        return ""
    ranges = ", ".join(frontend.source_ranges)
    return f"within {ranges}" if source.address else f"only from {ranges}"


def _forward(
    pool: Pool,
    frontend: Frontend,
    source: Source,
    because: tuple[str, ...],
    *,
    node: NodeFacts,
    mode: str,
) -> Way:
    is_masqueraded, why = _masquerade(frontend, source, node=node, mode=mode)
    if not is_masqueraded and any(e.address == source.address for e in pool.endpoints):
        why += "; only where it reaches itself the endpoint sees the node's address"
    return Way(
        source=source.label,
        verdict=Verdict.FORWARD.value,
        because="; ".join(filter(None, because)),
        endpoints=tuple(e.text for e in pool.endpoints),
        is_masqueraded=is_masqueraded,
        masquerade_because=why,
    )


def _masquerade(
    frontend: Frontend, source: Source, *, node: NodeFacts, mode: str
) -> tuple[bool, str]:
    if mode in CARRIES:
        return True, "the proxy makes the connection to the endpoint itself"
    match frontend.masquerade:
        case Masquerade.ALWAYS if not frontend.kind.is_external:
            return True, "masquerade-all is set"
        case Masquerade.ALWAYS:
            return (
                True,
                "policy Cluster at an external frontend: answers must come back through this node",
            )
        case Masquerade.NOT_LOCAL_PODS:
            return _unless_pod(source, node)
        case Masquerade.NODE_ITSELF if source.kind is Kind.NODE:
            return True, "the node may have chosen an address that the endpoint cannot answer"
        case Masquerade.NODE_ITSELF:
            return False, "policy Local keeps the client's address"
    return False, "pods of this node are not recognised, so nothing is masqueraded"


def _unless_pod(source: Source, node: NodeFacts) -> tuple[bool, str]:
    if source.kind is Kind.POD:
        return False, "answers to pods of this node come back here anyway"
    return True, f"not from {node.detector.value}: answers must come back through this node"
