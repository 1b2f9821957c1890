"""Where a benchmark happens: an API server in one namespace, and a small network per run.

    client ── node ── pods        the proxy under test runs on the node
                │
              bridge of the API server's namespace

Every run gets a fresh node, client and pods. The pods' namespace answers at every address of the
endpoint network, so any service of any size can be connected to. The namespaces hold nothing of
the host and end with the process that made them. All calls belong into `World.inside`.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from kpctl.apiserver.admin import ApiAdmin, admin_of
from kpctl.apiserver.build import NoGo, built
from kpctl.apiserver.real import RealApiServer
from kpctl.bench.cluster import ENDPOINT_CIDR, SERVICE_CIDR, Cluster
from kpctl.bench.events import Uplink
from kpctl.bench.program import Usage, usage_of
from kpctl.places.network import PrivateNetwork
from kubeproxy.errors import Unsupported

API_ADDRESS = "172.31.0.1"
API_PORT = 6443
_NODE_NETWORK = "172.31.0"
_FIRST_NODE = 10
NODE_ADDRESS = f"{_NODE_NETWORK}.{_FIRST_NODE}"
"""Of the Node object: the first site's. The other sites use the same Node object."""
_NODES = 200


def require_programs() -> None:
    """Build the programs to compare with. Raises Unsupported where that cannot be done."""
    try:
        for program in ("etcd", "kube-apiserver", "kube-proxy"):
            built(program)
    except NoGo as error:
        raise Unsupported(f"there is nothing to compare with: {error}") from error


class Site:
    """One run's network: node, client and pods."""

    def __init__(self) -> None:
        self.node = PrivateNetwork()
        self.client = PrivateNetwork()
        self.pods = PrivateNetwork()

    def wire(self) -> None:
        """Lay the cables between node, client and pods."""
        with self.node.inside():
            ip(f"link add client type veth peer name eth0 netns {self.client.namespace}")
            ip(f"link add pods type veth peer name eth0 netns {self.pods.namespace}")
            ip("address add 10.255.0.1/24 dev client", "link set client up")
            ip("address add 10.254.0.1/24 dev pods", "link set pods up")
            ip(f"route add {ENDPOINT_CIDR} via 10.254.0.2")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        with self.client.inside():
            ip("address add 10.255.0.2/24 dev eth0", "link set eth0 up")
            ip("route add default via 10.255.0.1")
        with self.pods.inside():
            ip("address add 10.254.0.2/24 dev eth0", "link set eth0 up")
            ip("route add default via 10.254.0.1")
            ip(f"route add local {ENDPOINT_CIDR} dev lo")

    def close(self) -> None:
        for network in (self.client, self.pods, self.node):
            network.close()


class Node(msgspec.Struct, frozen=True):
    """A node with a cable to the API server, and nothing else."""

    network: PrivateNetwork
    uplink: str
    """The API server's end of the cable."""


def connect(node: PrivateNetwork, uplink: str, address: str) -> None:
    """Lay a cable to the API server. Called from inside its namespace."""
    ip(f"link add {uplink} type veth peer name eth0 netns {node.namespace}")
    ip(f"link set {uplink} master nodes up")
    with node.inside():
        ip(f"address add {address}/24 dev eth0", "link set eth0 up")


class Access(msgspec.Struct, frozen=True):
    """How a proxy on a node reaches an API server: its flags, and where events arrive."""

    flags: tuple[str, ...]
    uplink: Uplink


class Served:
    """The objects in the real API server."""

    uplink = Uplink("eth0", API_PORT)

    def __init__(self, admin: ApiAdmin, kubeconfig: Path) -> None:
        self.admin = admin
        self.cluster = Cluster(admin)
        self.flags = (f"--kubeconfig={kubeconfig}",)

    @contextlib.asynccontextmanager
    async def reached_from(self, site: Site) -> AsyncIterator[Access]:
        """The kubeconfig for a node; every site has a cable to the API server."""
        yield Access(self.flags, self.uplink)


class World:
    """The API server and its namespace, for a whole benchmark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._network = PrivateNetwork()
        self._api = RealApiServer(folder, self._network.command, service_cidrs=SERVICE_CIDR)
        names = f"subjectAltName=IP:127.0.0.1,IP:{API_ADDRESS}"
        self._api.pki.sign("server", "/CN=kube-apiserver", names)
        self._nodes = 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Start the API server, and take the calling thread to it."""
        try:
            with self._network.inside():
                ip("link add nodes type bridge", "link set nodes up")
                ip(f"address add {API_ADDRESS}/24 dev nodes")
                self._api.start_etcd()
                self._start_server()
                yield
        finally:
            self._api.stop()
            self._network.close()

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Served]:
        """The API server with no objects yet."""
        kubeconfig = self._api.kubeconfig(name="node.kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1", API_ADDRESS))
        async with admin_of(self._api.access()) as admin:
            served = Served(admin, kubeconfig)
            await served.cluster.start(NODE_ADDRESS)
            yield served

    def _start_server(self) -> None:
        self._api.start_server(options=("--bind-address=0.0.0.0",))

    def restart_server(self) -> None:
        """Start the API server again, with all objects and without what it has gathered."""
        self._api.kill_server()
        self._start_server()

    def server_usage(self) -> Usage:
        """What the API server has used since its start."""
        return usage_of(self._api.pid())

    def bytes_sent(self) -> dict[str, int]:
        """The bytes that went out by each cable."""
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        split = (line.replace(":", " ").split() for line in lines)
        return {fields[0]: int(fields[9]) for fields in split}

    @contextlib.contextmanager
    def site(self) -> Iterator[Site]:
        """A fresh network for one run."""
        site = Site()
        try:
            self._connect(site.node)
            site.wire()
            yield site
        finally:
            site.close()

    @contextlib.contextmanager
    def node(self) -> Iterator[Node]:
        """A fresh node without client and pods."""
        network = PrivateNetwork()
        try:
            yield Node(network, self._connect(network))
        finally:
            network.close()

    def _connect(self, node: PrivateNetwork) -> str:
        # Never the same name or address twice in a row: the kernel removes a namespace later.
        number = self._nodes % _NODES
        self._nodes += 1
        uplink = f"node{number}"
        connect(node, uplink, f"{_NODE_NETWORK}.{_FIRST_NODE + number}")
        return uplink


def ip(*commands: str) -> None:
    """Run `ip` commands in the namespace of the caller."""
    for command in commands:
        _run(["ip", *command.split()])


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
