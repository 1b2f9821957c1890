"""The whole daemon, fed by an API server: what reaches the kernel, and what does not.

Everything happens in the private network of the API server; the rules are read with nft.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.support import waiting
from tests.support.waiting import LIMIT_SECONDS

from kpctl.apiserver.admin import (
    NODES,
    SERVICES,
    SLICES,
    ApiAdmin,
    Json,
    admin_of,
    endpoint_slice,
    service,
)
from kpctl.apiserver.real import RealApiServer
from kpctl.apiserver.small import Fault, SmallApiServer

pytestmark = [pytest.mark.api, pytest.mark.timeout(1800)]

NODE = "daemon-node"
WEB_IP = "10.96.50.1"


class Daemon:
    """A running kube-proxy."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kubeproxy", f"--hostname-override={NODE}"),
                    *("--inspection-socket=", *flags),
                ],
                stdout=output,
                stderr=output,
            )

    def ended(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running(log: Path, *flags: str) -> Iterator[Daemon]:
    common = ("--proxy-mode=nftables", "--conntrack-max-per-core=0", "--cluster-cidr=10.1.0.0/16")
    daemon = Daemon(log, *common, *flags)
    try:
        yield daemon
    finally:
        daemon.kill()


def rules() -> list[Json]:
    """Our IPv4 table, as nft sees it; nothing where there is none."""
    done = subprocess.run(
        ["nft", "-j", "-a", "list", "table", "ip", "kube-proxy"], capture_output=True, check=False
    )
    return json.loads(done.stdout)["nftables"] if done.returncode == 0 else []


def handles() -> dict[str, object]:
    """The kernel's number of every chain, set and map: it changes when one is made again."""
    found = {}
    for entry in rules():
        for kind in ("table", "chain", "set", "map"):
            body = entry.get(kind)
            if isinstance(body, dict):
                found[f"{kind} {body['name']}"] = body["handle"]
    return found


def mentions(text: str) -> Callable[[], bool]:
    return lambda: f'"{text}"' in json.dumps(rules())


def health() -> int:
    try:
        with urlopen("http://127.0.0.1:10256/healthz", timeout=LIMIT_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except OSError:
        return 0


async def until(condition: Callable[[], object], daemon: Daemon) -> None:
    """Wait for the kernel; the daemon's log is shown where it does not come."""
    await waiting.until(condition, lambda: daemon.log.read_text()[-4000:])


@pytest.fixture
def clean_table(real: RealApiServer) -> Iterator[RealApiServer]:
    yield real
    for family in ("ip", "ip6"):
        subprocess.run(
            ["nft", "delete", "table", family, "kube-proxy"], capture_output=True, check=False
        )


@pytest.fixture
async def web(clean_table: RealApiServer) -> AsyncIterator[ApiAdmin]:
    """A node and a service with one endpoint."""
    async with admin_of(clean_table.access()) as admin:
        await admin.create(NODES, {"metadata": {"name": NODE}})
        addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
        await admin.patch(f"{NODES}/{NODE}/status", {"status": {"addresses": addresses}})
        await admin.create(SERVICES, service("web", clusterIP=WEB_IP))
        await admin.create(SLICES, endpoint_slice("web", "web", "10.1.50.1"))
        yield admin
    async with admin_of(clean_table.access()) as admin:
        for path in (f"{NODES}/{NODE}", f"{SERVICES}/web", f"{SLICES}/web"):
            await admin.delete(path)


def endpoints(*addresses: str) -> Json:
    return {"endpoints": [{"addresses": [address]} for address in addresses]}


async def test_changes_in_the_cluster_reach_the_kernel(
    real: RealApiServer, web: ApiAdmin, tmp_path: Path
) -> None:
    with running(tmp_path / "log", f"--kubeconfig={real.kubeconfig()}") as daemon:
        await until(mentions("10.1.50.1"), daemon)
        await web.patch(f"{SLICES}/web", endpoints("10.1.50.7"))
        await until(lambda: mentions("10.1.50.7")() and not mentions("10.1.50.1")(), daemon)
        await web.patch(f"{SLICES}/web", endpoints())
        await until(lambda: not mentions("10.1.50.7")(), daemon)
        assert mentions(WEB_IP)()
        await web.patch(f"{SLICES}/web", endpoints("10.1.50.8"))
        await until(mentions("10.1.50.8"), daemon)
        await web.delete(f"{SERVICES}/web")
        await until(lambda: not mentions(WEB_IP)() and not mentions("10.1.50.8")(), daemon)
        events = await web.get("/apis/events.k8s.io/v1/namespaces/default/events")
        assert f'"name": "{NODE}' in json.dumps(events)


async def test_a_second_daemon_records_an_event_and_is_fed_while_it_waits(
    real: RealApiServer, web: ApiAdmin, tmp_path: Path
) -> None:
    """It has all objects when the first one ends, and takes over from it with what is new."""
    kubeconfig = f"--kubeconfig={real.kubeconfig()}"
    with running(tmp_path / "first", kubeconfig) as first:
        await until(mentions("10.1.50.1"), first)
        with running(tmp_path / "second", kubeconfig) as second:

            async def has_event() -> bool:
                events = await web.get("/apis/events.k8s.io/v1/namespaces/default/events")
                return '"AnotherProxy"' in json.dumps(events)

            await waiting.until_async(has_event, second.log.read_text)
            assert second.ended() is None
            first.kill()
            await web.patch(f"{SLICES}/web", endpoints("10.1.50.7"))
            await until(mentions("10.1.50.7"), second)


async def test_an_outage_keeps_the_rules_and_ends_without_a_flush(
    real: RealApiServer, web: ApiAdmin, tmp_path: Path
) -> None:
    """While our server is away another one makes a change; what did not change is not touched."""
    await web.create(SERVICES, service("other", clusterIP="10.96.50.2"))
    await web.create(SLICES, endpoint_slice("other", "other", "10.1.50.2"))
    with running(tmp_path / "log", f"--kubeconfig={real.kubeconfig()}") as daemon:
        await until(lambda: mentions("10.1.50.1")() and mentions("10.1.50.2")(), daemon)
        before = handles()
        real.kill_server()
        real.start_server(port=6444)
        async with admin_of(real.access(port=6444)) as admin:
            await admin.patch(f"{SLICES}/web", endpoints("10.1.50.9"))
            await admin.delete(f"{SLICES}/other")
        real.compact()
        assert mentions("10.1.50.1")()
        assert mentions("10.1.50.2")()
        assert health() == 200
        real.kill_server(6444)
        real.start_server()
        await until(mentions("10.1.50.9"), daemon)
        await until(lambda: not (mentions("10.1.50.1")() or mentions("10.1.50.2")()), daemon)
        after = handles()
        lasting = {name for name in before if name.startswith(("table", "map", "set"))}
        assert {name: after.get(name) for name in lasting} == {n: before[n] for n in lasting}
    async with admin_of(real.access()) as admin:
        await admin.delete(f"{SERVICES}/other")


async def test_without_an_api_server_an_old_table_is_left_alone(
    real: RealApiServer, web: ApiAdmin, tmp_path: Path
) -> None:
    with running(tmp_path / "log", f"--kubeconfig={real.kubeconfig()}") as daemon:
        await until(mentions("10.1.50.1"), daemon)
    before = rules()
    nowhere = f"--master={real.url_of(6499)}"
    with running(tmp_path / "second", f"--kubeconfig={real.kubeconfig()}", nowhere) as daemon:
        await until(lambda: "cannot connect" in daemon.log.read_text(), daemon)
        await asyncio.sleep(1)
        assert daemon.ended() is None
        assert rules() == before


async def test_nothing_is_written_before_both_lists_are_complete(
    clean_table: RealApiServer, tmp_path: Path
) -> None:
    """The slices' list hangs: services alone must not program, above all not reject, anything."""
    api = SmallApiServer()
    api.store.create("services", "default", service("web", clusterIP=WEB_IP))
    api.store.create("endpointslices", "default", endpoint_slice("web", "web", "10.1.50.1"))
    node: Json = {
        "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    }
    api.store.create("nodes", "", node)
    slices = "/apis/discovery.k8s.io/v1/endpointslices"
    api.faults.append(Fault(stalls=True, applies=lambda seen: seen.path == slices))
    async with api.serving():
        with running(tmp_path / "log", f"--master={api.url}", "-v=2") as daemon:
            synced = '"Caches populated" type="Service"'
            await until(lambda: synced in daemon.log.read_text(), daemon)
            await asyncio.sleep(1.5)
            assert rules() == []
            assert any(seen.path == slices for seen in api.requests)


async def test_new_pod_networks_end_the_process_where_they_matter(
    real: RealApiServer, web: ApiAdmin, tmp_path: Path
) -> None:
    await web.patch(
        f"{NODES}/{NODE}", {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}
    )
    flags = (f"--kubeconfig={real.kubeconfig()}", "--detect-local-mode=NodeCIDR")
    with running(tmp_path / "log", *flags) as daemon:
        await until(mentions("10.1.50.1"), daemon)
        await web.delete(f"{NODES}/{NODE}")
        spec = {"podCIDR": "10.1.9.0/24", "podCIDRs": ["10.1.9.0/24"]}
        await web.create(NODES, {"metadata": {"name": NODE}, "spec": spec})
        await until(lambda: daemon.ended() is not None, daemon)
        assert daemon.ended() == 1
        assert "PodCIDRs changed for the node" in daemon.log.read_text()
        assert mentions("10.1.50.1")()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kubeconfig=/no/such",), "stat /no/such: no such file or directory"),
        ((), "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and"),
        (("--master=ftp://x",), "host must be a URL or a host:port pair"),
    ],
)
async def test_wrong_credentials_end_the_process_with_a_reason(
    clean_table: RealApiServer, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    with running(tmp_path / "log", *flags) as daemon:
        await until(lambda: daemon.ended() is not None, daemon)
        assert daemon.ended() == 1
        assert message in daemon.log.read_text()
