"""`make screenshots`: pictures of the dashboard for the guide, docs/guides/dashboard/*.webp.

Nothing is staged: the Services are those of the flows, a real proxy programs them on a node of the
lab, endpoints come and go, another program damages a rule, and a real browser looks at the page.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.browser import Browser

from kpctl.demo.lab import read_topology
from kpctl.flows.flow import ServiceText
from kpctl.flows.library import load_corpus, short_name
from kpctl.flows.objects import (
    Manifest,
    World,
    node_manifest,
    service_cidr_manifest,
    service_manifest,
    slice_manifests,
)
from kpctl.lab.cluster import Lab
from kubeproxy.facts.ids import Family

TARGET = Path(__file__).parents[2] / "docs/guides/dashboard"
NODE = "node-a"
CHANGED_FLOWS = 16
SETTLE_SECONDS = 1.5
WIDE, PHONE = (1280, 860), (390, 844)
PICTURES = (
    ("overview", "", WIDE, "light"),
    ("overview-dark", "", WIDE, "dark"),
    ("services", "#/services", WIDE, "light"),
    ("service", "#/service/external-local/web", WIDE, "light"),
    ("service-dark", "#/service/external-local/web", WIDE, "dark"),
    ("rounds", "#/rounds", WIDE, "light"),
    ("repairs-dark", "#/repairs", WIDE, "dark"),
    ("phone", "#/services", PHONE, "light"),
)


def objects(world: World, services: Sequence[ServiceText]) -> list[Manifest]:
    """The objects of one flow."""
    found: list[Manifest] = []
    for service in services:
        found += [service_manifest(service, world), *slice_manifests(service, world)]
    return found


async def fill(lab: Lab) -> None:
    """Give the proxies the objects of every flow, and start them."""
    nodes = [node_manifest(node) for node in lab.topology.nodes]
    lab.proxies.write("cluster", [*nodes, service_cidr_manifest()])
    for block, flow in enumerate(load_corpus()):
        name = short_name(flow.name)
        world = World(lab.topology, block=block, families=tuple(Family), namespace=name)
        lab.proxies.write(name, objects(world, flow.services))
    await lab.proxies.start("nftables", {})


async def live(lab: Lab) -> None:
    """Let endpoints come and go, and another program damage a rule."""
    for block, flow in enumerate(load_corpus()):
        if block >= CHANGED_FLOWS or not all(service.endpoints for service in flow.services):
            continue
        name = short_name(flow.name)
        world = World(lab.topology, block=block, families=tuple(Family), namespace=name)
        whole = objects(world, flow.services)
        without = [each for each in whole if each["kind"] != "EndpointSlice"]
        for each in (without, whole):
            since = time.time()
            lab.proxies.write(name, each)
            await lab.proxies.settle(since=since)
    damage = ["nft", "flush", "chain", "ip", "kube-proxy", "masquerading"]
    subprocess.run(lab.namespaces.command(NODE, damage), check=True)


@contextmanager
def dashboard(socket: Path) -> Iterator[str]:
    """Run the dashboard. Gives its address."""
    command = [sys.executable, "-c", "from kpctl.cli import main; main()", "dashboard"]
    process = subprocess.Popen([*command, f"--socket={socket}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield next(found[0] for line in process.stdout if (found := re.search(r"http\S+", line)))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def take(address: str, profile: Path) -> None:
    """Take all pictures."""
    browser = Browser(profile)
    try:
        for name, place, size, scheme in PICTURES:
            browser.resize(*size)
            browser.prefer(scheme)
            browser.open(address + place)
            browser.until(lambda: browser.text("h2"), "the view")
            time.sleep(SETTLE_SECONDS)
            (TARGET / f"{name}.webp").write_bytes(browser.picture())
    finally:
        browser.close()


async def main() -> None:
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Lab(read_topology(None)) as lab:
            await fill(lab)
            await live(lab)
            with lab.namespaces.inside(NODE), dashboard(lab.proxies.socket(NODE)) as address:
                take(address, Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
