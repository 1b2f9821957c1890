"""Which endpoints are checked for which Service, and how results come back in as facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.builders import endpoint, endpoint_slice, port, service
from tests.support.spine import Spine

from kubeproxy.checks.checker import Checker
from kubeproxy.checks.condition import PASSING, Condition, Failure
from kubeproxy.checks.schedule import Target
from kubeproxy.facts.endpoint import Endpoint
from kubeproxy.facts.ids import Family, Protocol, ServiceName
from kubeproxy.facts.policy import CheckKind, HealthCheck
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.sync.checks import HealthChecks

TCP = HealthCheck(CheckKind.TCP)
A, B, C = (endpoint(f"10.244.1.{number}") for number in (1, 2, 3))
WEB, API = ServiceName("default", "web"), ServiceName("default", "api")
REFUSED = Failure("refused", "connection refused")


class FakeChecker(Checker):
    """Checks nothing: the test decides what is found."""

    def __init__(self, changed: Callable[[Sequence[Target]], None]) -> None:
        super().__init__(changed)
        self.report = changed
        self.held: dict[str, Target] = {}
        self.added = 0

    def add(self, check: HealthCheck, address: str, port: int) -> Target:
        target = Target(check, address, port)
        assert not any(
            (found.check, found.address, found.port) == (check, address, port)
            for found in self.held.values()
        )
        self.held[f"{check.kind.value} {address}:{port}"] = target
        self.added += 1
        return target

    def remove(self, target: Target) -> None:
        name = f"{target.check.kind.value} {target.address}:{target.port}"
        assert self.held.pop(name) is target


class World:
    """Engines with checks, and what is recorded of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[ServiceName, str, str]] = []
        self.checks = HealthChecks(self, FakeChecker)
        self.spine = Spine(families=[Family.IPV4], plan_listeners=[self.checks])
        self.checks.report_to(self.spine.engines)
        self.spine.sync()
        self.engine = self.spine.engines[Family.IPV4]

    def endpoint_checked(
        self, family: Family, name: ServiceName, endpoint: str, reason: str
    ) -> None:
        self.seen.append((name, endpoint, reason))

    async def serve(self, facts: ServiceFacts, *endpoints: Endpoint) -> None:
        self.engine.set_service(facts)
        for each in facts.ports:
            found = endpoint_slice(
                str(facts.name),
                endpoints,
                slice_name=f"{facts.name.name}-{each.name}",
                port_name=each.name,
                protocol=each.protocol,
            )
            self.engine.set_slice(found, trigger_time=None)
        await self.engine.round()

    @property
    def checker(self) -> FakeChecker:
        assert isinstance(self.checks.checker, FakeChecker)
        return self.checks.checker

    async def find(self, *names: str, failure: Failure | None = REFUSED) -> None:
        """Let these begin or cease to fail, all in one step, and run the round that follows."""
        targets = [self.checker.held[name] for name in names]
        for target in targets:
            target.condition = Condition(failure)
        self.checker.report(targets)
        await self.engine.round()

    def pool(self, name: ServiceName = WEB) -> list[str]:
        (plan,) = self.engine.pipeline.plans_of(name)
        return [each.address for each in plan.cluster.endpoints]


@pytest.fixture
async def world() -> World:
    return World()


async def test_nothing_exists_until_a_service_asks_for_it(world: World) -> None:
    await world.serve(service(), A, B)
    assert world.checks.checker is None
    await world.serve(service(health_check=TCP), A, B)
    assert set(world.checker.held) == {"tcp 10.244.1.1:8080", "tcp 10.244.1.2:8080"}


async def test_what_fails_leaves_the_pool_and_returns(world: World) -> None:
    await world.serve(service(health_check=TCP), A, B)
    await world.find("tcp 10.244.1.1:8080")
    assert world.pool() == [B.address]
    await world.find("tcp 10.244.1.1:8080", failure=None)
    assert world.pool() == [A.address, B.address]
    assert world.seen == [(WEB, A.text, "connection refused"), (WEB, A.text, "")]


async def test_one_change_costs_its_service_and_no_other(world: World) -> None:
    await world.serve(service(health_check=TCP), A, B)
    for number in range(20):
        await world.serve(service(f"default/other-{number}", cluster_ip=f"10.96.1.{number}"), C)
    planned = world.engine.pipeline.planned
    await world.find("tcp 10.244.1.1:8080")
    assert world.engine.pipeline.planned == planned + 1


async def test_many_that_fail_at_once_are_one_change_of_their_service(world: World) -> None:
    """Each Service is looked at once per step, not once per endpoint."""
    many = [endpoint(f"10.244.{number}.1") for number in range(200)]
    await world.serve(service(health_check=TCP), *many)
    planned = world.engine.pipeline.planned
    await world.find(*list(world.checker.held)[:100])
    assert world.engine.pipeline.planned == planned + 1
    assert len(world.pool()) == 100


