"""What nft prints of our tables it loads again, and packets fare as before.

Whoever saves the rule set (`nft list ruleset > /etc/nftables.conf`, as Debian's unit invites) must
find all of it back after a boot: nft refuses a file as a whole. Every flow of the corpus runs with
the real program; before packets are sent the program is paused, and what it has installed is
listed, removed, and loaded from the listing.

The variable NFT names another nft than the installed one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from kpctl.flows.flow import CleanUp, Flow, ForeignRules, StopProxy, SwitchMode, Wait
from kpctl.flows.lab_run import LabRunner, as_it_is
from kpctl.flows.library import load_corpus
from kpctl.flows.objects import World
from kpctl.flows.run import families_of
from kpctl.lab.cluster import Lab
from kpctl.lab.topology import Topology
from kubeproxy.facts.ids import Family
from kubeproxy.kernel.nftables.table import Nftables
from kubeproxy.modes.nftables.items import Item, SetItem, Value
from kubeproxy.modes.nftables.names import TABLE_NAME, is_affinity_set, layout_of
from kubeproxy.modes.nftables.sinks.reading import read_table

pytestmark = pytest.mark.kernel

NFT = os.environ.get("NFT", "nft")
FIRST_WITH_JSON = (1, 1, 2)
"""Before, nft could not load any map with a concatenation as its data from JSON."""

_OTHER_CONCERNS = (CleanUp, ForeignRules, StopProxy, SwitchMode, Wait)
# Waiting is for time limits, and reloading takes longer than the shortest of them.
CORPUS = load_corpus()
FLOWS = sorted(
    (
        flow
        for flow in CORPUS
        if flow.runs_in("nftables")
        if not any(isinstance(step, _OTHER_CONCERNS) for step in flow.steps)
    ),
    key=lambda flow: (sorted(flow.proxy.items()), flow.name),
)


def version() -> tuple[int, ...]:
    text = subprocess.run([NFT, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", text)
    assert found is not None, text
    return tuple(map(int, found.groups()))


def _stable(listing: str) -> str:
    return re.sub(r" expires \w+", "", listing)


class Reloading:
    """A lab whose nodes use what nft has loaded from its own printout."""

    def __init__(self, lab: Lab, *, as_json: bool) -> None:
        self._lab = lab
        self._options = ("-j",) if as_json else ()
        self._as_json = as_json

    @contextlib.asynccontextmanager
    async def around(self) -> AsyncIterator[list[str]]:
        async with self._lab.proxies.paused():
            nodes = self._lab.proxies.nodes
            saved = {node: self._nft(node, "list", "ruleset") for node in nodes}
            yield [wrong for node in nodes for wrong in self._reload(node)]
            if self._as_json:
                # What the program repairs otherwise, ever more slowly if it happens so often.
                for node in nodes:
                    self._nft(node, "-f", "-", text=f"flush ruleset\n{saved[node]}")

    def _reload(self, node: str) -> Iterator[str]:
        before = self._held(node)
        listing = self._nft(node, *self._options, "list", "ruleset")
        self._nft(node, *self._options, "-f", "-", text=self._replacing(listing))
        if self._as_json:
            return
        after = self._held(node)
        for item in before.keys() | after.keys():
            if before.get(item) != after.get(item):
                yield f"{node}: {item} was {before.get(item)}, is {after.get(item)}"
        if _stable(self._nft(node, "list", "ruleset")) != _stable(listing):
            yield f"{node}: the second listing differs from the first"

    def _replacing(self, listing: str) -> str:
        """The listing as input that replaces what is there, in one transaction."""
        if not self._as_json:
            return f"flush ruleset\n{listing}"
        commands = json.loads(listing)
        commands["nftables"].insert(0, {"flush": {"ruleset": None}})
        return json.dumps(commands)

    def _nft(self, node: str, *arguments: str, text: str = "") -> str:
        command = self._lab.namespaces.command(node, [NFT, *arguments])
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, f"nft {' '.join(arguments)} on {node}: {done.stderr}"
        return done.stdout

    def _held(self, node: str) -> Mapping[tuple[Family, Item | str], Value | frozenset[bytes]]:
        """Our own reading of both tables, and the clients in affinity sets."""
        found: dict[tuple[Family, Item | str], Value | frozenset[bytes]] = {}
        with self._lab.namespaces.inside(node):
            for family in Family:
                with Nftables(layout_of(family).number) as nftables:
                    for item, value in read_table(nftables, layout_of(family)).items.items():
                        found[family, item] = value
                        if isinstance(item, SetItem) and is_affinity_set(item.name):
                            members = nftables.elements(TABLE_NAME, item.name)
                            found[family, item.name] = frozenset(m.key for m in members)
        return found


class ReloadLab:
    """A lab with its event loop, kept for all flows."""

    def __init__(self, topology: Topology) -> None:
        self._loop = asyncio.Runner()
        self._topology = topology
        self._lab = self._loop.run(self._open())
        forms = (False, True) if version() >= FIRST_WITH_JSON else (False,)
        reloading = [Reloading(self._lab, as_json=as_json).around for as_json in forms]
        # First as it is: a proxy that is paused before it has taken over a change never does.
        self._runner = LabRunner(self._lab, "nftables", [as_it_is, *reloading])

    async def _open(self) -> Lab:
        return Lab(self._topology)

    def run(self, flow: Flow) -> list[str]:
        variant = "dual" if "dual" in flow.variants else flow.variants[0]
        families = families_of(variant)
        world = World(self._topology, block=CORPUS.index(flow), families=families)
        return list(self._loop.run(self._runner.run(flow, world)))

    def close(self) -> None:
        self._loop.run(self._lab.close())
        self._loop.close()


@pytest.fixture(scope="module")
def lab(topology: Topology) -> Iterator[ReloadLab]:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    made = ReloadLab(topology)
    yield made
    made.close()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_flow_holds_through_what_nft_has_loaded(lab: ReloadLab, flow: Flow) -> None:
    assert lab.run(flow) == []
