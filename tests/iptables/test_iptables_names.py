"""Names, recognition of our rules, and clean-up input: pure parts of the iptables mode."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from kubeproxy.config.types import KubeProxyConfiguration, KubeProxyIPTablesConfiguration
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.iptables import names
from kubeproxy.modes.iptables.cleanup import REMOVAL, has_evidence
from kubeproxy.modes.iptables.rules.recognise import identify
from kubeproxy.modes.iptables.rules.respell import respell
from kubeproxy.modes.iptables.scaffold import OWN_JUMPS, SCOPE
from kubeproxy.modes.netfilter.options import mark_text_of
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save

GOLDEN = Path(__file__).parent.parent / "golden" / "iptables"


def port(namespace: str, name: str, port_name: str, protocol: Protocol) -> ServicePortId:
    return ServicePortId(namespace, name, port_name, protocol)


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        (port("shop", "cart", "http", Protocol.TCP), "I5LIAMPLWKMBJ54B"),
        (port("shop", "legacy", "", Protocol.TCP), "62T5GFCWAAWXTMUY"),
        (port("default", "kubernetes", "https", Protocol.TCP), "NPX46M4PTMTKRN6Y"),
        (port("kube-system", "kube-dns", "dns", Protocol.UDP), "TCOU7JCQXEZGVUNU"),
    ],
)
def test_service_chains_have_upstreams_names(who: ServicePortId, expected: str) -> None:
    """Name and protocol are hashed; the kind of chain is the prefix."""
    assert names.service_chains(who) == (
        expected,
        f"KUBE-SVC-{expected}",
        f"KUBE-SVL-{expected}",
        f"KUBE-EXT-{expected}",
        f"KUBE-FW-{expected}",
    )


def test_endpoint_chains_have_upstreams_names() -> None:
    """The endpoint's text joins the hash."""
    four, six = "10.244.1.9:8080", "[fd00:244:0:1::15]:8080"
    cart = names.endpoint_chains(port("shop", "cart", "http", Protocol.TCP), [four])
    web = names.endpoint_chains(port("six", "web", "http", Protocol.TCP), [six])
    assert cart == {four: "KUBE-SEP-RTCCLJPEPT224DZ3"}
    assert web == {six: "KUBE-SEP-7QP5ZKD7XJ3J6JAA"}


@pytest.mark.parametrize(
    ("bit", "text"), [(14, "0x00004000"), (0, "0x00000001"), (31, "0x80000000")]
)
def test_the_mark_is_padded_like_upstreams(bit: int, text: str) -> None:
    """Eight digits, always."""
    config = KubeProxyConfiguration(iptables=KubeProxyIPTablesConfiguration(masquerade_bit=bit))
    assert mark_text_of(config) == text


def test_jumps_are_spelled_as_iptables_prints_them() -> None:
    """So that those in the kernel are recognised; checked against a real capture."""
    tables = {
        table.name: table for table in parse_save((GOLDEN / "empty/expected.txt").read_text())
    }
    for jump, _ in SCOPE.jumps:
        assert f"-A {jump.chain} {jump.rule}" in tables[jump.table].lines(jump.chain)


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/expected*.txt")), ids=lambda p: p.parent.name
)
def test_every_rule_in_a_shared_chain_is_recognised(path: Path) -> None:
    """In every capture, and the sections stand in their canonical order."""
    for table in parse_save(path.read_text()):
        for chain in SCOPE.shared_chains.get(table.name, ()):
            orders = [identify(table.name, chain, line) for line in table.lines(chain)]
            assert None not in orders
            assert orders == sorted(orders, key=lambda order: order or (0, ()))


@pytest.mark.parametrize(
    "line",
    [
        "-A KUBE-SERVICES -j RETURN",
        '-A KUBE-SERVICES -p tcp -m comment --comment "my own rule" -j RETURN',
        '-A KUBE-SERVICES -m comment --comment "a/b cluster IP" -j RETURN',
    ],
)
def test_foreign_rules_are_not_recognised(line: str) -> None:
    """A rule that is not one of ours makes its chain unknown."""
    assert identify("nat", "KUBE-SERVICES", line) is None


def test_the_protocol_tells_two_ports_of_one_name_apart() -> None:
    """Name and port name may be the same for TCP and UDP."""
    line = '-A KUBE-SERVICES -d 10.0.0.1/32 -p {} -m comment --comment "a/b:dns cluster IP" -j X'
    assert identify("nat", "KUBE-SERVICES", line.format("udp")) == (0, ("a", "b", "dns", "UDP"))
    assert identify("nat", "KUBE-SERVICES", line.format("tcp")) == (0, ("a", "b", "dns", "TCP"))


def test_clean_up_of_nothing_is_nothing() -> None:
    """A table without anything of ours is left alone, foreign chains included."""
    assert REMOVAL.compose(TableText("nat")) == ""
    assert REMOVAL.compose(TableText("filter", {"KUBE-FIREWALL": "-", "DOCKER": "-"})) == ""


