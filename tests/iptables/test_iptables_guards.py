"""Lists of sources in this mode: chains before those of the service port, and a drop behind."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, plan, service
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.worlds import address

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import REFUSED_BY_ANNOTATION, items_of
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.names import service_chains
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.iptables.render import render
from kubeproxy.modes.iptables.rules.recognise import group
from kubeproxy.modes.netfilter.items import ChainGroup, GroupRules, Rules, Section
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.rules.refused import parse_refused
from kubeproxy.sync.engine import Engine

POD = endpoint("10.244.1.1", 8080)
LB = {"load_balancer_ips": ["203.0.113.7"], "source_ranges": ["198.51.100.0/24"]}


def chains(facts: ServiceFacts, here: NodeFacts | None = None) -> dict[str, str]:
    """Chains of the service port, and its rules in shared chains, without comments."""
    here = here or node()
    items = render(plan(facts, [POD], here), here, Options())
    found = {
        name: text
        for g in items_of(items, ChainGroup, GroupRules).values()
        for name, text in g.chains.items()
    }
    found |= {
        f"{s.table} {s.chain}": held.text for s, held in items_of(items, Section, Rules).items()
    }
    return found


def names_of(facts: ServiceFacts) -> tuple[str, str]:
    (made,) = (plan(facts, [POD], node()),)
    common = service_chains(made.id).common
    return common, f"KUBE-FW-I-{common}"


def test_dispatch_goes_through_the_lists() -> None:
    facts = service(allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"], node_port=30080)
    common, internal = names_of(facts)
    found = chains(facts)
    assert found["nat KUBE-SERVICES"].endswith(f"-d 10.96.0.10 --dport 80 -j {internal}\n")
    assert found["nat KUBE-NODEPORTS"].endswith(f"--dport 30080 -j KUBE-FW-E-{common}\n")
    rules = [line.partition('" ')[2] for line in found[internal].splitlines()]
    assert rules == ["-s 10.9.0.0/16 -j RETURN", f"-s 10.0.0.0/8 -j KUBE-SVC-{common}"]


def test_what_was_not_let_through_is_dropped_but_nothing_that_was_translated() -> None:
    found = chains(service(deny_sources=["10.9.0.0/16"], node_port=30080))
    comment = (
        f'-A KUBE-PROXY-FIREWALL -m comment --comment "default/web:http {REFUSED_BY_ANNOTATION}" '
    )
    assert found["filter KUBE-PROXY-FIREWALL"].splitlines() == [
        f"{comment}-m tcp -p tcp -d 10.96.0.10 --dport 80 -m conntrack ! --ctstate DNAT -j DROP",
        f"{comment}-m tcp -p tcp --dport 30080 -m addrtype --dst-type LOCAL"
        " -m conntrack ! --ctstate DNAT -j DROP",
    ]


def test_node_ports_of_some_addresses_are_guarded_there_alone() -> None:
    here = node(node_port_cidrs=["192.0.2.0/24"], addresses=["192.0.2.10", "198.51.100.1"])
    found = chains(service(deny_sources=["10.9.0.0/16"], node_port=30080), here)
    last = found["filter KUBE-PROXY-FIREWALL"].splitlines()[-1]
    assert "--dport 30080 -d 192.0.2.10 " in last


def test_source_ranges_hold_besides() -> None:
    facts = service(allow_sources=["10.0.0.0/8"], **LB)  # type: ignore[arg-type]
    common, _ = names_of(facts)
    found = chains(facts)
    assert f"-d 203.0.113.7 --dport 80 -j KUBE-FW-F-{common}" in found["nat KUBE-SERVICES"]
    assert f"-s 10.0.0.0/8 -j KUBE-FW-{common}" in found[f"KUBE-FW-F-{common}"]
    assert f"-s 198.51.100.0/24 -j KUBE-EXT-{common}" in found[f"KUBE-FW-{common}"]


def test_a_restarted_proxy_knows_whose_these_chains_are() -> None:
    facts = service(allow_sources=["10.0.0.0/8"], node_port=30080, **LB)  # type: ignore[arg-type]
    common, _ = names_of(facts)
    found = {name: text for name, text in chains(facts).items() if " " not in name}
    assert set(group(found).values()) == {common}
    assert all(len(name) <= 28 for name in found)


def test_without_lists_and_without_endpoints_nothing_is_added() -> None:
    assert "filter KUBE-PROXY-FIREWALL" not in chains(service(node_port=30080))
    here = node()
    made = plan(service(allow_sources=["10.0.0.0/8"]), [], here)
    assert not items_of(render(made, here, Options()), ChainGroup, GroupRules)


def test_dropped_packets_are_counted_with_the_reason() -> None:
    """The kernel counts by rule, and the rule is the service port's own."""
    found = chains(service(deny_sources=["10.9.0.0/16"]))["filter KUBE-PROXY-FIREWALL"]
    saved = "".join(f"[7:420] {line}\n" for line in found.splitlines())
    (refused,) = parse_refused(saved)
    assert (str(refused.owner), refused.packets) == ("default/web:http/TCP", 7)
    assert (refused.action, refused.reason) == ("drop", REFUSED_BY_ANNOTATION)


@pytest.mark.kernel
@pytest.mark.parametrize("variant", ["nft", "legacy"])
@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
async def test_a_second_sync_finds_nothing_to_do(family: Family, variant: str) -> None:
    """What iptables-save prints of these rules is what they were written as."""
    own = address(family, "pod", 1)
    on = node(family, node_port_cidrs=[f"{node(family).ip}/{family.bits}"])
    backend = IptablesBackend(family, Options(tools=ToolOptions(variant=variant)))
    engine = Engine(backend, on, clock=FakeClock(), listener=RecordedRounds())
    facts = service(
        cluster_ip=address(family, "cluster", 1),
        external_ips=[address(family, "outside", 1)],
        node_port=30080,
        allow_sources=[f"{own}/{family.bits}", f"{on.ip}/{family.bits}"],
        deny_sources=[f"{address(family, 'pod', 2)}/{family.bits}"],
    )
    engine.pipeline.store.set_service(facts)
    engine.pipeline.store.set_slice(endpoint_slice(endpoints=[endpoint(own, 8080)]))
    with scratch_namespace():
        await backend.start(on)
        assert (await engine.round()).failure_text == ""
        for sink in engine.backend.sinks:
            assert engine.pipeline.resync(sink, await sink.read()) == 0
