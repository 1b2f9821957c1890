"""Every captured case of upstream in a kernel: iptables-save after a real sync."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine_kit import FakeClock
from tests.support.iptables_golden import (
    GoldenCase,
    engines_of,
    load_case,
    load_cases,
    load_steps,
    take_step,
)

from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.modes.iptables.cleanup import REMOVAL
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.sinks.canary import set_canary
from kubeproxy.modes.iptables.sinks.counters import ensure_counters
from kubeproxy.modes.netfilter.cleanup import clean_tables
from kubeproxy.modes.netfilter.rules.text import TableText, parse_save
from kubeproxy.modes.netfilter.sinks.xtables import Xtables
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.report import RoundReport

pytestmark = pytest.mark.kernel

GOLDEN = Path(__file__).parent.parent / "golden" / "iptables"
CASES = load_cases(GOLDEN)
VARIANTS = ("nft", "legacy")
TABLES_AS_CAPTURED = ("mangle", "filter", "nat")

each_variant = pytest.mark.parametrize("variant", VARIANTS)


def tables_of(engine: Engine) -> Xtables:
    assert isinstance(engine.backend, IptablesBackend)
    return engine.backend.tables


async def synced(engine: Engine) -> RoundReport:
    """A round, with canary and counters as a running proxy has them."""
    ensure_counters()
    await set_canary(tables_of(engine))
    report = await engine.round()
    assert report.failure_text == ""
    return report


async def saved(tables: Xtables) -> tuple[TableText, ...]:
    """The three tables, in the order of the captures; each chain's rules in their order."""
    return parse_save("".join([await tables.save(table) for table in TABLES_AS_CAPTURED]))


@each_variant
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_kernel_holds_what_upstream_installs(
    case: GoldenCase, variant: str, tmp_path: Path
) -> None:
    """Chains, rules and their order, in every table and family of the case; and a second proxy
    that starts on top of the first finds nothing to do."""
    with scratch_namespace():
        for number in range(2):
            engines = engines_of(case, tmp_path, FakeClock(), variant=variant)
            for family in case.config.check:
                report = await synced(engines[family])
                expected = parse_save(case.text("expected", family))
                assert await saved(tables_of(engines[family])) == expected
                assert number == 0 or report.batches == 0


@each_variant
async def test_incremental_syncs_reach_upstreams_state(variant: str, tmp_path: Path) -> None:
    """After every step of the captured sequence the tables are upstream's, with less written."""
    case = load_case(GOLDEN / "partial-sync")
    with scratch_namespace():
        engine = engines_of(case, tmp_path, FakeClock(), variant=variant)[Family.IPV4]
        await synced(engine)
        for step in load_steps(case):
            take_step(engine, step)
            report = await engine.round()
            assert report.failure_text == ""
            assert await saved(tables_of(engine)) == parse_save(case.text(f"{step.stem}.expected"))
            assert report.bytes_sent <= len(case.text(f"{step.stem}.restore"))


@each_variant
@pytest.mark.parametrize("family", Family, ids=lambda family: family.value)
async def test_clean_up_leaves_what_upstream_leaves(
    variant: str, family: Family, tmp_path: Path
) -> None:
    """Ours is gone, foreign rules and the kubelet's stay; cleaning again finds nothing to do."""
    case = load_case(GOLDEN / "cleanup")
    with scratch_namespace():
        engine = engines_of(case, tmp_path, FakeClock(), variant=variant)[family]
        tables = tables_of(engine)
        await synced(engine)
        foreign = "*nat\n:DOCKER - [0:0]\n-A DOCKER -j RETURN\n-A PREROUTING -j DOCKER\nCOMMIT\n"
        await tables.restore(foreign)
        for _ in range(2):
            assert await clean_tables(tables, REMOVAL) == []
            mangle, filter_table, nat = await saved(tables)
            expected = parse_save(case.text("cleanup.expected", family))
            assert (mangle, filter_table) == expected[:2]
            assert nat.policies == {**expected[2].policies, "DOCKER": "-"}
            assert nat.rules == {
                "DOCKER": "-A DOCKER -j RETURN\n",
                "PREROUTING": "-A PREROUTING -j DOCKER\n",
            }


