"""Runs a flow in the lab: the real program, the real kernel, real packets.

One lab serves many flows, and proxies are restarted only when a flow needs other flags. After each
change the runner waits until every proxy reports that it has synced. A packet whose fate is not yet
as expected is sent again for a while (`PATIENCE_SECONDS`), because the final state counts. Loads
have no such tolerance: not one of their connections may fail at any time.

Mistakes are returned as sentences, and none means that the flow holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from math import ceil
from typing import TypeAlias

from msgspec.structs import replace

from kpctl.flows.flow import (
    Apply,
    Check,
    CleanUp,
    Connect,
    Connections,
    Flow,
    ForeignRules,
    HangUp,
    HealthCheck,
    Listen,
    Packets,
    Remove,
    RestartProxy,
    ServiceText,
    StartLoad,
    StartProxy,
    Step,
    StopLoad,
    StopProxy,
    SwitchMode,
    Wait,
)
from kpctl.flows.lasting import Becomes, Lasting
from kpctl.flows.load import Load
from kpctl.flows.model import expand_networks
from kpctl.flows.objects import (
    Destination,
    World,
    generation_manifest,
    node_manifest,
    service_cidr_manifest,
    service_manifest,
    short_document,
    slice_manifests,
)
from kpctl.flows.outcomes import Stickiness, check_outcomes
from kpctl.flows.ruleset import Ruleset
from kpctl.flows.run import services_at
from kpctl.flows.text import Expected, Packet
from kpctl.flows.upstream import PREFIX
from kpctl.lab.cluster import Lab
from kpctl.lab.pace import scaled, slowness_now
from kpctl.lab.powers import extra_privileges
from kpctl.lab.probe import Fate, Outcome, Target
from kpctl.lab.topology import Node
from kubeproxy.api.objects import HEALTH_CHECK_ANNOTATION
from kubeproxy.facts.ids import Family, Protocol

LEFTOVER_SECONDS = 300.0
"""IPVS remembers a connection for two minutes after it has ended, and is looked at now and then."""
_DROP_SECONDS = 0.4
_REPLY_SECONDS = 2.0
_ANSWER_SECONDS = 60.0
"""An answer ends the wait, so this costs time only where something is wrong."""
PATIENCE_SECONDS = 3 * _ANSWER_SECONDS
"""Longer than a single attempt: a connection that began before the rules were there is lost, and
another one must be made."""
_AT_ONCE = 32
_ROOM = 4.0
"""What must happen within a time of a flow takes a fraction of it: machines so many times slower
than an ordinary one need no longer times."""
_LIMIT = re.compile(r"\blimit=(\d+)s")
_VARIANT = "iptables-variant"
_generations = count()


PacketSetting: TypeAlias = Callable[[], AbstractAsyncContextManager[Sequence[str]]]
"""Brings a lab into a state in which packets are sent, and back. Yields what went wrong."""


@contextlib.asynccontextmanager
async def as_it_is() -> AsyncIterator[Sequence[str]]:
    """The setting in which nothing is done to the lab."""
    yield ()


class LabRunner:
    """Runs flows of one mode in one lab. Packets are sent once in each of the settings."""

    def __init__(
        self, lab: Lab, mode: str, settings: Sequence[PacketSetting] = (as_it_is,)
    ) -> None:
        self._lab = lab
        self._mode = mode
        self._settings = settings
        self.connections = 0
        """New connections that the loads of the last flow have made."""
        nodes = [node_manifest(node) for node in lab.topology.nodes]
        lab.proxies.write("cluster", [*nodes, service_cidr_manifest()])

    async def run(self, flow: Flow, world: World) -> Sequence[str]:
        """Run the flow. Return what is wrong, in sentences."""
        run = _Run(self._lab, flow, world, self._mode, self._settings)
        try:
            wrong = await run.all_steps()
            self.connections = run.connections
            return wrong
        except BaseException:
            # It is unknown what the proxies have done so far: the next flow starts new ones.
            await self._lab.proxies.stop(signal.SIGKILL)
            raise
        finally:
            await run.end()


class _Run:
    """One flow under way."""

    def __init__(
        self, lab: Lab, flow: Flow, world: World, mode: str, settings: Sequence[PacketSetting]
    ) -> None:
        self._settings = settings
        self._lab = lab
        self._flow = flow
        self._world = world
        self._mode = self._started_in = mode
        has_times = any(isinstance(step, Wait) for step in flow.steps)
        self._factor = ceil(slowness_now() / _ROOM) if has_times else 1
        self._stickiness = Stickiness()
        self._services: Mapping[str, ServiceText] = {s.name: s for s in flow.services}
        self._loads: list[Load] = []
        self._lasting: dict[tuple[str, Family], Lasting] = {}
        self._foreign: Mapping[str, tuple[str, ...]] = {}
        self._wrong: list[str] = []
        self._added_flags: Mapping[str, str] = {}
        self._replaced: list[tuple[str, str]] = []
        self.connections = 0
        """New connections that loads have made."""
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def all_steps(self) -> Sequence[str]:
        self._listen()
        await self._write()
        await self._ensure_proxies()
        # Packets of the flow before that no rule took: their ports may be used again.
        self._lab.forget_flows()
        for number, step in enumerate(self._flow.steps, 1):
            before = len(self._wrong)
            await self._do(step)
            self._check_foreign()
            found = self._wrong[before:]
            self._wrong[before:] = [f"step {number}: {sentence}" for sentence in found]
        self._check_confined()
        return self._wrong

    def _check_confined(self) -> None:
        """The flow held with no more privileges than the modes keep that have run here."""
        proxies = self._lab.proxies
        if not proxies.is_running or proxies.mode in proxies.other_programs:
            return
        modes = {mode.removeprefix(PREFIX) for mode in proxies.modes}
        for node in proxies.nodes:
            if extra := extra_privileges(proxies.privileges(node), modes):
                self._wrong.append(f"the proxy of {node} has more than it needs: {extra}")

    async def end(self) -> None:
        """Leave the lab as the next flow may find it."""
        await asyncio.gather(*(load.stop() for load in self._loads))
        for lasting in self._lasting.values():
            lasting.close()
        if self._foreign:
            for node in self._foreign:
                self._ruleset(node).remove_foreign()

    async def _do(self, step: Step) -> None:
        match step:
            case Packets(checks=checks):
                for setting in self._settings:
                    async with setting() as wrong:
                        self._wrong += wrong
                        await self._send(checks)
            case Apply() | Remove():
                self._services = services_at(self._services, step)
                await self._write()
            case HangUp(service=name, hosts=hosts) | Listen(service=name, hosts=hosts):
                self._services = services_at(self._services, step)
                await self._switch_ports(name, hosts, is_open=isinstance(step, Listen))
            case RestartProxy(signal=name):
                await self._lab.proxies.restart(signal.Signals[name])
            case StopProxy(signal=name):
                await self._lab.proxies.stop(signal.Signals[name])
            case StartProxy() | CleanUp() | SwitchMode():
                await self._do_proxy(step)
            case StartLoad(packet=packet):
                await self._start_load(packet)
            case StopLoad(hosts=hosts):
                await self._stop_load(hosts)
            case Connect(packets=packets):
                await self._connect(packets)
            case Connections():
                await self._check_connections(step.expected(self._mode))
            case Wait(seconds=seconds):
                await asyncio.sleep(self._factor * seconds)
            case HealthCheck():
                await self._check_health(step)
            case ForeignRules():
                self._install_foreign()

    # --- objects and proxies ---

    def _listen(self) -> None:
        """Open an echo server for every endpoint that any step of the flow names."""
        moments = [self._services]
        for step in self._flow.steps:
            moments.append(services_at(moments[-1], step))
        for services in moments:
            for service in services.values():
                for host, protocol, number in _ports(service):
                    self._lab.listen(host, protocol, number)

    async def _switch_ports(self, name: str, hosts: Sequence[str], *, is_open: bool) -> None:
        """Close or open ports. If they are checked, wait until every proxy has found that out."""
        service = self._services[name]
        switch = self._lab.listen if is_open else self._lab.hang_up
        for host, protocol, number in _ports(service):
            if host in hosts:
                switch(host, protocol, number)
        if HEALTH_CHECK_ANNOTATION in service.annotations:
            silent = [host for host, _, _ in _ports(service) if host in service.hung_up]
            await self._lab.proxies.notice(len(silent) * len(self._world.families))
            await self._write()

    async def _write(self) -> None:
        """Write the current Services for the proxies, and wait until they have synced them."""
        began = time.time()
        services = [_with_times(service, self._factor) for service in self._services.values()]
        shorts = [service for service in services if service.is_short]
        # Before the other file, whose generation is waited for.
        self._lab.proxies.write_document(
            "flow-short", short_document(shorts, self._world) if shorts else None
        )
        others = [service for service in services if not service.is_short]
        manifests = [service_manifest(service, self._world) for service in others]
        for service in others:
            manifests += slice_manifests(service, self._world)
        manifests.append(generation_manifest(next(_generations)))
        self._lab.proxies.write("flow", manifests)
        if self._lab.proxies.is_running:
            await self._lab.proxies.settle(since=began)
        await asyncio.gather(*(load.go_on() for load in self._loads))

    async def _ensure_proxies(self) -> None:
        proxies, flags = self._lab.proxies, self._flags()
        if proxies.is_running and (proxies.mode, proxies.flags) == (self._mode, flags):
            return
        await proxies.stop()
        await proxies.start(self._mode, flags)

    def _flags(self) -> Mapping[str, str]:
        flags = {**self._flow.proxy, **self._added_flags}.items()
        return {name: expand_networks(value, self._world) for name, value in flags}

    async def _do_proxy(self, step: StartProxy | CleanUp | SwitchMode) -> None:
        proxies = self._lab.proxies
        match step:
            case StartProxy():
                await proxies.start(self._mode, self._flags())
            case CleanUp():
                await proxies.stop()
                await proxies.clean_up()
                await self._expect_no_leftovers("", now="")
            case SwitchMode():
                await self._switch_mode(step)

    async def _switch_mode(self, step: SwitchMode) -> None:
        proxies = self._lab.proxies
        old, variant = self._mode, self._flags().get(_VARIANT, "")
        self._mode, self._added_flags = step.other[self._started_in], step.flags
        if step.is_overlapping:
            await proxies.replace(self._mode, self._flags())
        else:
            await proxies.stop()
            await proxies.start(self._mode, self._flags())
        await asyncio.gather(*(load.go_on() for load in self._loads))
        if variant == self._flags().get(_VARIANT, ""):
            variant = ""  # the same tools show both modes
        self._replaced.append((old, variant))
        if not (self._loads and old.endswith("ipvs")):  # it stays for connections that are open
            await self._check_replaced()

    async def _check_replaced(self) -> None:
        for old, variant in self._replaced:
            if old.removeprefix(PREFIX) != self._mode or variant:
                await self._expect_no_leftovers(old, now=self._mode, variant=variant)
        self._replaced = []

    # --- packets ---

    async def _send(self, checks: Sequence[Check]) -> None:
        jobs = [(check, family) for family in self._world.families for check in checks]
        results = await asyncio.gather(*(self._send_one(check, f) for check, f in jobs))
        for (check, family), sentences in zip(jobs, results, strict=True):
            label = f"{family.value} {check.packet.text}"
            self._wrong += [f"{label}: {sentence}" for sentence in sentences]

    async def _send_one(self, check: Check, family: Family) -> Sequence[str]:
        """Probe until the outcome is as expected, or the time is up. Return what is wrong."""
        expected = check.expected(self._mode)
        deadline = time.monotonic() + scaled(PATIENCE_SECONDS)
        key = f"{family.value} {check.packet.text}"
        while True:
            outcomes = await self._probe_all(check.packet, expected, family)
            wrong = check_outcomes(outcomes, expected, self._seen_addresses(expected, family))
            wrong += self._stickiness.check(key, outcomes, expected)
            # Trying an even spread again and again would find an even one by chance.
            if not wrong or expected.is_even or time.monotonic() > deadline:
                return wrong
            await asyncio.sleep(0.05)

    async def _probe_all(
        self, packet: Packet, expected: Expected, family: Family
    ) -> Sequence[Outcome]:
        places = self._world.destinations(packet, self._services, family)
        wanted = [places[i % len(places)] for i in range(expected.times)]
        is_ordered = packet.source_port or expected.is_sticky or expected.is_as_before
        if is_ordered:
            return [await self._probe(packet, place, expected, family) for place in wanted]
        probes = (self._probe(packet, place, expected, family) for place in wanted)
        return await asyncio.gather(*probes)

    async def _probe(
        self, packet: Packet, place: Destination, expected: Expected, family: Family
    ) -> Outcome:
        is_drop = expected.fate is Fate.DROPPED
        timeout = scaled(_DROP_SECONDS) if is_drop else max(_ANSWER_SECONDS, scaled(_REPLY_SECONDS))
        async with self._limit:
            target = _target(packet, place, family)
            return await self._lab.prober.probe(target, timeout_seconds=timeout)

    def _seen_addresses(self, expected: Expected, family: Family) -> Mapping[str, tuple[str, ...]]:
        """For each host that may answer, the source addresses it may see."""
        return {host: self._addresses(expected.seen_by(host), family) for host in expected.hosts}

    def _addresses(self, name: str, family: Family) -> tuple[str, ...]:
        if not name:
            return ()
        topology = self._lab.topology
        if isinstance(topology.host(name), Node):
            return topology.addresses_of_node(name, family)
        return (topology.host(name).addresses.of(family),)

    # --- load ---

    async def _start_load(self, packet: Packet) -> None:
        for family in self._world.families:
            place = self._world.destinations(packet, self._services, family)[0]
            load = Load(
                self._lab.prober,
                _target(packet, place, family),
            )
            self._loads.append(load)
            await load.start()

    async def _stop_load(self, hosts: Sequence[str]) -> None:
        await asyncio.gather(*(load.stop() for load in self._loads))
        for load in self._loads:
            missing = sorted(set(hosts) - load.hosts)
            found = [*load.failures[:5], *(f"{host} never answered" for host in missing)]
            self._wrong += [f"under load {load.label}: {sentence}" for sentence in found]
            self.connections += load.made
        self._loads = []
        await self._lab.proxies.wait_for_leaving()
        await self._check_replaced()

    # --- lasting connections ---

    async def _connect(self, packets: Mapping[str, Packet]) -> None:
        for name, packet in packets.items():
            for family in self._world.families:
                place = self._world.destinations(packet, self._services, family)[0]
                opened = await Lasting.open(self._lab.prober, _target(packet, place, family))
                if isinstance(opened, str):
                    self._wrong.append(f"{family.value} {name}: {opened}")
                else:
                    self._lasting[name, family] = opened

    async def _check_connections(self, expected: Mapping[str, Becomes]) -> None:
        jobs = [
            (name, family, lasting.check(wanted))
            for name, wanted in expected.items()
            for family in self._world.families
            if (lasting := self._lasting.get((name, family)))
        ]
        results = await asyncio.gather(*(check for _, _, check in jobs))
        self._wrong += [
            f"{family.value} {name}: {wrong}"
            for (name, family, _), wrong in zip(jobs, results, strict=True)
            if wrong
        ]

    # --- health, foreign rules, leftovers ---

    async def _check_health(self, step: HealthCheck) -> None:
        for node, endpoints in step.nodes.items():
            for family in self._world.families:
                wrong = await self._health_mistake(node, family, step.port, endpoints)
                self._wrong += [wrong] if wrong else []

    async def _health_mistake(self, node: str, family: Family, port: int, count: int) -> str:
        wanted = (200 if count else 503, f'"localEndpoints": {count}')
        address = self._lab.topology.node(node).addresses.of(family)
        deadline = time.monotonic() + scaled(PATIENCE_SECONDS)
        answer = ""
        while time.monotonic() < deadline:
            try:
                answer = await self._lab.proxies.get(node, address, port, "/")
            except OSError as error:
                answer = str(error)
            if f" {wanted[0]} " in answer and wanted[1] in answer:
                return ""
            await asyncio.sleep(0.05)
        first = answer.splitlines()[0] if answer else "nothing"
        return f"{node} must answer {wanted[0]} with {wanted[1]} on {address}:{port}, says {first}"

    def _ruleset(self, node: str) -> Ruleset:
        return Ruleset(self._lab.namespaces, node)

    def _install_foreign(self) -> None:
        for node in self._lab.proxies.nodes:
            self._ruleset(node).install_foreign()
        self._foreign = {n: self._ruleset(n).foreign() for n in self._lab.proxies.nodes}

    def _check_foreign(self) -> None:
        for node, before in self._foreign.items():
            now = self._ruleset(node).foreign()
            if now != before:
                changed = sorted(set(before) ^ set(now)) or ["the order of rules"]
                self._wrong.append(f"foreign rules on {node} changed: {'; '.join(changed)}")

    async def _expect_no_leftovers(self, mode: str, *, now: str, variant: str = "") -> None:
        """Wait until nothing is left of a mode: its rules go when the other one serves."""
        deadline = time.monotonic() + scaled(LEFTOVER_SECONDS)
        for node in self._lab.proxies.nodes:
            while found := self._ruleset(node).leftovers(mode, now=now, variant=variant):
                if time.monotonic() > deadline:
                    text = f"{len(found)} things of ours are left on {node}: {found[0]}"
                    self._wrong.append(text)
                    break
                await asyncio.sleep(0.1)


def _target(packet: Packet, place: Destination, family: Family) -> Target:
    return Target(
        source=packet.source,
        address=place.address,
        port=place.port,
        family=family,
        protocol=place.protocol,
        source_port=packet.source_port,
    )


def _with_times(service: ServiceText, factor: int) -> ServiceText:
    """The Service with times that are so many times as long."""
    annotations = {
        name: _LIMIT.sub(lambda found: f"limit={factor * int(found[1])}s", text)
        for name, text in service.annotations.items()
    }
    seconds = factor * service.affinity_seconds
    return replace(service, affinity_seconds=seconds, annotations=annotations)


def _ports(service: ServiceText) -> Iterator[tuple[str, Protocol, int]]:
    """Where the endpoints of a Service listen."""
    for endpoint in service.endpoints:
        targets = dict(endpoint.targets)
        for port in service.ports:
            yield endpoint.host, port.protocol, targets.get(port.name, port.target)
