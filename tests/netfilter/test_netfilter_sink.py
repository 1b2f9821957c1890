"""The iptables sink against a fake that interprets restore input."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.fake_xtables import FakeXtables

from kubeproxy.errors import Drifted
from kubeproxy.facts.ids import Protocol, ServicePortId
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.netfilter.compile.refusals import RuleRejected
from kubeproxy.modes.netfilter.items import (
    KNOWN,
    Chain,
    ChainGroup,
    GroupRules,
    Jump,
    Order,
    Position,
    RuleItem,
    RuleValue,
    Scope,
    Section,
    SharedChain,
    rules,
)
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.sync.ledger import Ledger

JUMPS = (
    (Jump("nat", "PREROUTING", "-m comment --comment portals -j KUBE-TOP"), Position.FIRST),
    (Jump("nat", "PREROUTING", "-j KUBE-LATE"), Position.LAST),
    (Jump("nat", "PREROUTING", "-j KUBE-OTHER"), Position.FIRST),
)


def _identify(_table: str, _chain: str, line: str) -> Order | None:
    """Sections of these tests carry their key as comment."""
    words = line.split(" ")
    if "--comment" not in words:
        return None
    return (0, (words[words.index("--comment") + 1],))


SCOPE = Scope(
    tables=("filter", "nat"),
    chains={"nat": frozenset({"KUBE-LATE", "KUBE-OTHER"})},
    shared_chains={"nat": frozenset({"KUBE-TOP"})},
    prefixes={"nat": ("KUBE-SVC-",), "filter": ("KUBE-SVC-",)},
    jumps=JUMPS,
    identify=_identify,
)
TOP = SharedChain("nat", "KUBE-TOP")


def owner(name: str) -> Owner:
    return ServicePortId("ns", name, "", Protocol.TCP)


def section(name: str, count: int = 1) -> dict[RuleItem, RuleValue]:
    specs = [f"-m comment --comment {name} -d 10.0.0.{n} -j KUBE-SVC-{name}" for n in range(count)]
    return {
        Chain("nat", f"KUBE-SVC-{name}"): rules(
            f"KUBE-SVC-{name}", [f"-s 10.1.0.{count} -j ACCEPT"]
        ),
        Section("nat", "KUBE-TOP", (name,)): rules("KUBE-TOP", specs),
    }


def scaffold() -> dict[RuleItem, RuleValue]:
    return {
        TOP: KNOWN,
        Chain("nat", "KUBE-LATE"): rules("KUBE-LATE", []),
        Chain("nat", "KUBE-OTHER"): rules("KUBE-OTHER", []),
        **dict(JUMPS),
    }


class Proxy:
    """The engine's part, as small as it can be: ledger, sink, confirm."""

    def __init__(self, tables: FakeXtables) -> None:
        self.tables = tables
        self.sink = NetfilterSink(tables, SCOPE)
        self.ledger: Ledger[Owner, RuleItem, RuleValue] = Ledger()

    def want(self, who: Owner, fragment: Mapping[RuleItem, RuleValue]) -> None:
        self.ledger.put(who, fragment)

    async def resync(self) -> int:
        return self.ledger.resync(await self.sink.read())

    async def sync(self) -> int:
        batches = 0
        for batch in self.sink.compile(self.ledger.difference()):
            await self.sink.apply(batch)
            self.ledger.confirm(batch.changes)
            batches += 1
        return batches


async def started(*names: str, tables: FakeXtables | None = None) -> Proxy:
    proxy = Proxy(tables or FakeXtables())
    proxy.want(SCAFFOLD, scaffold())
    for name in names:
        proxy.want(owner(name), section(name))
    await proxy.resync()
    await proxy.sync()
    return proxy


async def test_jumps_are_inserted_in_order_and_only_when_missing() -> None:
    """Each goes first (or last), the last row ends on top; a restart adds none."""
    proxy = await started()
    expected = [
        "-j KUBE-OTHER",
        "-m comment --comment portals -j KUBE-TOP",
        "-j KUBE-LATE",
    ]
    assert proxy.tables.chains["nat"]["PREROUTING"] == expected
    await started(tables=proxy.tables)
    assert proxy.tables.chains["nat"]["PREROUTING"] == expected