async def test_clean_up_names_what_holds_on_to_our_chains(tmp_path: Path) -> None:
    """A foreign rule that jumps to us keeps our chain alive; the message names it."""
    case = load_case(GOLDEN / "clusterip-single")
    with scratch_namespace():
        engine = engines_of(case, tmp_path, FakeClock())[Family.IPV4]
        await synced(engine)
        tables = tables_of(engine)
        await tables.restore("*nat\n:MINE - [0:0]\n-A MINE -j KUBE-MARK-MASQ\nCOMMIT\n")
        problems = await clean_tables(tables, REMOVAL)
        assert len(problems) == 1
        assert "IPv4 table nat" in problems[0]
        assert "KUBE-MARK-MASQ" in problems[0]


@each_variant
async def test_damage_is_repaired_by_a_full_sync(variant: str, tmp_path: Path) -> None:
    """Whatever is deleted, added or reordered in what is ours, the next full sync mends it."""
    case = load_case(GOLDEN / "nodeport-local-with-local")
    damage = (
        "*nat\n:KUBE-SVC-HMFAIQMWVGP2FCNG - [0:0]\n"
        "-I KUBE-SERVICES -j RETURN\n-A KUBE-NODEPORTS -j ACCEPT\n"
        '-D OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\n'
        ":KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n"
        "*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-SERVICES -j DROP\nCOMMIT\n"
    )
    with scratch_namespace():
        engine = engines_of(case, tmp_path, FakeClock(), variant=variant)[Family.IPV4]
        await synced(engine)
        expected = parse_save(case.text("expected"))
        await tables_of(engine).restore(damage)
        assert await saved(tables_of(engine)) != expected
        engine.report_drift("another program changed our chains")
        report = await engine.round()
        assert report.failure_text == ""
        assert report.drifted_items > 0
        assert await saved(tables_of(engine)) == expected


@each_variant
async def test_the_kubelets_rules_are_not_touched(variant: str, tmp_path: Path) -> None:
    """KUBE-FIREWALL keeps what the kubelet put there, and its jumps stay where they are."""
    case = load_case(GOLDEN / "localhost-nodeports-off")
    kubelet = (
        "*filter\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL -s 192.0.2.0/24 -j DROP\n"
        "-A INPUT -j KUBE-FIREWALL\n-A INPUT -j ACCEPT\n-A OUTPUT -j KUBE-FIREWALL\nCOMMIT\n"
    )
    with scratch_namespace():
        engine = engines_of(case, tmp_path, FakeClock(), variant=variant)[Family.IPV4]
        await tables_of(engine).restore(kubelet)
        await synced(engine)
        _, filter_table, _ = await saved(tables_of(engine))
        assert filter_table.rules["KUBE-FIREWALL"] == "-A KUBE-FIREWALL -s 192.0.2.0/24 -j DROP\n"
        assert filter_table.lines("INPUT")[-2:] == [
            "-A INPUT -j KUBE-FIREWALL",
            "-A INPUT -j ACCEPT",
        ]
        assert filter_table.lines("INPUT").count("-A INPUT -j KUBE-FIREWALL") == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_rule_counts_are_upstreams(case: GoldenCase, tmp_path: Path) -> None:
    """The gauges after a full sync of a fresh kernel have upstream's values."""
    metrics = case.metrics()
    with scratch_namespace():
        engines = engines_of(case, tmp_path, FakeClock())
        for family in case.config.check:
            report = await synced(engines[family])
            measured = {
                (m.metric, m.labels): m.value for m in report.measures if "iptables_" in m.metric
            }
            for what in ("total", "last"):
                for table in ("filter", "nat"):
                    name = f"kubeproxy_sync_proxy_rules_iptables_{what}"
                    labels = f'{{ip_family="{family.value}",table="{table}"}}'
                    expected = metrics[f"{name}{labels}"]
                    assert measured[name, (("table", table),)] == expected
