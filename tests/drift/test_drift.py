"""Kernel against wanted items without a kernel: ipvs mode on its fake, two looks, the text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.fake_ipvs import FakeTables
from tests.support.fake_xtables import FakeXtables

from kpctl.drift import view
from kpctl.drift.compare import FamilyDrift, Look, Shown, drift_of, look, look_twice
from kpctl.snapshot.kernel import read_kernel
from kpctl.snapshot.sockets import open_sockets
from kpctl.snapshot.types import Snapshot
from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.inspection.types import Repair
from kubeproxy.modes.base import AnyChange, OpenSocket
from kubeproxy.modes.ipvs.mode import IpvsBackend
from kubeproxy.modes.ipvs.options import Options
from kubeproxy.sync.edits import Edit
from kubeproxy.sync.pipeline import Pipeline

SERVICES = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:96::a"}
PODS = {
    Family.IPV4: ("10.244.1.1", "10.244.1.2"),
    Family.IPV6: ("fd00:244::1", "fd00:244::2"),
}
families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


class Ipvs:
    """A kernel that has what a proxy in ipvs mode wants, and snapshots that another process has."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.tables, self.xtables = FakeTables(), FakeXtables(is_nft=False)
        self.settings = parse_command_line(["--proxy-mode=ipvs"])
        assert isinstance(self.settings, Settings)
        asyncio.run(self._apply())

    def snapshot(self, *, pods: int = 2) -> Snapshot:
        backend = _Probed(self.family, Options(), tables=self.tables, rules=self.xtables)
        pipeline = Pipeline(backend, node(self.family))
        pipeline.store.set_service(service(cluster_ip=SERVICES[self.family]))
        found = [endpoint(pod) for pod in PODS[self.family][:pods]]
        pipeline.store.set_slice(endpoint_slice(endpoints=found))
        pipeline.recompute()
        assert isinstance(self.settings, Settings)
        return Snapshot(
            origin="a test",
            node="worker-a",
            settings=self.settings,
            backends={self.family: backend},
            pipelines={self.family: pipeline},
            held={},
        )

    async def _apply(self) -> None:
        snapshot = self.snapshot()
        pipeline = snapshot.pipelines[self.family]
        for sink in snapshot.backends[self.family].sinks:
            for batch in sink.compile(pipeline.changes(sink)):
                await sink.apply(batch)

    def compare(self, *, pods: int = 2) -> FamilyDrift:
        snapshot = self.snapshot(pods=pods)
        (found,) = drift_of(snapshot, look(snapshot, asyncio.run(read_kernel(snapshot.backends))))
        return found


class _Probed(IpvsBackend):
    """Without a probe: there are no tools."""

    async def probe(self) -> None: ...


@families
def test_in_ipvs_mode_a_kernel_as_wanted_is_no_drift(family: Family) -> None:
    found = Ipvs(family).compare()
    assert found.wanted and not found.differing


@families
def test_in_ipvs_mode_a_real_server_that_is_gone_is_drift(family: Family) -> None:
    kernel = Ipvs(family)
    ((_, real),) = kernel.tables.ipvs.real.items()
    del real[PODS[family][0], 8080]
    (edit,) = kernel.compare().edits
    assert edit.owner == "default/web:http/TCP"
    assert any(PODS[family][0] in line for line in edit.added) and not edit.removed


@families
def test_in_ipvs_mode_a_real_server_that_drains_is_no_drift(family: Family) -> None:
    """It has weight 0 and nothing wants it. With a weight it would be drift."""
    kernel = Ipvs(family)
    assert kernel.compare(pods=1).differing
    ((_, real),) = kernel.tables.ipvs.real.items()
    place = (PODS[family][1], 8080)
    real[place] = replace(real[place], weight=0)
    assert not kernel.compare(pods=1).differing
    assert kernel.compare(pods=2).differing


def looked_at(kernel: Ipvs, between: Callable[[], object]) -> FamilyDrift:
    (found,) = drift_of(*asyncio.run(look_twice(kernel.snapshot(), kernel.snapshot, between)))
    return found


