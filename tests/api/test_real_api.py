"""The API edge against a real API server: everything a cluster does to a proxy."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.support.recorded import RecordedRequests
from tests.support.waiting import until

from kpctl.apiserver.admin import (
    NODES,
    SERVICE_CIDRS,
    SERVICES,
    SLICES,
    ApiAdmin,
    Json,
    admin_of,
    endpoint_slice,
    service,
)
from kpctl.apiserver.build import built
from kpctl.apiserver.real import NOBODY_TOKEN, RealApiServer
from kpctl.places.network import PrivateNetwork
from kubeproxy.api import exchange
from kubeproxy.api.api_server import ApiEventPoster, ApiServerSource
from kubeproxy.api.auth.access import Access, Tls
from kubeproxy.api.auth.credentials import find_access
from kubeproxy.api.client import ClientSettings, connect
from kubeproxy.api.node import NodeFinder
from kubeproxy.api.objects import EndpointSlice, Node, Service, ServiceCIDR
from kubeproxy.api.reflector import ReflectorSettings
from kubeproxy.api.response_wire import Content, Head, open_content
from kubeproxy.api.source import Delete, Event, Kind, Synced, Undecodable, Upsert
from kubeproxy.api.transport import Request
from kubeproxy.errors import Expired, Forbidden
from kubeproxy.status.event_series import NORMAL, Reference
from kubeproxy.status.events import Recorder

SOME_ADDRESSES = tuple(f"10.7.0.{number}" for number in range(1, 31))

pytestmark = [pytest.mark.api, pytest.mark.timeout(1800)]


class View:
    """An inbox that keeps what a proxy would know, by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[Kind, dict[str, object]] = {kind: {} for kind in Kind}
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Upsert():
                self.objects[event.kind][event.object.metadata.name] = event.object
            case Delete():
                del self.objects[event.kind][event.name]

    def count(self, type_: type[Event], kind: Kind) -> int:
        return sum(isinstance(event, type_) and event.kind is kind for event in self.events)

    @property
    def is_synced(self) -> bool:
        return all(self.count(Synced, kind) for kind in Kind)

    def service(self, name: str) -> Service | None:
        found = self.objects[Kind.SERVICE].get(name)
        assert found is None or isinstance(found, Service)
        return found

    def addresses(self, slice_name: str) -> list[str] | None:
        found = self.objects[Kind.ENDPOINT_SLICE].get(slice_name)
        if found is None:
            return None
        assert isinstance(found, EndpointSlice)
        return [a for endpoint in found.endpoints or () for a in endpoint.addresses or ()]


@asynccontextmanager
async def viewing(
    access: Access, *, node: str = "n1", settings: ReflectorSettings | None = None
) -> AsyncIterator[View]:
    """A running source and what it delivers."""
    view = View()
    client = connect(
        access, observer=RecordedRequests(), settings=ClientSettings(qps=-1), environment={}
    )
    source = ApiServerSource(client, settings=settings or ReflectorSettings())
    task = asyncio.create_task(source.run(view, node))
    try:
        yield view
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


@pytest.fixture
async def admin(real: RealApiServer) -> AsyncIterator[ApiAdmin]:
    async with admin_of(real.access()) as admin:
        yield admin


