"""The real tools rename chains of another mode, and write ours under the names they had."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.support.builders import node
from tests.support.waiting import FOR_THE_LOCK

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.iptables.options import Features, Options
from kubeproxy.modes.iptables.scaffold import SCOPE, scaffold
from kubeproxy.modes.ipvs.cleanup import REMOVAL as IPVS_REMOVAL
from kubeproxy.modes.netfilter.cleanup import Kept, retirement_inputs, save_tables
from kubeproxy.modes.netfilter.items import RuleItem, RuleValue
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.sync.ledger import Ledger

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace")]

# Chains and jumps of ipvs mode; sets, which its rules match, are of no importance here.
IPVS = """*nat
:KUBE-NODE-PORT - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 192.0.2.1/32 -j KUBE-NODE-PORT
-A KUBE-POSTROUTING -d 192.0.2.2/32 -j RETURN
COMMIT
*filter
:KUBE-IPVS-FILTER - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A KUBE-PROXY-FIREWALL -d 192.0.2.3/32 -j DROP
COMMIT
"""


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


def wanted() -> dict[RuleItem, RuleValue]:
    types = NetfilterSink.item_types
    features = Features(has_invalid_counter=False, has_localhost_counter=False)
    items = scaffold(node(Family.IPV4), Options(features=features))
    return {item: value for item, value in items.items() if type(item) in types}


async def sync(sink: NetfilterSink) -> int:
    """Read, write what differs, and return the number of restores."""
    ledger: Ledger[Owner, RuleItem, RuleValue] = Ledger()
    ledger.put(SCAFFOLD, wanted())
    ledger.resync(await sink.read())
    batches = 0
    for batch in sink.compile(ledger.difference()):
        await sink.apply(batch)
        ledger.confirm(batch.changes)
        batches += 1
    return batches


def saved(tool: str) -> set[str]:
    return set(subprocess.run([f"{tool}-save"], capture_output=True, text=True).stdout.split("\n"))


@pytest.mark.parametrize("variant", ["nft", "legacy"])
async def test_old_rules_stand_beside_ours_and_go(variant: str) -> None:
    tool = f"iptables-{variant}"
    argv = [f"{tool}-restore", *FOR_THE_LOCK, "--noflush"]
    subprocess.run(argv, input=IPVS, text=True, check=True)
    tables = Xtables(Family.IPV4, ToolOptions(variant=variant))
    sink = NetfilterSink(tables, SCOPE)
    sink.sets_aside = True
    assert await sync(sink) > 0
    portals = '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    assert saved(tool) >= {
        "-A KUBE-SERVICES-OLD -d 192.0.2.1/32 -j KUBE-NODE-PORT",
        "-A KUBE-POSTROUTING-OLD -d 192.0.2.2/32 -j RETURN",
        "-A KUBE-PROXY-FIREWALL-OLD -d 192.0.2.3/32 -j DROP",
        f"{portals}-OLD",
    }
    assert portals in {line.replace("-m conntrack --ctstate NEW ", "") for line in saved(tool)}
    assert not any(line.startswith("-A KUBE-SERVICES -d 192.0.2.1") for line in saved(tool))
    assert await sync(sink) == 0
    for table in (await save_tables(tables, IPVS_REMOVAL.tables)).values():
        for text in filter(None, retirement_inputs(table, IPVS_REMOVAL, Kept(SCOPE))):
            await tables.restore(text)
    assert await sync(sink) == 0
    assert not any("-OLD" in line or "192.0.2." in line for line in saved(tool))
