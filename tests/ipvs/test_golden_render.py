"""Every captured case, rendered: virtual servers, sets, addresses and rules as upstream's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from tests.support.ipvs_golden import GoldenCase, GoldenProxy, case_names, load_case, split_by_chain

from kubeproxy.facts.ids import Family
from kubeproxy.modes.ipvs.describe import (
    address_lines,
    chain_rules,
    server_lines,
    set_lines,
)
from kubeproxy.modes.ipvs.items import Fragment, Item, Value
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule

ROOT = Path(__file__).parents[1] / "golden/ipvs"

FOREIGN = {
    # Virtual servers of other software are in the captures, but nothing we render.
    "exclude-cidrs": ("-f 7", "172.16.0.1", "fd99::1"),
    "seq-cleanup": ("172.16.0.1",),
}


class StoppedClock:
    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0


def rendered(case: GoldenCase, scratch: Path, family: Family) -> Fragment:
    proxy = GoldenProxy(case, scratch, StoppedClock())
    pipeline = proxy.engines[family].pipeline
    pipeline.recompute()
    items: dict[Item, Value] = {}
    for fragment in pipeline.fragments().values():
        items |= cast("Fragment", fragment)
    return items


def cases(stem: str) -> Sequence[object]:
    found = []
    for name in case_names(ROOT):
        case = load_case(ROOT / name)
        for family in case.config.check:
            suffix = "6" if family is Family.IPV6 else ""
            if case.expected(f"{stem}{suffix}") is not None:
                found.append(pytest.param(case, family, id=f"{name}-{family.value}"))
    return found


def captured(case: GoldenCase, family: Family, stem: str) -> str:
    text = case.expected(f"{stem}6" if family is Family.IPV6 else stem)
    assert text is not None
    return text


@pytest.mark.parametrize(("case", "family"), cases("ipvs"))
def test_virtual_servers_sets_and_addresses(
    case: GoldenCase, family: Family, tmp_path: Path
) -> None:
    items = rendered(case, tmp_path, family)
    foreign = FOREIGN.get(case.name, ())
    servers = [
        line
        for line in captured(case, family, "ipvs").splitlines()
        if not any(words in line for words in foreign)
    ]
    sets = [s for s in captured(case, family, "ipset").splitlines() if "UNRELATED" not in s]
    assert server_lines(items) == servers
    assert set_lines(items) == sets
    assert address_lines(items)[1:] == captured(case, family, "addresses").splitlines()


@pytest.mark.parametrize(("case", "family"), cases("restore"))
def test_rules_per_chain(case: GoldenCase, family: Family, tmp_path: Path) -> None:
    """Byte for byte, but for the one rule we spell as iptables prints it, not as upstream does."""
    items = rendered(case, tmp_path, family)
    for (table, chain), lines in split_by_chain(captured(case, family, "restore")).items():
        ours = chain_rules(items, table, chain)
        if chain == "KUBE-IPVS-OUT-FILTER":
            assert sorted(map(places, ours)) == sorted(map(places, lines))
        else:
            assert ours == lines


def places(line: str) -> tuple[str, str, str]:
    """What an out-filter rule is about, in either spelling."""
    words = canonical_rule(line).split("\x1f")
    value = dict(pairwise(words))
    return value["--vaddr"], value["--vport"], value["--vproto"].replace("tcp", "6")


METRIC = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"


@pytest.mark.parametrize(("case", "family"), cases("ipvs"))
def test_services_without_local_endpoints_are_counted(
    case: GoldenCase, family: Family, tmp_path: Path
) -> None:
    proxy = GoldenProxy(case, tmp_path, StoppedClock())
    pipeline = proxy.engines[family].pipeline
    pipeline.recompute()
    counted = {"internal": pipeline.no_local_internal, "external": pipeline.no_local_external}
    lines = (case.expected("metrics") or "").splitlines()
    for policy, count in counted.items():
        name = f'{METRIC}{{ip_family="{family.value}",traffic_policy="{policy}"}}'
        assert f"{name} {count}" in lines


def test_the_description_has_all_parts(tmp_path: Path) -> None:
    """What `kpctl render` prints can be fed to ipvsadm, ipset and iptables-restore."""
    proxy = GoldenProxy(load_case(ROOT / "lb-source-ranges"), tmp_path, StoppedClock())
    engine = proxy.engines[Family.IPV4]
    engine.pipeline.recompute()
    text = engine.backend.describe(engine.pipeline.fragments())
    titles = [line for line in text.splitlines() if line.startswith("# ")]
    assert titles == ["# virtual servers", "# sets", "# addresses", "# iptables rules"]
    assert text.count("COMMIT\n") == 2
    assert text.count("\n-I INPUT ") == 3