async def test_pages_arrive_compressed_to_a_fifth(
    real: RealApiServer, admin: ApiAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is received is compared with what it contains: a stream to compare with is not
    promised, as a busy server may refuse it."""
    slices = (endpoint_slice(f"bytes-{n}", "bytes", *SOME_ADDRESSES) for n in range(1000))
    await asyncio.gather(*(admin.create(SLICES, each) for each in slices))
    # The first page comes from the server's cache, which may be behind.
    while (await admin.read(f"{SLICES}?resourceVersion=0")).count(b'"name":"bytes-') < 1000:
        await asyncio.sleep(0.1)
    received = contained = 0

    def counted(head: Head) -> Content:
        content = open_content(head)
        decode = content.decode

        def count_bytes(data: bytes) -> tuple[bytes, bytes]:
            nonlocal received, contained
            piece, rest = decode(data)
            received += len(data) - len(rest)
            contained += len(piece)
            return piece, rest

        monkeypatch.setattr(content, "decode", count_bytes)
        return content

    monkeypatch.setattr(exchange, "open_content", counted)
    async with viewing(real.access(), settings=ReflectorSettings(streams=False)) as view:
        await until(lambda: view.is_synced)
    assert len(view.objects[Kind.ENDPOINT_SLICE]) >= 1000
    assert received < contained / 5, (received, contained)


@pytest.mark.parametrize("streams", [True, False], ids=["streaming", "pages"])
async def test_the_first_sync_delivers_what_exists(
    real: RealApiServer, admin: ApiAdmin, streams: bool
) -> None:
    name = f"first-{'s' if streams else 'p'}"
    await admin.create(SERVICES, service(name))
    await admin.create(SLICES, endpoint_slice(name, name, "10.1.0.1"))
    settings = ReflectorSettings(streams=streams, page_size=1)
    async with viewing(real.access(), settings=settings) as view:
        await until(lambda: view.is_synced)
        found = view.service(name)
        assert found is not None
        assert (found.spec.cluster_ip or "").startswith("10.96.")
        assert view.addresses(name) == ["10.1.0.1"]
        assert "kubernetes" in view.objects[Kind.SERVICE]
        assert "kubernetes" in view.objects[Kind.SERVICE_CIDR]
        assert view.count(Undecodable, Kind.SERVICE) == 0


async def test_services_are_created_changed_and_deleted(
    real: RealApiServer, admin: ApiAdmin
) -> None:
    async with viewing(real.access()) as view:
        await until(lambda: view.is_synced)
        await admin.create(SERVICES, service("crud", type="NodePort"))
        await until(lambda: view.service("crud"))
        ports = [{"name": "web", "port": 81, "protocol": "TCP"}]
        await admin.patch(f"{SERVICES}/crud", {"spec": {"ports": ports}})
        await until(
            lambda: [p.port for p in (view.service("crud") or Service()).spec.ports or ()] == [81]
        )
        status = {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}
        await admin.patch(f"{SERVICES}/crud", {"spec": {"type": "LoadBalancer"}})
        await admin.patch(f"{SERVICES}/crud/status", {"status": status})
        await until(lambda: ingress_ips(view.service("crud")) == ["192.0.2.9"])
        await admin.delete(f"{SERVICES}/crud")
        await until(lambda: view.service("crud") is None)


def ingress_ips(found: Service | None) -> list[str | None]:
    balancer = found.status.load_balancer if found and found.status else None
    return [entry.ip for entry in (balancer.ingress if balancer else None) or ()]


async def test_slices_are_created_scaled_to_zero_and_back_and_deleted(
    real: RealApiServer, admin: ApiAdmin
) -> None:
    async with viewing(real.access()) as view:
        await until(lambda: view.is_synced)
        made = await admin.create(SLICES, endpoint_slice("scale", "svc", "10.1.0.1", "10.1.0.2"))
        await until(lambda: view.addresses("scale") == ["10.1.0.1", "10.1.0.2"])
        await admin.patch(f"{SLICES}/scale", {"endpoints": []})
        await until(lambda: view.addresses("scale") == [])
        await admin.patch(f"{SLICES}/scale", {"endpoints": made["endpoints"]})
        await until(lambda: view.addresses("scale") == ["10.1.0.1", "10.1.0.2"])
        await admin.delete(f"{SLICES}/scale")
        await until(lambda: view.addresses("scale") is None)


async def test_only_our_node_is_seen_through_create_change_delete_and_recreate(
    real: RealApiServer, admin: ApiAdmin
) -> None:
    zone = "topology.kubernetes.io/zone"

    def zone_seen() -> str | None:
        found = view.objects[Kind.NODE].get("ours")
        assert found is None or isinstance(found, Node)
        return found.metadata.labels.zone if found and found.metadata.labels else None

    def node(name: str) -> Json:
        return {"metadata": {"name": name, "labels": {zone: "a"}}}

    async with viewing(real.access(), node="ours") as view:
        await until(lambda: view.is_synced)
        await admin.create(NODES, node("theirs"))
        for _ in range(2):
            await admin.create(NODES, node("ours"))
            await until(lambda: zone_seen() == "a")
            await admin.patch(f"{NODES}/ours", {"metadata": {"labels": {zone: "b"}}})
            await until(lambda: zone_seen() == "b")
            await admin.delete(f"{NODES}/ours")
            await until(lambda: not view.objects[Kind.NODE])
        await admin.delete(f"{NODES}/theirs")
    assert {
        e.object.metadata.name for e in view.events if isinstance(e, Upsert) and e.kind is Kind.NODE
    } == {"ours"}


async def test_service_networks_are_created_and_deleted(
    real: RealApiServer, admin: ApiAdmin
) -> None:
    extra: Json = {"metadata": {"name": "extra"}, "spec": {"cidrs": ["10.111.0.0/24"]}}
    async with viewing(real.access()) as view:
        await until(lambda: view.is_synced)
        await admin.create(SERVICE_CIDRS, extra)
        await until(lambda: "extra" in view.objects[Kind.SERVICE_CIDR])
        found = view.objects[Kind.SERVICE_CIDR]["extra"]
        assert isinstance(found, ServiceCIDR)
        assert found.spec is not None
        assert found.spec.cidrs == ["10.111.0.0/24"]
        await admin.delete(f"{SERVICE_CIDRS}/extra")
        await until(lambda: "extra" not in view.objects[Kind.SERVICE_CIDR])


async def test_labels_and_selectors_decide_what_is_ours(
    real: RealApiServer, admin: ApiAdmin
) -> None:
    other, headless = "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"
    async with viewing(real.access()) as view:
        await until(lambda: view.is_synced)
        await admin.create(SERVICES, service("headless", clusterIP="None"))
        await admin.create(SERVICES, service("theirs", labels={other: ""}))
        await admin.create(SLICES, endpoint_slice("quiet", "quiet", "10.1.0.1"))
        await until(lambda: view.addresses("quiet"))
        await admin.patch(f"{SERVICES}/theirs", {"metadata": {"labels": {other: None}}})
        await until(lambda: view.service("theirs"))
        await admin.patch(f"{SERVICES}/theirs", {"metadata": {"labels": {other: "cilium"}}})
        await until(lambda: view.service("theirs") is None)
        await admin.patch(f"{SLICES}/quiet", {"metadata": {"labels": {headless: ""}}})
        await until(lambda: view.addresses("quiet") is None)
        assert view.service("headless") is None
    for path in (f"{SERVICES}/headless", f"{SERVICES}/theirs", f"{SLICES}/quiet"):
        await admin.delete(path)


async def test_a_server_killed_in_the_middle_of_a_watch_costs_nothing(real: RealApiServer) -> None:
    """Nothing is deleted meanwhile, and afterwards changes arrive again without a new list."""
    async with viewing(real.access()) as view:
        async with admin_of(real.access()) as admin:
            await admin.create(SERVICES, service("before"))
            await until(lambda: view.is_synced and view.service("before"))
        deletes = view.count(Delete, Kind.SERVICE)
        real.kill_server()
        await asyncio.sleep(1)
        assert view.service("before")
        real.start_server()
        async with admin_of(real.access()) as admin:
            await admin.create(SERVICES, service("after"))
            await until(lambda: view.service("after"))
            assert view.service("before")
            assert view.count(Delete, Kind.SERVICE) == deletes
            for name in ("before", "after"):
                await admin.delete(f"{SERVICES}/{name}")
            await until(lambda: not view.service("before") and not view.service("after"))


async def test_compaction_means_a_new_list_that_finds_what_was_missed(real: RealApiServer) -> None:
    """While our server is down another one changes things, and etcd forgets how."""
    async with viewing(real.access()) as view:
        async with admin_of(real.access()) as admin:
            for name in ("stays", "goes"):
                await admin.create(SERVICES, service(name))
            await until(lambda: view.is_synced and view.service("goes"))
        real.kill_server()
        real.start_server(port=6444)
        async with admin_of(real.access(port=6444)) as admin:
            await admin.delete(f"{SERVICES}/goes")
            await admin.create(SERVICES, service("new"))
            for number in range(3):
                await admin.patch(f"{SERVICES}/stays", {"metadata": {"labels": {"n": str(number)}}})
        real.compact()
        real.kill_server(6444)
        real.start_server()
        await until(lambda: view.service("new") and not view.service("goes"))
        assert view.service("stays")
        assert view.count(Synced, Kind.SERVICE) >= 2
        async with admin_of(real.access()) as admin:
            for name in ("stays", "new"):
                await admin.delete(f"{SERVICES}/{name}")


async def test_a_rotated_token_is_used_and_a_revoked_one_is_survived(
    real: RealApiServer, admin: ApiAdmin, tmp_path: Path
) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    role: Json = {
        "metadata": {"name": "rotating"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-proxier",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "rotating", "namespace": "default"}],
    }
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    await admin.create(bindings, role)
    token_file = tmp_path / "token"

    async def new_token() -> None:
        await admin.create(accounts, {"metadata": {"name": "rotating"}})
        made = await admin.create(f"{accounts}/rotating/token", {"spec": {}})
        status = made["status"]
        assert isinstance(status, dict)
        fresh = tmp_path / "fresh"
        fresh.write_text(status["token"])
        fresh.rename(token_file)

    await new_token()
    access = Access(server=real.url, tls=Tls(ca_file=str(real.pki.ca)), token_file=str(token_file))
    quick = ReflectorSettings(watch_seconds=1.0, grace_seconds=5.0, short_watch_seconds=0.0)
    async with viewing(access, settings=quick) as view:
        await until(lambda: view.count(Synced, Kind.SERVICE))
        await admin.delete(f"{accounts}/rotating")
        await asyncio.sleep(2.5)
        await admin.create(SERVICES, service("rotated"))
        assert view.service("kubernetes")
        await new_token()
        await until(lambda: view.service("rotated"))
        assert view.count(Synced, Kind.SERVICE) == 1
    await admin.delete(f"{SERVICES}/rotated")
    await admin.delete(f"{accounts}/rotating")
    await admin.delete(f"{bindings}/rotating")


async def test_a_missing_permission_names_verb_and_resource(real: RealApiServer) -> None:
    async with admin_of(real.access(NOBODY_TOKEN)) as nobody:
        with pytest.raises(Forbidden) as caught:
            await nobody.get("/apis/discovery.k8s.io/v1/endpointslices")
    assert (
        'User "nobody" cannot list resource "endpointslices" in API group "discovery.k8s.io" '
        "at the cluster scope; bind a ClusterRole with this verb and resource"
    ) in str(caught.value)


async def test_a_version_that_never_was_is_expired(real: RealApiServer, admin: ApiAdmin) -> None:
    """As after the storage was restored from a backup."""
    query = (("resourceVersion", "999999999"), ("timeoutSeconds", "1"))
    with pytest.raises(Expired, match="Too large resource version"):
        await admin.client.read(Request("GET", "/api/v1/services", query=query))


async def test_client_certificates_and_kubeconfig_files_are_accepted(
    real: RealApiServer, tmp_path: Path
) -> None:
    certificate, key = real.pki.pair("admin")
    tls = Tls(ca_file=str(real.pki.ca), cert_file=str(certificate), key_file=str(key))
    async with admin_of(Access(server=real.url, tls=tls)) as by_certificate:
        assert (await by_certificate.get("/version"))["gitVersion"] == "v1.36.4"
    found = find_access(kubeconfig=str(real.kubeconfig()))
    async with admin_of(found.access) as by_file:
        assert (await by_file.get(f"{SERVICES}/kubernetes"))["kind"] == "Service"


async def test_the_node_is_found_with_both_addresses(real: RealApiServer, admin: ApiAdmin) -> None:
    await admin.create(NODES, {"metadata": {"name": "found"}})
    addresses = [
        {"type": "ExternalIP", "address": "192.0.2.1"},
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "InternalIP", "address": "fd00::1"},
    ]
    await admin.patch(f"{NODES}/found/status", {"status": {"addresses": addresses}})
    node = await NodeFinder(admin.client).find("found", needs_pod_cidrs=False)
    assert node is not None
    assert node.status is not None
    assert len(node.status.addresses or ()) == 3
    await admin.delete(f"{NODES}/found")


async def test_events_reach_the_server_and_kubectl_shows_them(
    real: RealApiServer, admin: ApiAdmin
) -> None:
    clock = iter(range(1_700_000_000_000_000_000, 1_700_000_100_000_000_000, 1_000_000_000))
    recorder = Recorder(
        ApiEventPoster(admin.client),
        hostname="host",
        now_ns=clock.__next__,
        random=lambda: 0.0,
    )
    for _ in range(2):
        recorder.record(
            Reference("Node", "birth"), type=NORMAL, reason="Starting", action="StartKubeProxy"
        )
    await recorder.drain()
    shown = json.loads(kubectl(real, "get", "events", "-o", "json"))
    events = [event for event in shown["items"] if event["involvedObject"]["name"] == "birth"]
    assert [event["reportingComponent"] for event in events] == ["kube-proxy"]
    assert events[0]["reason"] == "Starting"
    assert events[0]["series"]["count"] == 2


def kubectl(real: RealApiServer, *arguments: str) -> str:
    return subprocess.run(
        [str(built("kubectl")), f"--kubeconfig={real.kubeconfig()}", *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


async def test_an_old_etcd_has_no_streaming_lists_and_pages_serve(
    real_programs: None, tmp_path: Path
) -> None:
    """etcd 3.4 lacks what the API server needs for them, which shows only during the stream."""
    old = Path("/usr/bin/etcd")
    if not old.exists():
        pytest.skip("no Debian etcd-server (3.4) here to show a server without streaming lists")
    network = PrivateNetwork()
    api = RealApiServer(tmp_path, network.command, etcd=old)
    try:
        with network.inside():
            api.start()
            async with viewing(api.access()) as view, admin_of(api.access()) as admin:
                await until(lambda: view.is_synced)
                await admin.create(SERVICES, service("old"))
                await until(lambda: view.service("old"))
    finally:
        api.stop()
        network.close()


async def test_nothing_keeps_the_raw_json(real: RealApiServer, admin: ApiAdmin) -> None:
    """What is held of an object is a small part of what was sent."""
    body = await admin.client.read(Request("GET", "/api/v1/services"))
    async with viewing(real.access()) as view:
        await until(lambda: view.is_synced)
        held = msgspec.json.encode(list(view.objects[Kind.SERVICE].values()))
    assert b"managedFields" in body
    assert b"managedFields" not in held