async def test_services_and_ports_share_what_is_the_same(world: World) -> None:
    """Two Services, two ports of one of them, one check: one target."""
    ports = (port(80), port(81, name="more"))
    await world.serve(service(health_check=TCP), A)
    await world.serve(service("default/api", ports=ports, health_check=TCP), A)
    assert world.checker.added == 1
    await world.find("tcp 10.244.1.1:8080")
    assert {name for name, _, _ in world.seen} == {WEB, API}
    assert world.engine.pipeline.store.failing(API) == {A.text: "connection refused"}


async def test_another_check_of_the_same_endpoint_is_another_target(world: World) -> None:
    await world.serve(service(health_check=TCP), A)
    await world.serve(
        service("default/api", health_check=HealthCheck(CheckKind.HTTP, "/healthz")), A
    )
    assert set(world.checker.held) == {"tcp 10.244.1.1:8080", "http 10.244.1.1:8080"}


async def test_a_service_that_joins_gets_what_is_known(world: World) -> None:
    await world.serve(service(health_check=TCP), A, B)
    await world.find("tcp 10.244.1.1:8080")
    await world.serve(service("default/api", health_check=TCP), A, B)
    await world.engine.round()
    assert world.pool(API) == [B.address]


async def test_what_is_used_no_more_is_checked_no_more(world: World) -> None:
    await world.serve(service(health_check=TCP), A, B)
    await world.serve(service("default/api", health_check=TCP), B)
    await world.serve(service(health_check=TCP), C)
    assert set(world.checker.held) == {"tcp 10.244.1.2:8080", "tcp 10.244.1.3:8080"}
    world.engine.delete_service(API)
    await world.engine.round()
    await world.serve(service(), C)
    assert world.checker.held == {}


async def test_an_endpoint_that_comes_back_has_a_fresh_start(world: World) -> None:
    """Another pod may have got its address."""
    await world.serve(service(health_check=TCP), A, B)
    await world.find("tcp 10.244.1.1:8080")
    await world.serve(service(health_check=TCP), B)
    assert world.engine.pipeline.store.failing(WEB) == {}
    await world.serve(service(health_check=TCP), A, B)
    assert world.checker.held["tcp 10.244.1.1:8080"].condition == PASSING
    assert world.pool() == [A.address, B.address]


async def test_another_check_forgets_what_the_first_has_found(world: World) -> None:
    await world.serve(service(health_check=TCP), A, B)
    await world.find("tcp 10.244.1.1:8080")
    await world.serve(service(health_check=HealthCheck(CheckKind.HTTP, "/")), A, B)
    await world.engine.round()
    assert world.pool() == [A.address, B.address]
    assert set(world.checker.held) == {"http 10.244.1.1:8080", "http 10.244.1.2:8080"}


async def test_an_endpoint_that_is_not_ready_is_not_checked(world: World) -> None:
    await world.serve(service(health_check=TCP), A, endpoint(B.address, ready=False, serving=False))
    assert set(world.checker.held) == {"tcp 10.244.1.1:8080"}


async def test_what_must_not_be_a_target_gets_no_check(world: World) -> None:
    """A check is a connection, too, and its result is shown to all who read the Service."""
    await world.serve(service(health_check=TCP), A, endpoint("169.254.169.254"))
    assert set(world.checker.held) == {"tcp 10.244.1.1:8080"}


async def test_an_udp_port_is_checked_by_an_udp_check(world: World) -> None:
    dns = service(ports=(port(53, protocol=Protocol.UDP),), health_check=HealthCheck(CheckKind.UDP))
    await world.serve(dns, A)
    assert set(world.checker.held) == {"udp 10.244.1.1:8080"}


async def test_a_round_that_changes_nothing_touches_no_target(world: World) -> None:
    await world.serve(service(health_check=TCP), A, B)
    added = world.checker.added
    await world.serve(service(health_check=TCP, affinity_seconds=5), A, B)
    assert world.checker.added == added


async def test_both_families_have_their_own() -> None:
    checks = HealthChecks(None, FakeChecker)
    spine = Spine(plan_listeners=[checks])
    checks.report_to(spine.engines)
    spine.sync()
    for family, ip in ((Family.IPV4, "10.244.1.1"), (Family.IPV6, "fd00::1")):
        cluster_ip = "10.96.0.1" if family is Family.IPV4 else "fd00:96::1"
        spine.engines[family].set_service(service(cluster_ip=cluster_ip, health_check=TCP))
        spine.engines[family].set_slice(endpoint_slice(endpoints=[endpoint(ip)]), trigger_time=None)
    await spine.rounds()
    assert isinstance(checks.checker, FakeChecker)
    assert set(checks.checker.held) == {"tcp 10.244.1.1:8080", "tcp fd00::1:8080"}
    held = checks.checker.held["tcp fd00::1:8080"]
    held.condition = Condition(REFUSED)
    checks.checker.report([held])
    stores = {family: e.pipeline.store for family, e in spine.engines.items()}
    assert stores[Family.IPV4].failing(WEB) == {}
    assert stores[Family.IPV6].failing(WEB) == {"[fd00::1]:8080": "connection refused"}
    await asyncio.sleep(0)