def test_a_difference_that_goes_away_between_two_looks_does_not_count() -> None:
    """The proxy had it in its queue, or has just repaired it."""
    kernel = Ipvs(Family.IPV4)
    (key,) = kernel.tables.ipvs.real
    taken = kernel.tables.ipvs.real[key].pop((PODS[Family.IPV4][0], 8080))

    def put_back() -> None:
        kernel.tables.ipvs.real[key][taken.address, taken.port] = taken

    assert not looked_at(kernel, put_back).differing
    del kernel.tables.ipvs.real[key][taken.address, taken.port]
    assert looked_at(kernel, lambda: None).differing == 1


def test_what_only_the_second_look_finds_does_not_count() -> None:
    """It may be a change that the proxy has not applied yet."""
    old, new = Look(2, {}), Look(2, {"item": AnyChange(None, "item", None, "value")})
    assert not old.lasting(new).differs
    assert new.lasting(new) == new


def test_sockets_are_found_by_protocol_address_and_port(tmp_path: Path) -> None:
    """One that listens everywhere counts for every address; one that is connected does not."""
    head = "  sl  local_address rem_address   st\n"
    (tmp_path / "tcp").write_text(
        f"{head}   0: 0100007F:7580 00000000:0000 0A 0\n   1: 00000000:0050 00000000:0000 0A 0\n"
        "   2: 0100007F:0051 0100007F:0052 01 0\n"
    )
    (tmp_path / "tcp6").write_text(f"{head}   0: 00000000000000000000000001000000:7580 0:0 0A 0\n")
    found, found6 = (open_sockets(family, tmp_path) for family in Family)
    tcp = Protocol.TCP
    assert OpenSocket(tcp, "127.0.0.1", 30080) in found
    assert OpenSocket(tcp, "127.0.0.2", 30080) not in found
    assert OpenSocket(tcp, "192.0.2.1", 80) in found
    assert OpenSocket(tcp, "127.0.0.1", 81) not in found
    assert OpenSocket(Protocol.UDP, "127.0.0.1", 30080) not in found
    assert OpenSocket(tcp, "::1", 30080) in found6


def report(*edits: Edit) -> view.Report:
    found = FamilyDrift(Family.IPV4, 100, len(edits), edits)
    repair = Repair(0.0, Family.IPV4, "table deleted by nft (process 812)", 3, ("+ table",))
    return view.Report("node a", "nftables", (found,), (repair,))


def test_the_short_form_shows_the_first_lines_of_each_owner() -> None:
    long = Edit("shop/web:http/TCP", (), tuple(f"rule {n}" for n in range(50)))
    lines = list(view.diff_lines(report(long).families or (), is_wide=False))
    assert lines[2:4] == ["@@ shop/web:http/TCP @@", "+ rule 0"]
    assert lines[-1] == "(30 more lines; -o wide shows all)"
    assert len(list(view.diff_lines(report(long).families or (), is_wide=True))) == 53


def test_the_short_form_counts_the_owners_that_it_leaves_out() -> None:
    """Making lines of everything would take seconds in a big cluster whose rules are gone."""
    snapshot = Ipvs(Family.IPV4).snapshot()
    looks = look(snapshot, {Family.IPV4: {}})
    (short,), (wide,) = drift_of(snapshot, looks, Shown(most_owners=1)), drift_of(snapshot, looks)
    assert [len(found.edits) for found in (short, wide)] == [1, 2]
    assert (short.left_out, wide.left_out) == (1, 0)
    assert short.differing == wide.differing == short.wanted
    *_, last = view.diff_lines((short,), is_wide=False)
    assert last == "(1 more service ports; -o wide shows all)"


def test_the_data_for_programs_has_a_stable_shape() -> None:
    document = view.report_document(report(Edit("shop/web:http/TCP", ("a",), ("b",))))
    assert document == {
        "origin": "node a",
        "mode": "nftables",
        "differs": True,
        "queuedChanges": 0,
        "families": [
            {
                "family": "IPv4",
                "wantedItems": 100,
                "differingItems": 1,
                "differences": [{"owner": "shop/web:http/TCP", "found": ["a"], "wanted": ["b"]}],
            }
        ],
        "repairs": [
            {
                "time": "1970-01-01T00:00:00Z",
                "family": "IPv4",
                "items": 3,
                "cause": "table deleted by nft (process 812)",
                "lines": ["+ table"],
            }
        ],
    }