async def test_sections_stand_in_the_order_of_their_keys() -> None:
    """Whatever order they arrive in."""
    proxy = await started("b", "d")
    for name in ("c", "a", "e"):
        proxy.want(owner(name), section(name, 2))
        await proxy.sync()
    found = [line.split(" ")[3] for line in proxy.tables.chains["nat"]["KUBE-TOP"]]
    assert found == ["a", "a", "b", "c", "c", "d", "e", "e"]


async def test_one_service_more_sends_only_that_service() -> None:
    """The other sections are neither read nor written."""
    proxy = await started(*"abcdfghij")
    proxy.want(owner("e"), section("e"))
    await proxy.sync()
    assert proxy.tables.restores[-1] == (
        "*nat\n"
        ":KUBE-SVC-e - [0:0]\n"
        "-A KUBE-SVC-e -s 10.1.0.1 -j ACCEPT\n"
        "-I KUBE-TOP 5 -m comment --comment e -d 10.0.0.0 -j KUBE-SVC-e\n"
        "COMMIT\n"
    )


async def test_a_removed_service_is_detached_then_deleted() -> None:
    """In one restore: the rule by its content, then the chain."""
    proxy = await started(*"abcdefghij")
    proxy.want(owner("e"), {})
    await proxy.sync()
    assert proxy.tables.restores[-1] == (
        "*nat\n"
        ":KUBE-SVC-e - [0:0]\n"
        "-D KUBE-TOP -m comment --comment e -d 10.0.0.0 -j KUBE-SVC-e\n"
        "-X KUBE-SVC-e\n"
        "COMMIT\n"
    )


