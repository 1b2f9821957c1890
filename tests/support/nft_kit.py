"""The nftables mode over a real kernel: a proxy without an engine, and every kind of service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace
from tests.support.builders import endpoint, node, plans, service
from tests.support.worlds import SERVICE_CIDRS, address

from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.policy import Algorithm
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import NftablesTable
from kubeproxy.modes.base import SCAFFOLD, AnyChange, OwnedChange, Owner
from kubeproxy.modes.nftables.compile.transactions import compile_transactions
from kubeproxy.modes.nftables.compile.units import index_bytes
from kubeproxy.modes.nftables.items import (
    Chain,
    ChainItem,
    Item,
    Pool,
    PoolItem,
    SetItem,
    Value,
)
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.names import TABLE_NAME, FamilyLayout
from kubeproxy.modes.nftables.options import Options
from kubeproxy.modes.nftables.rules.expressions import Lookup, Rule
from kubeproxy.sync.ledger import Ledger


def run(command: str, text: str = "") -> str:
    """Run a shell command that must succeed. Return its output."""
    done = subprocess.run(command, shell=True, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


OPEN: list[NftablesBackend] = []
"""What tests opened; a fixture closes it."""


class Proxy:
    """Ledger and backend, driven as the engine drives them."""

    def __init__(
        self, family: Family, on: NodeFacts | None = None, options: Options | None = None
    ) -> None:
        self.backend = NftablesBackend(family, options or Options())
        OPEN.append(self.backend)
        self.node = on or node(family, service_cidrs=[SERVICE_CIDRS[family]])
        self.ledger: Ledger[Owner, Item, Value] = Ledger()
        self.ledger.put(SCAFFOLD, self.backend.scaffold(self.node))

    def want(
        self,
        facts: ServiceFacts,
        endpoints: Sequence[Endpoint] = (),
        weights: Mapping[str, int] | None = None,
    ) -> None:
        for plan in plans(facts, endpoints, self.node, weights=weights):
            self.ledger.put(plan.id, self.backend.render(plan, self.node))

    async def read(self) -> int:
        """Read the kernel. Return how many items were not as believed."""
        return self.ledger.resync(await self.backend.sinks[0].read())

    async def apply(self) -> int:
        """Bring the kernel to what is wanted. Return how many transactions it took."""
        sink = self.backend.sinks[0]
        count = 0
        for batch in sink.compile(self.ledger.difference()):
            await sink.apply(batch)
            self.ledger.confirm(batch.changes)
            count += 1
        return count

    async def sync(self) -> int:
        await self.read()
        return await self.apply()

    def text(self) -> str:
        owners = self.ledger.owners()
        return self.backend.describe({owner: self.ledger.fragment(owner) for owner in owners})


def pods(family: Family, *numbers: int) -> list[Endpoint]:
    return [endpoint(address(family, "pod", n), 8080, local=n == 1) for n in numbers]


def all_kinds(family: Family) -> Iterator[tuple[ServiceFacts, list[Endpoint]]]:
    """Every kind of service, with its endpoints."""
    outside = [address(family, "outside", n) for n in range(1, 9)]
    ranges = ["198.51.100.0/25", "0.0.0.0/2"] if family is Family.IPV4 else ["2001:db8::/33"]
    kinds: tuple[dict[str, object], ...] = (
        {},
        {"node_port": 30002, "external_ips": outside[:1]},
        {"node_port": 30003, "load_balancer_ips": outside[1:2], "source_ranges": ranges},
        {"node_port": 30004, "load_balancer_ips": outside[2:3], "external_local": True},
        {"affinity_seconds": 60, "node_port": 30005, "external_local": True},
        {"internal_local": True, "affinity_seconds": 30},
        *balanced_kinds(outside),
        *guarded_kinds(family, outside),
    )
    for number, kind in enumerate(kinds, 1):
        cluster_ip = address(family, "cluster", number if number < 7 else number + 10)
        facts = service(f"default/svc-{number}", cluster_ip=cluster_ip, **kind)  # type: ignore[arg-type]
        yield facts, pods(family, 1, 2, 3)
    longest = f"{'n' * 63}/{'s' * 63}"
    sticky = service(longest, cluster_ip=address(family, "cluster", 8), affinity_seconds=90)
    yield sticky, pods(family, 1)
    yield service("default/none", cluster_ip=address(family, "cluster", 7), node_port=30007), []


def balanced_kinds(outside: Sequence[str]) -> Iterator[dict[str, object]]:
    """Services that ask for an algorithm, each with every kind of frontend and policy."""
    hashed = (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH)
    for number, algorithm in enumerate((Algorithm.RANDOM, Algorithm.ROUND_ROBIN, *hashed)):
        yield {"algorithm": algorithm, "node_port": 30020 + number}
        yield {"algorithm": algorithm, "node_port": 30030 + number, "external_local": True}
        yield {"algorithm": algorithm, "internal_local": True, "external_ips": outside[7:]}
        yield {"algorithm": algorithm, "affinity_seconds": 20, "node_port": 30040 + number}


def guarded_kinds(family: Family, outside: Sequence[str]) -> Iterator[dict[str, object]]:
    """Services with lists of sources, alone and with what else has chains of its own."""
    own, other = (
        ("10.244.0.0/16", "198.51.100.0/24")
        if family is Family.IPV4
        else ("fd00:244::/56", "2001:db8:100::/64")
    )
    yield {"allow_sources": [own], "node_port": 30050, "external_ips": outside[3:4]}
    yield {"deny_sources": [other], "node_port": 30051, "external_local": True}
    yield {"allow_sources": [], "affinity_seconds": 20, "node_port": 30052}
    turns = {"algorithm": Algorithm.ROUND_ROBIN, "node_port": 30053}
    yield {"allow_sources": [own, other], "deny_sources": [other], **turns}


def weights_of(family: Family) -> dict[str, int]:
    """The weights of those services that ask for an algorithm."""
    return {address(family, "pod", number): number + 1 for number in (1, 2)}


def everything(family: Family, options: Options | None = None) -> Proxy:
    """A proxy that wants every kind of service."""
    proxy = Proxy(family, options=options)
    for facts, endpoints in all_kinds(family):
        proxy.want(facts, endpoints, weights_of(family) if facts.policy else {})
    return proxy


def ruleset() -> str:
    """What `nft list ruleset` prints."""
    return listed("ruleset")


def listed(what: str) -> str:
    """What `nft list` prints once it prints the same twice.

    For a moment after many elements were added the kernel moves a map into a larger table. A
    listing meanwhile has some elements twice and lacks others.
    """
    before, now = "", run(f"nft list {what}")
    while now != before:
        before, now = now, run(f"nft list {what}")
    return now


_DECLARATIONS = ("type ", "flags ", "size ", "timeout ")


def lines(listing: str, *, with_declarations: bool = False) -> list[str]:
    """Rules and elements of a listing, without layout, and if wanted what declares them."""
    found = []
    for line in listing.splitlines():
        text = line.strip().removeprefix("elements = {").removesuffix("}").strip().rstrip(",")
        if text.startswith(_DECLARATIONS):
            found += [text] if with_declarations else []
        elif text:
            found += [text] if " . " in text or ":" in text else text.split(", ")
    return sorted(found)


FORMER_MAPS = {
    "service-pools": "service-endpoints",
    "service-local-pools": "service-local-endpoints",
    "nodeport-pools": "nodeport-endpoints",
    "nodeport-local-pools": "nodeport-local-endpoints",
}


def former_layout(wanted: Mapping[Item, Value]) -> dict[Item, Value]:
    """The same services in a table of the former layout, whose maps had other names."""
    found: dict[Item, Value] = {}
    for item, value in wanted.items():
        match item, value:
            case SetItem(name), _ if name in FORMER_MAPS:
                found[SetItem(FORMER_MAPS[name])] = value
            case PoolItem(name, key), _:
                found[PoolItem(FORMER_MAPS[name], key)] = value
            case ChainItem(), Chain(kind, rules, hook):
                found[item] = Chain(kind, tuple(map(_with_former_maps, rules)), hook)
            case _:
                found[item] = value
    return found


def _with_former_maps(rule: Rule) -> Rule:
    expressions = tuple(
        replace(e, set=FORMER_MAPS.get(e.set, e.set)) if isinstance(e, Lookup) else e
        for e in rule.expressions
    )
    return Rule(expressions, rule.comment)


def install(nftables: NftablesTable, layout: FamilyLayout, items: Mapping[Item, Value]) -> None:
    """Put items into an empty kernel, with pools in maps of any name."""
    changes: list[AnyChange] = [
        OwnedChange(None, item, None, value)
        for item, value in items.items()
        if not isinstance(item, PoolItem)
    ]
    for batch in compile_transactions(layout, changes):
        assert nftables.commit(batch.payload) == ()
    pools = nft.Transaction(layout.number)
    width = layout.address_length + 4
    for item, value in items.items():
        if isinstance(item, PoolItem) and isinstance(value, Pool):
            slots = [value.slots[at : at + width] for at in range(0, len(value.slots), width)]
            packed = [
                nft.element(item.key + index_bytes(index), _data(slot))
                for index, slot in enumerate(slots)
            ]
            for body in nft.elements_bodies(TABLE_NAME, item.map, packed):
                pools.add(nft.NEWSETELEM, body, item.map, nft.CREATE)
    assert nftables.commit(pools) == ()


def _data(slot: bytes) -> bytes:
    return nft.pack_value(nft.NFTA_SET_ELEM_DATA, slot)
