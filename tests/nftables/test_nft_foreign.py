"""Whatever another process puts into our table, one round or two mend it, and none raises."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint_slice, node
from tests.support.engine_kit import FakeClock, RecordedRounds
from tests.support.nft_kit import OPEN, all_kinds, lines, ruleset, run
from tests.support.worlds import SERVICE_CIDRS

from kubeproxy.facts.ids import Family
from kubeproxy.kernel.netlink.codec import attr, attr_be32, attr_be64, attr_nested, attr_str
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.modes.nftables.mode import NftablesBackend
from kubeproxy.modes.nftables.options import Options
from kubeproxy.sync.engine import Engine

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace", "closing")]

T = "ip kube-proxy"

DAMAGES = {
    "policy": "chain T filter-input { policy drop; }",
    "dormant table": "add table T { flags dormant; }",
    "catch-all that drops": "add element T service-ips { * : drop }",
    "catch-all member": "add element T cluster-ips { * }",
    "catch-all slot": "add element T service-pools { * : 10.9.9.9 . 1 }",
    "commented slot": "add element T service-pools "
    '{ 10.9.9.9 . tcp . 1 . 0 comment "x" : 10.9.9.9 . 1 }',
    "interval set": "add set T f { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }",
    "odd types": "add set T f { typeof ip saddr . tcp option maxseg size . ct mark . iifname; }",
    "set with a counter": "add set T f { type ipv4_addr; flags dynamic; counter; }",
    "verdict map": "add chain T f\nadd map T m { type ipv4_addr : verdict; }\n"
    "add element T m { 10.9.9.9 : jump f, * : jump services }",
    "chains in a row": "add chain T a\nadd chain T b\nadd chain T c\nadd rule T a jump b\n"
    "add rule T b jump c\nadd rule T c goto pick-3",
    "a rule": "add rule T services ip saddr 10.9.9.9 counter log prefix \"x\" accept",
    "anonymous chain": "add rule T services ip saddr 10.9.9.9 jump { drop; }",
    "anonymous set": "add rule T services ip saddr { 10.9.9.9, 10.9.9.10 } drop",
    "hooks": "add chain T f { type route hook output priority 7; }\n"
    "add chain T g { type filter hook postrouting priority -300; policy drop; }",
    "objects": "add counter T c\nadd quota T q { 1 mbytes }\nadd limit T l { rate 1/second }\n"
    "add ct helper T h { type \"ftp\" protocol tcp; }\nadd rule T services counter name c",
    "object map": "add counter T c\nadd map T m { type ipv4_addr : counter; }\n"
    "add element T m { 10.9.9.9 : \"c\" }",
    "flowtable": "add flowtable T ft { hook ingress priority 0; devices = { lo }; }\n"
    "add chain T f\nadd rule T f flow add @ft",
    "affinity set that is a map": "add map T affinity-x { type ipv4_addr : mark; }",
    "affinity set of another type": "add set T affinity-x "
    "{ type inet_service; flags dynamic,timeout; }",
    "our set of another type": "flush chain T nodeport-endpoints-check\n"
    "delete map T no-endpoint-nodeports\n"
    "add map T no-endpoint-nodeports { type inet_service : mark; }",
    "our set with a bound": "flush chain T firewall-check\ndelete map T firewall-ips\n"
    "add map T firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; size 1; }",
    "base chain that is none": "flush chain T filter-input\ndelete chain T filter-input\n"
    "add chain T filter-input\nadd rule T services jump filter-input",
    "referenced base chain": "flush chain T filter-input\ndelete chain T filter-input\n"
    "add chain T filter-input\nadd chain T f\nadd rule T f jump filter-input",
    "class chain is a base chain": "flush chain T masquerading\nflush chain T nat-postrouting\n"
    "delete chain T masquerading\n"
    "add chain T masquerading { type nat hook postrouting priority 0; }",
}  # fmt: skip


def _goto(chain: str) -> bytes:
    return nft.pack_verdict(nft.NFTA_SET_ELEM_DATA, nft.Verdict(nft.NFT_GOTO, chain))


def _slot(endpoint: str) -> bytes:
    return nft.pack_value(nft.NFTA_SET_ELEM_DATA, bytes.fromhex(endpoint))


def listing() -> list[str]:
    return lines(ruleset(), with_declarations=True)


class Daemon:
    """An engine over the real kernel, with every kind of service."""

    def __init__(self) -> None:
        family = Family.IPV4
        backend = NftablesBackend(family, Options())
        OPEN.append(backend)
        self.clock = FakeClock()
        self.engine = Engine(
            backend,
            node(family, service_cidrs=[SERVICE_CIDRS[family]]),
            clock=self.clock,
            listener=RecordedRounds(),
        )
        for number, (facts, endpoints) in enumerate(all_kinds(family)):
            self.engine.pipeline.store.set_service(facts)
            name = f"{facts.name.namespace}/{facts.name.name}"
            self.engine.pipeline.store.set_slice(
                endpoint_slice(name, endpoints, slice_name=f"s{number}")
            )

    async def start(self) -> list[str]:
        """The first round. Return what it installs."""
        assert (await self.engine.round()).is_success
        return listing()

    async def mend(self, *, most_rounds: int = 1) -> None:
        """Rounds that read the kernel, until one finds nothing to do."""
        for _ in range(most_rounds + 1):
            self.clock.advance(3600)
            report = await self.engine.round()
            if report.is_success and not report.changes:
                return
        raise AssertionError(f"not mended after {most_rounds} rounds: {report}")


@pytest.mark.parametrize("name", DAMAGES)
async def test_foreign_things_go(name: str) -> None:
    """The table looks as before, whatever was in it."""
    daemon = Daemon()
    before = await daemon.start()
    text = DAMAGES[name].replace(" T ", f" {T} ")
    if not _try(text):
        assert name == "flowtable"
        pytest.skip("this kernel has no flowtables")
    most = 3 if name == "referenced base chain" else 1
    await daemon.mend(most_rounds=most)
    assert listing() == before


async def test_all_of_it_at_once_goes() -> None:
    """A table full of foreign things."""
    daemon = Daemon()
    before = await daemon.start()
    applied = 0
    for number, text in enumerate(DAMAGES.values()):
        for foreign in ("f", "g", "m", "a", "b", "c", "q", "l", "h", "ft", "affinity-x"):
            text = text.replace(f" T {foreign} ", f" T {foreign}{number} ")
        done = _try(text.replace(" T ", f" {T} "))
        applied += done
    assert applied > len(DAMAGES) / 2
    await daemon.mend(most_rounds=3)
    assert listing() == before


def _try(text: str) -> bool:
    try:
        run("nft -f -", f"{text}\n")
    except AssertionError:
        return False
    return True


def _commit(*messages: tuple[int, bytes]) -> None:
    transaction = nft.Transaction(2)
    for kind, body in messages:
        transaction.add(kind, body, "foreign", nft.CREATE)
    with Nftables(2) as nftables:
        assert nftables.commit(transaction) == ()


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"new\nline", b"\xf0\x9f\x92\xa9", b"a b;c{"])
async def test_names_that_are_no_text_go(raw: bytes) -> None:
    """The kernel takes any bytes, and nft cannot even spell them."""
    daemon = Daemon()
    before = await daemon.start()
    named = attr_str(nft.NFTA_CHAIN_TABLE, "kube-proxy") + attr(nft.NFTA_CHAIN_NAME, raw + b"\0")
    base = attr_nested(
        nft.NFTA_CHAIN_HOOK,
        attr_be32(nft.NFTA_HOOK_HOOKNUM, 1),
        attr_be32(nft.NFTA_HOOK_PRIORITY, 9),
    )
    spec = nft.SetInfo("kube-proxy", raw.decode(errors="surrogateescape"), 0, 7, 4)
    _commit(
        (nft.NEWCHAIN, named + base + attr_str(nft.NFTA_CHAIN_TYPE, "filter")),
        (nft.NEWSET, nft.set_body(spec, 1)),
    )
    await daemon.mend()
    assert listing() == before


def _limited(key: bytes, data: bytes = b"") -> bytes:
    """An element that matches once a minute. nft has no word for it, but the kernel takes it."""
    limit = attr_str(nft.NFTA_EXPR_NAME, "limit") + attr_nested(
        nft.NFTA_EXPR_DATA, attr_be64(1, 1), attr_be64(2, 60)
    )
    return attr_nested(1, nft.pack_value(1, key), data, attr_nested(7, limit))


@pytest.mark.parametrize(
    ("set_name", "key", "data"),
    [
        ("cluster-ips", "0a600001", b""),
        ("service-ips", "0a6000010600000000500000", _goto("pick-3")),
        ("service-pools", "0a600001060000000050000001000000", _slot("0af401021f900000")),
    ],
)
async def test_elements_with_a_limit_are_replaced(set_name: str, key: str, data: bytes) -> None:
    """They have our key and our data, and yet most packets would not meet them."""
    daemon = Daemon()
    before = await daemon.start()
    head = nft.elements_reference("kube-proxy", set_name)
    plain, limited = nft.element(bytes.fromhex(key)), _limited(bytes.fromhex(key), data)
    _commit(
        (nft.DELSETELEM, head + attr_nested(nft.NFTA_SET_ELEM_LIST_ELEMENTS, plain)),
        (nft.NEWSETELEM, head + attr_nested(nft.NFTA_SET_ELEM_LIST_ELEMENTS, limited)),
    )
    assert "limit" in ruleset()
    await daemon.mend()
    assert listing() == before


async def test_user_data_that_is_no_text_goes() -> None:
    """A comment of any bytes, on a rule, is a comment that differs."""
    daemon = Daemon()
    before = await daemon.start()
    rule = nft.rule_body("kube-proxy", "services", ())
    _commit((nft.NEWRULE, rule + attr(nft.NFTA_RULE_USERDATA, bytes(range(256)))))
    await daemon.mend()
    assert listing() == before


async def test_a_chain_of_a_thousand_foreign_chains_goes() -> None:
    """They refer to each other across more than one transaction."""
    daemon = Daemon()
    before = await daemon.start()
    names = [f"foreign-{number}" for number in range(3000)]
    text = [f"add chain {T} {name}" for name in names]
    for first, second in zip(names[::2], names[1::2], strict=True):
        text += [f"add rule {T} {second} jump {first}"] * 2
    run("nft -f -", "\n".join(text) + "\n")
    await daemon.mend()
    assert listing() == before
