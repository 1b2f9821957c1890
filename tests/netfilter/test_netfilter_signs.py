"""Which modes show in the tables of iptables, and how little it takes to find out."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.builders import node
from tests.support.waiting import FOR_THE_LOCK

from kpctl.places.scratch import scratch_namespace
from kubeproxy.errors import Busy
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Running
from kubeproxy.modes.iptables.mode import MODE as IPTABLES
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Options
from kubeproxy.modes.netfilter.names import SIGNS
from kubeproxy.modes.netfilter.options import ToolOptions
from kubeproxy.modes.netfilter.sinks.chains import has_legacy_tables
from kubeproxy.modes.netfilter.sinks.signs import PLACES, Place, look
from kubeproxy.modes.nftables.names import TABLE_NAME
from kubeproxy.modes.traces import NFTABLES_TABLE, find_traces

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace")]

PROGRAMS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
NAMES = sorted({chain for signs in SIGNS.values() for chain in signs.values()})
NOTHING = Running("nftables", ())


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


def restore(place: Place, text: str) -> None:
    program = f"{PROGRAMS[place.family]}-{'nft' if place.is_nft else 'legacy'}-restore"
    argv = [program, *FOR_THE_LOCK, "--noflush"]
    subprocess.run(argv, input=text, text=True, check=True)


def leave(place: Place, mode: str) -> None:
    """Leave what a mode always has in its tables."""
    for table, chain in SIGNS[mode].items():
        restore(place, f"*{table}\n:{chain} - [0:0]\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n")


def test_the_table_of_the_nftables_mode_is_known_by_its_name() -> None:
    assert NFTABLES_TABLE == TABLE_NAME


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("mode", SIGNS)
def test_a_mode_shows_where_it_was_and_nowhere_else(
    place: Place, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tool is needed to see it, among rules that name its chains."""
    leave(place, mode)
    for table in SIGNS[mode]:
        named = "".join(f"-A {table.upper()} -m comment --comment {c}\n" for c in NAMES)
        restore(place, f"*{table}\n:{table.upper()} - [0:0]\n{named}COMMIT\n")
    monkeypatch.setenv("PATH", "/nowhere")
    assert {each: look(each) for each in PLACES} == {
        each: frozenset({mode} if each == place else ()) for each in PLACES
    }
    assert find_traces(NOTHING) == {mode}


LOOK_WITHOUT_ROOM = """
import resource
from pathlib import Path

from kubeproxy.errors import KernelError
from kubeproxy.facts.ids import Family
from kubeproxy.modes.netfilter.sinks.signs import Place, look

before = resource.getrlimit(resource.RLIMIT_AS)
pages = int(Path("/proc/self/statm").read_text().split()[0])
room = pages * resource.getpagesize() + (1 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, before[1]))
try:
    look(Place(Family.IPV4, False))
except KernelError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, before)
print(sorted(look(Place(Family.IPV4, False))))
"""
"""Allows its process a megabyte more than it has. A fresh one: that of the tests has holes in its
heap, into which a whole table may fit."""


def test_a_table_that_does_not_fit_into_memory_is_an_error_of_the_kernels() -> None:
    """Which is reported, and looked at again later. A process without room goes on."""
    table = "*nat\n" + "-A OUTPUT -j RETURN\n" * 100_000 + "COMMIT\n"
    restore(Place(Family.IPV4, False), table)
    printed = subprocess.run(
        [sys.executable, "-c", LOOK_WITHOUT_ROOM], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(printed) == 2
    assert "table nat: Cannot allocate memory" in printed[0]
    assert printed[1] == "[]"


def test_a_node_that_ran_no_other_mode_runs_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of other programs make no difference, and no legacy table is created."""
    restore(Place(Family.IPV4, True), "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n")
    restore(Place(Family.IPV6, False), "*nat\nCOMMIT\n")
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_traces(NOTHING) == frozenset()
    assert not has_legacy_tables(Family.IPV4)


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("is_nft", [True, False])
def test_tables_that_cannot_be_read_now_are_not_taken_for_empty_ones(is_nft: bool) -> None:
    """All rules would be written a second time, and a flush be reported that was none."""
    place = Place(Family.IPV4, is_nft)
    leave(place, "iptables")
    with no_descriptor_left(), pytest.raises(Busy):
        look(place)
    assert look(place) == {"iptables"}


def test_tables_of_both_families_and_links_are_found() -> None:
    subprocess.run(["nft", "add", "table", "ip6", TABLE_NAME], check=True)
    assert find_traces(NOTHING) == frozenset()
    assert find_traces(Running("iptables", ())) == {"nftables"}


def started(variant: str) -> IptablesBackend:
    return IptablesBackend(Family.IPV4, Options(tools=ToolOptions(variant=variant)))


@pytest.mark.parametrize(("before", "now"), [("nft", "legacy"), ("legacy", "nft")])
async def test_rules_of_the_same_mode_in_the_other_variant_are_leftovers(
    before: str, now: str
) -> None:
    """Those in a family that does not run here are left alone, and so are the mode's own."""
    leave(Place(Family.IPV4, before == "nft"), "iptables")
    leave(Place(Family.IPV6, before == "nft"), "iptables")
    leave(Place(Family.IPV4, now == "nft"), "iptables")
    backend = started(now)
    await backend.start(node(Family.IPV4))
    await backend.netfilter.read()
    running = Running("iptables", (backend,))
    assert find_traces(running) == {"iptables"}
    assert (await IPTABLES.retire(running)).problems == ()
    assert find_traces(running) == frozenset()
    left = {place for place in PLACES if look(place)}
    assert left == {Place(Family.IPV4, now == "nft"), Place(Family.IPV6, before == "nft")}


async def test_what_the_sink_has_read_is_not_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of iptables-legacy could only be searched by listing it."""
    leave(Place(Family.IPV4, False), "userspace")
    backend = started("legacy")
    await backend.start(node(Family.IPV4))
    await backend.netfilter.read()
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_traces(Running("iptables", (backend,))) == {"userspace"}


@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_rules_whose_tool_is_missing_are_reported_until_it_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image for nftables mode may have no iptables, and follow one that has."""
    leave(place, "iptables")
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        for _ in range(2):
            (problem,) = (await IPTABLES.retire(NOTHING)).problems
            assert f'"{PROGRAMS[place.family]}-' in problem and "is not installed" in problem
    assert find_traces(NOTHING) == {"iptables"}
    assert (await IPTABLES.retire(NOTHING)).problems == ()
    assert find_traces(NOTHING) == frozenset()
