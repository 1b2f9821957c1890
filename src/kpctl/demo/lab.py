"""`kpctl lab`: a cluster of network namespaces to try things in, or to run a flow or command in.

Plain functions over `Lab`; the command line is in `cli`. The lab ends with Ctrl-C, SIGTERM, or the
flow or command, and everything is removed then.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from kpctl.demo.run import LOOK
from kpctl.demo.view import cluster_view, services_view
from kpctl.flows.flow import ServiceText, load_flow
from kpctl.flows.lab_run import LabRunner
from kpctl.flows.objects import (
    World,
    node_manifest,
    service_cidr_manifest,
    service_manifest,
    slice_manifests,
)
from kpctl.flows.run import families_of
from kpctl.flows.text import EndpointText, PortText
from kpctl.lab.cluster import Lab
from kpctl.lab.topology import Topology, parse_topology
from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Family, Protocol

DEFAULT_TOPOLOGY = """
nodes:
  node-a: {zone: zone-a, pods: [client-a, web-a1, web-a2]}
  node-b: {zone: zone-b, pods: [client-b, web-b1, web-b2]}
clients:
  outside: node-a
  outside-b: node-b
"""
ECHO_PORT = 8080
_ON_STOP = (signal.SIGINT, signal.SIGTERM)


class LabOptions(msgspec.Struct, frozen=True):
    """The command line of `kpctl lab`."""

    mode: str
    topology: Path | None = None
    manifests: Path | None = None
    flow: Path | None = None
    variant: str = "dual"
    on: str = ""
    command: tuple[str, ...] = ()


def run_lab(options: LabOptions, console: Console | None = None) -> int:
    """Open a lab and do what the options say. Return the exit code."""
    console = console or Console()
    topology = read_topology(options.topology)
    if options.flow is not None:
        return asyncio.run(_run_flow(options, options.flow, topology, console))
    return asyncio.run(_open_lab(options, topology, console))


def read_topology(path: Path | None) -> Topology:
    """The topology in a file, or the default one."""
    if path is None:
        return parse_topology(DEFAULT_TOPOLOGY)
    try:
        return parse_topology(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"topology {path}: {error.strerror}") from error


async def _run_flow(options: LabOptions, path: Path, topology: Topology, console: Console) -> int:
    flow = load_flow(path)
    world = World(topology, block=0, families=families_of(options.variant))
    async with Lab(topology) as lab:
        wrong = await LabRunner(lab, options.mode).run(flow, world)
    for sentence in wrong:
        console.print(f"[red]✘[/] {sentence}")
    verdict = "[red]does not hold" if wrong else "[green]holds"
    console.print(f"{flow.title}: {verdict}[/] ({options.mode}, {options.variant})")
    return 1 if wrong else 0


async def _open_lab(options: LabOptions, topology: Topology, console: Console) -> int:
    world = World(topology, block=0, families=tuple(Family), namespace="lab")
    async with Lab(topology) as lab:
        sample = sample_service(topology)
        _listen(lab)
        _write_objects(lab, world, sample, options.manifests)
        await lab.proxies.start(options.mode, {})
        if options.command:
            host = options.on or topology.nodes[0].name
            return await _run_command(lab, host, options.command)
        console.print(cluster_view(topology))
        if options.manifests is None:
            console.print(services_view([sample], world))
        _print_hints(lab, world, options, console)
        await _wait_for_stop()
    console.print("[dim]everything is removed again[/]")
    return 0


def sample_service(topology: Topology) -> ServiceText:
    """A Service in front of every pod, so that an empty lab has something to look at."""
    ports = tuple(
        PortText(p.lower_name, 80, ECHO_PORT, p, 30080 if p is not Protocol.SCTP else 0)
        for p in Protocol
    )
    endpoints = tuple(EndpointText(pod.name) for pod in topology.pods)
    return ServiceText("echo", ports, endpoints=endpoints, type="NodePort")


def _listen(lab: Lab) -> None:
    for pod in lab.topology.pods:
        for protocol in Protocol:
            lab.listen(pod.name, protocol, ECHO_PORT)


def _write_objects(lab: Lab, world: World, sample: ServiceText, manifests: Path | None) -> None:
    nodes = [node_manifest(node) for node in lab.topology.nodes]
    lab.proxies.write("cluster", [*nodes, service_cidr_manifest()])
    if manifests is None:
        lab.proxies.write(
            "echo", [service_manifest(sample, world), *slice_manifests(sample, world)]
        )
        return
    sources = sorted(manifests.iterdir()) if manifests.is_dir() else [manifests]
    for source in sources:
        if source.is_file():
            shutil.copy(source, lab.proxies.manifests / source.name)


async def _run_command(lab: Lab, host: str, command: Sequence[str]) -> int:
    """Run a command on a host, in the caller's terminal. Return its exit code.

    It runs in another thread, so that the echo servers go on meanwhile.
    """
    lab.topology.host(host)
    argv = lab.namespaces.command(host, command)
    done = await asyncio.to_thread(subprocess.run, argv)
    return done.returncode


def _print_hints(lab: Lab, world: World, options: LabOptions, console: Console) -> None:
    name = lab.namespaces.name
    node, pod = name(lab.topology.nodes[0].name), name(lab.topology.pods[0].name)
    look = [" ".join(argv) for argv in LOOK.get(options.mode, ())]
    hints = [
        ("edit objects live in", str(lab.proxies.manifests)),
        ("a shell on a node", f"ip netns exec {node} bash"),
        *(("look at the rules", f"ip netns exec {node} {command}") for command in look),
    ]
    if options.manifests is None:
        address = world.cluster_ip("echo", Family.IPV4)
        ask = f"bash -c 'exec 3<>/dev/tcp/{address}/80; echo hello >&3; head -1 <&3'"
        hints.append(("ask the Service", f"ip netns exec {pod} {ask}"))
    console.print()
    for what, how in hints:
        # Whole lines, however long: they are there to be copied.
        console.print(f"{what:<22} [bold]{how}[/]", soft_wrap=True)
    console.print("\n[dim]Ctrl-C removes everything[/]")


async def _wait_for_stop() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _ON_STOP:
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in _ON_STOP:
            loop.remove_signal_handler(number)
