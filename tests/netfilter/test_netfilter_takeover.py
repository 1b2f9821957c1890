"""One mode takes over from another with chains of the same names, and never stands in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.builders import node
from tests.support.fake_xtables import FakeXtables

from kubeproxy.errors import Drifted
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import SCAFFOLD, Owner
from kubeproxy.modes.iptables import cleanup as iptables_cleanup
from kubeproxy.modes.iptables import scaffold as iptables
from kubeproxy.modes.iptables.options import Options as IptablesOptions
from kubeproxy.modes.ipvs import cleanup as ipvs_cleanup
from kubeproxy.modes.ipvs import scaffold as ipvs
from kubeproxy.modes.ipvs.options import Options as IpvsOptions
from kubeproxy.modes.netfilter.cleanup import Kept, Removal, retirement_inputs, save_tables
from kubeproxy.modes.netfilter.compile.refusals import RestoreRefused
from kubeproxy.modes.netfilter.items import RuleItem, RuleValue, Scope
from kubeproxy.modes.netfilter.names import CONTESTED, OLD_CHAINS, SIGNS, old_name
from kubeproxy.modes.netfilter.sinks.rules import NetfilterSink
from kubeproxy.modes.userspace import scaffold as userspace
from kubeproxy.modes.userspace.options import Options as UserspaceOptions
from kubeproxy.sync.ledger import Ledger

NODE = node(Family.IPV4)


def rules_of(fragment: Mapping[Any, Any]) -> dict[RuleItem, RuleValue]:
    """The items of a scaffold that are iptables rules."""
    types: tuple[Any, ...] = NetfilterSink.item_types
    return {item: fragment[item] for item in fragment if type(item) in types}


MODES: Mapping[str, tuple[Scope, Mapping[RuleItem, RuleValue], Removal]] = {
    "iptables": (
        iptables.SCOPE,
        rules_of(iptables.scaffold(NODE, IptablesOptions())),
        iptables_cleanup.REMOVAL,
    ),
    "ipvs": (
        ipvs.scope(Family.IPV4),
        rules_of(ipvs.scaffold(NODE, IpvsOptions())),
        ipvs_cleanup.REMOVAL,
    ),
}
RIVALS = pytest.mark.parametrize(("old", "new"), [("iptables", "ipvs"), ("ipvs", "iptables")])


class Proxy:
    """A mode with no service, on these tables."""

    def __init__(self, tables: FakeXtables, mode: str) -> None:
        self.scope, self.wanted, _ = MODES[mode]
        self.sink = NetfilterSink(tables, self.scope)
        self.sink.sets_aside = True
        self.ledger: Ledger[Owner, RuleItem, RuleValue] = Ledger()
        self.ledger.put(SCAFFOLD, self.wanted)

    async def sync(self) -> int:
        """Read, write what differs, and return how many restores that took."""
        self.ledger.resync(await self.sink.read())
        batches = 0
        for batch in self.sink.compile(self.ledger.difference()):
            await self.sink.apply(batch)
            self.ledger.confirm(batch.changes)
            batches += 1
        return batches


async def retire(tables: FakeXtables, mode: str, kept: Kept) -> None:
    removal = MODES[mode][2]
    for table in (await save_tables(tables, removal.tables)).values():
        for text in retirement_inputs(table, removal, kept):
            if text:
                await tables.restore(text)


async def started(mode: str) -> FakeXtables:
    tables = FakeXtables()
    await Proxy(tables, mode).sync()
    return tables


def targets(tables: FakeXtables, table: str, chain: str) -> list[str]:
    return [spec.rpartition("-j ")[2] for spec in tables.chains[table][chain]]


def test_signs_and_contested_chains_are_what_modes_have() -> None:
    """The names that modes know of each other are those of their scaffolds."""
    chains = {
        mode: {(i.table, i.name) for i in wanted if hasattr(i, "name")}
        for mode, (_, wanted, _) in MODES.items()
    }
    portals = userspace.scaffold(NODE, UserspaceOptions())
    chains["userspace"] = {(i.table, i.name) for i in rules_of(portals) if hasattr(i, "name")}
    for mode, signs in SIGNS.items():
        for sign in signs.items():
            has_it = {other for other, found in chains.items() if sign in found}
            # The canary is made by the monitor of the iptables mode.
            assert has_it == {mode} or sign[0] == "mangle"
    shared = chains["iptables"] & chains["ipvs"]
    contested = {(table, chain) for table, found in CONTESTED.items() for chain in found}
    assert shared - contested == {("nat", "KUBE-MARK-MASQ"), ("filter", "KUBE-FORWARD")}
    assert contested <= shared


@RIVALS
async def test_rules_of_the_old_mode_serve_until_they_are_removed(old: str, new: str) -> None:
    """What its jumps lead to is as it was, under other names; the new mode has its own."""
    tables = await started(old)
    before = {
        (table, chain): list(tables.chains[table][chain])
        for table, chains in CONTESTED.items()
        for chain in chains
    }
    proxy = Proxy(tables, new)
    await proxy.sync()
    for (table, chain), specs in before.items():
        assert tables.chains[table][old_name(chain)] == specs
    for chain in ("PREROUTING", "OUTPUT"):
        assert set(targets(tables, "nat", chain)) == {"KUBE-SERVICES", "KUBE-SERVICES-OLD"}
    assert await proxy.sync() == 0


@RIVALS
async def test_retiring_leaves_what_a_fresh_start_would_write(old: str, new: str) -> None:
    tables = await started(old)
    proxy = Proxy(tables, new)
    await proxy.sync()
    await retire(tables, old, Kept(proxy.scope))
    fresh = await started(new)
    if old == "iptables":  # the kubelet's chain and its jumps always stay
        await retire(fresh, "iptables", Kept(proxy.scope))
        for chain in ("INPUT", "OUTPUT"):
            fresh.chains["filter"][chain].append("-j KUBE-FIREWALL")
        fresh.chains["filter"]["KUBE-FIREWALL"] = tables.chains["filter"]["KUBE-FIREWALL"]
    same = {key: sorted(specs) for key, specs in tables.meaning().items()}
    assert same == {key: sorted(specs) for key, specs in fresh.meaning().items()}
    assert await proxy.sync() == 0
    assert not any(OLD_CHAINS[table] & tables.chains[table].keys() for table in OLD_CHAINS)


async def test_a_jump_of_ipvs_mode_stands_behind_those_of_the_mode_before() -> None:
    """Its rules accept packets to addresses that are not bound yet; the others translate them."""
    tables = await started("iptables")
    tables.chains["nat"]["PREROUTING"].append("-j DOCKER")
    await Proxy(tables, "ipvs").sync()
    assert targets(tables, "nat", "PREROUTING") == ["KUBE-SERVICES-OLD", "KUBE-SERVICES", "DOCKER"]
    tables = FakeXtables()
    tables.chains["nat"]["KUBE-PORTALS-CONTAINER"] = []
    tables.chains["nat"]["PREROUTING"] = ["-j KUBE-PORTALS-CONTAINER"]
    await Proxy(tables, "ipvs").sync()
    assert targets(tables, "nat", "PREROUTING") == ["KUBE-PORTALS-CONTAINER", "KUBE-SERVICES"]


@RIVALS
async def test_a_repair_while_both_stand_leaves_the_old_rules_alone(old: str, new: str) -> None:
    """What another program removed of ours comes back, at its place."""
    tables = await started(old)
    proxy = Proxy(tables, new)
    await proxy.sync()
    before = tables.meaning()
    tables.chains["nat"]["KUBE-POSTROUTING"].clear()
    for chain in ("PREROUTING", "OUTPUT"):
        led = tables.chains["nat"][chain]
        led[:] = [spec for spec in led if not spec.endswith("-j KUBE-SERVICES")]
    del tables.chains["filter"]["KUBE-PROXY-FIREWALL"]
    await proxy.sync()
    assert tables.meaning() == before
    assert await proxy.sync() == 0


class Cut(FakeXtables):
    """Tables as others are, whose user ends before one restore too many."""

    def __init__(self, tables: FakeXtables, most: int) -> None:
        super().__init__()
        self.chains, self.restores, self.most = tables.chains, tables.restores, most

    async def restore(self, text: str) -> None:
        if len(self.restores) >= self.most:
            raise asyncio.CancelledError
        await super().restore(text)


@RIVALS
async def test_a_take_over_that_was_cut_off_goes_on(old: str, new: str) -> None:
    """After any restore, a restart in the new mode ends as if nothing had happened."""
    whole = await started(old)
    written = len(whole.restores)
    await Proxy(whole, new).sync()
    for count in range(written, len(whole.restores)):
        tables = Cut(await started(old), count)
        with pytest.raises(asyncio.CancelledError):
            await Proxy(tables, new).sync()
        tables.most = len(whole.restores) * 2
        await Proxy(tables, new).sync()
        assert tables.meaning() == whole.meaning()


@RIVALS
async def test_going_back_after_a_take_over_ends_with_the_old_mode(old: str, new: str) -> None:
    """The renamed chains serve meanwhile, and are removed with the rest."""
    tables = await started(old)
    fresh = await started(old)
    await Proxy(tables, new).sync()
    proxy = Proxy(tables, old)
    await proxy.sync()
    assert "KUBE-SERVICES-OLD" in targets(tables, "nat", "PREROUTING")
    await retire(tables, new, Kept(proxy.scope))
    assert await proxy.sync() == 0
    left = {key for key, specs in tables.meaning().items() if specs}
    expected = {key for key, specs in fresh.meaning().items() if specs}
    assert left - {("filter", "KUBE-FIREWALL")} == expected - {("filter", "KUBE-FIREWALL")}


async def test_leftovers_of_a_rival_are_no_reason_to_rename_our_own_chains() -> None:
    """A restart beside rules that could not be removed finds nothing to do."""
    tables = await started("ipvs")
    tables.chains["nat"]["KUBE-NODEPORTS"] = []
    tables.chains["filter"]["KUBE-EXTERNAL-SERVICES"] = []
    assert await Proxy(tables, "ipvs").sync() == 0


class NoRenaming(FakeXtables):
    """A tool that does not know the command."""

    async def restore(self, text: str) -> None:
        if "\n-E " in text:
            raise RestoreRefused("iptables-restore: line 2 failed", line=2)
        await super().restore(text)


async def test_a_tool_that_cannot_rename_rewrites_in_place() -> None:
    """That is a gap for the mode before, and better than none at all."""
    tables = NoRenaming()
    await Proxy(tables, "iptables").sync()
    proxy = Proxy(tables, "ipvs")
    with pytest.raises(Drifted, match="cannot be renamed"):
        await proxy.sync()
    await proxy.sync()
    assert targets(tables, "nat", "PREROUTING") == ["KUBE-SERVICES"]
    assert await proxy.sync() == 0


async def test_where_no_one_removes_the_old_rules_later_they_are_replaced_at_once() -> None:
    """`kpctl apply` runs one round. What it writes must hold, whatever mode was there before."""
    tables = await started("iptables")
    proxy = Proxy(tables, "ipvs")
    proxy.sink.sets_aside = False
    await proxy.sync()
    assert targets(tables, "nat", "PREROUTING") == ["KUBE-SERVICES"]
    assert not OLD_CHAINS["nat"] & tables.chains["nat"].keys()


async def test_a_chain_that_a_foreign_rule_leads_to_stays_empty() -> None:
    tables = await started("iptables")
    tables.chains["nat"]["PREROUTING"].append("-j KUBE-NODEPORTS")
    proxy = Proxy(tables, "ipvs")
    await proxy.sync()
    await retire(tables, "iptables", Kept(proxy.scope))
    assert tables.chains["nat"]["KUBE-NODEPORTS"] == []
    assert "KUBE-NODEPORTS" in targets(tables, "nat", "PREROUTING")


async def test_a_chain_may_stay_with_its_jump() -> None:
    """That is how the host's ports are protected while addresses are still bound."""
    tables = await started("ipvs")
    proxy = Proxy(tables, "iptables")
    await proxy.sync()
    before = list(tables.chains["filter"]["KUBE-IPVS-FILTER"])
    await retire(tables, "ipvs", Kept(proxy.scope, frozenset({"KUBE-IPVS-FILTER"})))
    assert tables.chains["filter"]["KUBE-IPVS-FILTER"] == before
    assert "KUBE-IPVS-FILTER" in targets(tables, "filter", "INPUT")
    assert "KUBE-NODE-PORT" not in tables.chains["nat"]
    await retire(tables, "ipvs", Kept(replace(proxy.scope)))
    assert "KUBE-IPVS-FILTER" not in tables.chains["filter"]