@pytest.mark.parametrize("limit", [1, 2000])
async def test_a_shared_chain_goes_together_with_its_sections(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batches: no rule is deleted from a chain that was just emptied."""
    monkeypatch.setattr("kubeproxy.modes.netfilter.sinks.rules.NFT_BATCH_LINES", limit)
    proxy = await started("a", "b")
    for name in ("a", "b"):
        proxy.want(owner(name), {})
    top = (JUMPS[0][0], TOP)
    proxy.want(SCAFFOLD, {item: value for item, value in scaffold().items() if item not in top})
    await proxy.sync()
    assert "KUBE-TOP" not in proxy.tables.chains["nat"]
    assert await proxy.resync() == 0


async def test_a_shared_chain_of_unknown_content_goes_with_its_sections() -> None:
    """Of what another program wrote there, nothing was recognised, hence nothing is deleted."""
    proxy = await started("a", "b")
    proxy.tables.chains["nat"]["KUBE-TOP"].append("-j ACCEPT")
    await proxy.resync()
    proxy.want(SCAFFOLD, {k: v for k, v in scaffold().items() if k not in (JUMPS[0][0], TOP)})
    for name in ("a", "b"):
        proxy.want(owner(name), {})
    await proxy.sync()
    assert "KUBE-TOP" not in proxy.tables.chains["nat"]


async def test_a_restart_writes_nothing() -> None:
    """What is read back, in the tool's spelling, is what is wanted."""
    proxy = await started("a", "b")
    again = await started("a", "b", tables=proxy.tables)
    assert len(again.tables.restores) == 1
    assert not again.ledger.has_pending


async def test_what_is_read_again_is_held_as_the_same_objects() -> None:
    """Thousands of small strings that replace each other at every full read leave holes."""
    proxy = await started(*(f"web-{number:02}" for number in range(20)))
    await proxy.resync()
    held = proxy.sink._shared["nat", "KUBE-TOP"]
    await proxy.resync()
    assert proxy.sink._shared["nat", "KUBE-TOP"] is held
    proxy.tables.chains["nat"]["KUBE-TOP"].pop(7)
    await proxy.resync()
    left = proxy.sink._shared["nat", "KUBE-TOP"]
    parts = {id(part) for section in held.sections() for part in section}
    assert len(left.sections()) == 19
    assert {id(part) for section in left.sections() for part in section} < parts


async def test_leftovers_are_removed_after_a_restart() -> None:
    """A service deleted while no proxy ran leaves neither rule nor chain."""
    proxy = await started("a", "b", "c")
    again = await started("b", tables=proxy.tables)
    fresh = await started("b")
    assert again.tables.meaning() == fresh.tables.meaning()


async def test_an_unknown_shared_chain_is_replaced_in_one_restore() -> None:
    """No packet meets an empty dispatch chain, although nothing in it was recognised."""
    proxy = await started("a", "b")
    top = proxy.tables.chains["nat"]["KUBE-TOP"]
    top.reverse()
    top.append("-j ACCEPT")
    before = len(proxy.tables.restores)
    await proxy.resync()
    await proxy.sync()
    assert len(proxy.tables.restores) == before + 1
    assert proxy.tables.meaning() == (await started("a", "b")).tables.meaning()


async def test_a_chain_changed_behind_our_back_is_drift() -> None:
    """A deletion that does not find its rule is not the service's fault."""
    proxy = await started(*"abcdef")
    del proxy.tables.chains["nat"]["KUBE-TOP"][2]
    proxy.want(owner("c"), {})
    with pytest.raises(Drifted, match="not as we left it"):
        await proxy.sync()
    await proxy.resync()
    await proxy.sync()
    assert proxy.tables.meaning() == (await started(*"abdef")).tables.meaning()


async def test_a_flushed_table_is_drift_once_and_rejection_after() -> None:
    """A missing chain sends us reading; the same refusal after reading is the input's fault."""
    proxy = await started(*"abcdef")
    proxy.tables.chains["nat"] = {"PREROUTING": []}
    proxy.want(owner("g"), section("g"))
    with pytest.raises(Drifted):
        await proxy.sync()
    with pytest.raises(RuleRejected):
        await proxy.sync()


async def test_a_refused_rule_names_its_owner() -> None:
    """The message says whose rule it was and shows the line."""
    proxy = await started("a")
    proxy.tables.refuse_containing = "10.1.0.3"
    proxy.want(owner("bad"), section("bad", 3))
    with pytest.raises(RuleRejected, match=r'ns/bad/TCP: .*refused was "-A KUBE-SVC-bad') as caught:
        await proxy.sync()
    assert caught.value.owner == owner("bad")
    assert proxy.sink.statistics.failures == 1


async def test_batches_are_bounded_and_keep_owners_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """iptables-nft gets several restores at a cold start; each service is whole in one."""
    monkeypatch.setattr("kubeproxy.modes.netfilter.sinks.rules.NFT_BATCH_LINES", 10)
    proxy = Proxy(FakeXtables(is_nft=True))
    names = [f"s{number:02}" for number in range(20)]
    proxy.want(SCAFFOLD, scaffold())
    for name in names:
        proxy.want(owner(name), section(name))
    await proxy.resync()
    batches = list(proxy.sink.compile(proxy.ledger.difference()))
    assert len(batches) > 5
    seen: set[Owner | None] = set()
    for batch in batches:
        owners = {change.owner for change in batch.changes}
        assert not owners & seen
        seen |= owners
    assert await proxy.sync() == len(batches)
    assert proxy.tables.meaning() == (await started(*names)).tables.meaning()


async def test_rule_counts_follow() -> None:
    """The total is what is in the table; written is what was sent since asked."""
    proxy = await started("a", "b")
    assert proxy.sink.statistics.rules["nat"] == 4
    assert proxy.sink.take_written("nat") == 4
    proxy.want(owner("b"), {})
    await proxy.sync()
    assert (proxy.sink.statistics.rules["nat"], proxy.sink.take_written("nat")) == (2, 0)


_STEPS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), max_size=25)