def test_chains_that_ipvs_mode_has_too_are_no_sign_of_this_mode() -> None:
    """A restart in ipvs mode must not take its own chains for leftovers of iptables mode."""
    of_ipvs = {"KUBE-SERVICES": "-", "KUBE-NODEPORTS": "-", "KUBE-MARK-MASQ": "-"}
    filtering = {"KUBE-FORWARD": "-", "KUBE-PROXY-FIREWALL": "-", "KUBE-IPVS-FILTER": "-"}
    assert not has_evidence([TableText("nat", of_ipvs), TableText("filter", filtering)])
    assert has_evidence([TableText("nat", of_ipvs | {"KUBE-SVC-AAAAAAAAAAAAAAAA": "-"})])
    assert has_evidence([TableText("filter", {"KUBE-EXTERNAL-SERVICES": "-"})])


def test_clean_up_detaches_only_what_is_there() -> None:
    """A jump that was removed already is not deleted again, which would fail."""
    jump = next(jump for jump in OWN_JUMPS if jump.chain == "POSTROUTING")
    table = TableText(
        "nat",
        {"POSTROUTING": "ACCEPT", "KUBE-POSTROUTING": "-", "KUBE-SEP-AAAAAAAAAAAAAAAA": "-"},
        {"POSTROUTING": f"-A POSTROUTING {jump.rule}\n-A POSTROUTING -j MINE\n"},
    )
    assert REMOVAL.compose(table) == (
        "*nat\n"
        ":KUBE-POSTROUTING - [0:0]\n"
        ":KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]\n"
        f"-D POSTROUTING {jump.rule}\n"
        "-X KUBE-POSTROUTING\n"
        "-X KUBE-SEP-AAAAAAAAAAAAAAAA\n"
        "COMMIT\n"
    )


@pytest.mark.parametrize(
    "case", ["ipv6-single", "affinity-clientip", "masquerade-all", "no-endpoints"]
)
def test_written_rules_equal_saved_rules(case: str) -> None:
    """Chain by chain, what upstream wrote and what iptables-save printed are the same rules."""
    suffix = "6" if case == "ipv6-single" else ""
    written = parse_save((GOLDEN / case / f"restore{suffix}.txt").read_text())
    saved = {t.name: t for t in parse_save((GOLDEN / case / f"expected{suffix}.txt").read_text())}
    for table in written:
        for chain in table.policies:
            mine = list(map(canonical_rule, table.lines(chain)))
            assert mine == list(map(canonical_rule, saved[table.name].lines(chain)))


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/expected*.txt")), ids=lambda p: p.parent.name
)
def test_respelling_keeps_the_meaning(path: Path) -> None:
    """No pattern ever turns a rule into another one."""
    text = path.read_text()
    for before, after in zip(text.splitlines(), respell(text).splitlines(), strict=True):
        assert canonical_rule(before) == canonical_rule(after)


@pytest.mark.parametrize("case", ["clusterip-multi", "large-cluster", "sctp-udp", "ipv6-single"])
def test_respelling_covers_what_is_frequent(case: str) -> None:
    """Of the rules of endpoints and services nearly all come out as we write them."""
    suffix = "6" if case == "ipv6-single" else ""
    written = set((GOLDEN / case / f"restore{suffix}.txt").read_text().splitlines())
    saved = (GOLDEN / case / f"expected{suffix}.txt").read_text()
    rules = [line for line in respell(saved).splitlines() if line.startswith("-A KUBE-S")]
    seldom = ("-m recent", "--dst-type", "REJECT")
    strange = [line for line in rules if not any(words in line for words in seldom)]
    assert set(strange) <= written
    assert len(strange) > 3


@pytest.mark.parametrize(
    ("saved", "ours"),
    [
        ("0.33333333349", "0.3333333333"),
        ("0.50000000000", "0.5000000000"),
        ("0.00099800378", "0.0009980040"),
        ("0.30000000028", "0.30000000028"),
        ("0.00000000000", "0.00000000000"),
    ],
)
def test_shares_are_respelled_only_if_they_are_one_in_n(saved: str, ours: str) -> None:
    """A share that another program chose is not rounded to one of ours."""
    line = "-A X -m statistic --mode random --probability {} -j Y\n"
    assert respell(line.format(saved)) == line.format(ours)


def test_a_large_table_is_respelled_in_pieces() -> None:
    """Every rule of it, and without a string for each rule at the same time."""
    line = '-A KUBE-SEP-{0} -s 10.0.0.1/32 -m comment --comment "ns/web-{0}" -j KUBE-MARK-MASQ\n'
    saved = "*nat\n" + "".join(line.format(number) for number in range(10_000)) + "COMMIT\n"
    tracemalloc.start()
    try:
        text = respell(saved)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text.count(" -m comment --comment ns/web-") == text.count(" -s 10.0.0.1 ") == 10_000
    assert most < 2.5 * len(saved)