@settings(max_examples=examples(50))
@given(_STEPS, st.sets(st.integers(0, 24)), st.sampled_from([3, 10, 2000]))
async def test_any_history_ends_like_a_fresh_start(
    steps: list[tuple[str, int]], resync_at: set[int], limit: int
) -> None:
    """Incremental edits, resyncs in between and bounded batches all lead to the same tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kubeproxy.modes.netfilter.sinks.rules.NFT_BATCH_LINES", limit)
        proxy = await started("a", "c")
        final = {"a": 1, "c": 1}
        for number, (name, count) in enumerate(steps):
            final[name] = count
            proxy.want(owner(name), section(name, count) if count else {})
            if number in resync_at:
                assert await proxy.resync() == 0
            await proxy.sync()
        fresh = await started()
        for name, count in sorted(final.items()):
            fresh.want(owner(name), section(name, count) if count else {})
        await fresh.sync()
        assert proxy.tables.meaning() == fresh.tables.meaning()


def _group(chains: Mapping[str, str]) -> dict[str, str]:
    """`KUBE-GRP-x` leads to `KUBE-ONE-…` chains; what nothing leads to is of no group."""
    found: dict[str, str] = {}
    for chain, text in chains.items():
        if chain.startswith("KUBE-GRP-"):
            targets = [line.rpartition(" -j ")[2] for line in text.splitlines()]
            found |= dict.fromkeys([chain, *(t for t in targets if t in chains)], chain[9:])
    return found


GROUPED = Scope(
    tables=("nat",),
    chains={},
    shared_chains={},
    prefixes={"nat": ("KUBE-GRP-", "KUBE-ONE-")},
    group=_group,
)


def grouped(name: str, *ends: str) -> dict[RuleItem, RuleValue]:
    top = f"KUBE-GRP-{name}"
    texts = {top: rules(top, [f"-j KUBE-ONE-{end}" for end in ends]).text}
    for end in ends:
        texts[f"KUBE-ONE-{end}"] = rules(f"KUBE-ONE-{end}", [f"-s 10.0.0.{end} -j ACCEPT"]).text
    return {ChainGroup("nat", name): GroupRules(texts)}


async def test_of_a_group_only_the_chains_that_differ_are_sent() -> None:
    """One end replaced: the top, the new one, and the one to delete."""
    proxy = Proxy(FakeXtables())
    proxy.sink = NetfilterSink(proxy.tables, GROUPED)
    proxy.want(owner("a"), grouped("a", "1", "2", "3"))
    await proxy.sync()
    proxy.want(owner("a"), grouped("a", "1", "2", "4"))
    await proxy.sync()
    assert proxy.tables.restores[-1] == (
        "*nat\n:KUBE-ONE-4 - [0:0]\n:KUBE-ONE-3 - [0:0]\n:KUBE-GRP-a - [0:0]\n"
        "-A KUBE-ONE-4 -s 10.0.0.4 -j ACCEPT\n"
        "-A KUBE-GRP-a -j KUBE-ONE-1\n-A KUBE-GRP-a -j KUBE-ONE-2\n-A KUBE-GRP-a -j KUBE-ONE-4\n"
        "-X KUBE-ONE-3\nCOMMIT\n"
    )


@pytest.mark.parametrize("limit", [1, 2000])
async def test_a_stray_chain_is_taken_in_or_removed(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program emptied a top: nothing leads to its ends, which are wanted all the same."""
    monkeypatch.setattr("kubeproxy.modes.netfilter.sinks.rules.NFT_BATCH_LINES", limit)
    proxy = Proxy(FakeXtables())
    proxy.sink = NetfilterSink(proxy.tables, GROUPED)
    for name in "abc":
        proxy.want(owner(name), grouped(name, f"{ord(name)}", f"{ord(name) + 100}"))
    await proxy.sync()
    expected = proxy.tables.meaning()
    proxy.tables.chains["nat"]["KUBE-GRP-b"] = []
    proxy.tables.chains["nat"]["KUBE-ONE-9"] = ["-j ACCEPT"]
    assert await proxy.resync() > 0
    await proxy.sync()
    assert proxy.tables.meaning() == expected
    assert await proxy.resync() == 0
