"""The whole cluster as a context: three nodes in three zones and kubeadm's kube-proxy, all real.

    with Cluster(ClusterOptions(mode="nftables")) as cluster:
        cluster.control.kubectl("get", "nodes")

Promises: nothing is programmed outside namespaces it made; the proxy has its ServiceAccount and no
other rights; when the block ends, or this process in any way, processes, mounts, networks, cgroups
and files are removed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import msgspec

from kpctl.kubernetes.cgroups import make_cgroups
from kpctl.kubernetes.control import ControlPlane
from kpctl.kubernetes.guest_node import GuestNode
from kpctl.kubernetes.images import UPSTREAM_PROXY, make_images
from kpctl.kubernetes.machine import Machine
from kpctl.kubernetes.network import NodePlace, connect, open_switch
from kpctl.kubernetes.node import Node
from kpctl.kubernetes.objects import as_list, dns_objects, node_object, proxy_objects
from kpctl.kubernetes.programs import CLUSTER_PROGRAMS, build_all, missing
from kpctl.kubernetes.reaper import PREFIX, start_reaper, sweep_stale
from kpctl.kubernetes.ssh import allow_logins
from kubeproxy.errors import Unsupported
from kubeproxy.version import PACKAGE_VERSION

OUR_PROXY = f"localhost/kubeproxy:{PACKAGE_VERSION}"
_WAIT = "--timeout=300s"
_serial = count()

Progress = Callable[[str], None]


class ClusterOptions(msgspec.Struct, frozen=True):
    """What runs as kube-proxy, from which archive our image comes, and in which kernel nodes are.

    `kernel` is empty for the host's, or as in `guest_node`; `login_key` opens the nodes to logins.
    """

    image: Path
    mode: str = "nftables"
    proxy: str = "ours"
    nodes: int = 3
    kernel: str = ""
    login_key: str = ""
    extra_image_names: tuple[str, ...] = ()


class Cluster:
    """A running cluster. Use as a context."""

    def __init__(self, options: ClusterOptions, progress: Progress = lambda text: None) -> None:
        if reason := missing():
            raise Unsupported(reason)
        if options.proxy == "upstream" and options.mode == "userspace":
            raise Unsupported("upstream's kube-proxy has no userspace mode any more")
        if not options.image.exists():
            raise Unsupported(f"there is no image {options.image}; `make image` makes it")
        self.options = options
        self.nodes: list[Node] = []
        """Those in namespaces of this host."""
        self._guests: list[GuestNode] = []
        self._progress = progress
        self._machines: list[Machine] = []
        self._control: ControlPlane | None = None
        self._name = f"{PREFIX}{os.getpid()}-{next(_serial)}"
        self.folder = Path(tempfile.gettempdir()) / self._name

    def __enter__(self) -> Cluster:
        build_all(CLUSTER_PROGRAMS, self._progress)
        sweep_stale()
        self.folder.mkdir(mode=0o700)
        self._reaper = start_reaper(self.folder, self._name)
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything and wait until it is removed."""
        self._progress("removing the cluster")
        if self._control is not None:
            self._control.api.stop()
        for guest in self._guests:
            guest.close()
        for machine in self._machines:
            machine.end()
        for machine in self._machines:
            machine.close()
        self._machines = []
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait()

    @property
    def control(self) -> ControlPlane:
        """The control plane of the open cluster."""
        assert self._control is not None, "the cluster is not open"
        return self._control

    def wait_for_proxy(self) -> None:
        """Wait until every node runs the proxy that the DaemonSet names."""
        self.control.kubectl(
            *("--namespace=kube-system", "rollout", "status", "daemonset/kube-proxy", _WAIT)
        )

    # --- one step after the other ---

    def _open(self) -> None:
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            archive = pool.submit(make_images, self._sub("images"), self.options.extra_image_names)
            self._open_machines()
            self._progress("starting etcd and the control plane")
            self.control.start()
            self.control.kubectl("apply", "-f", "-", objects=self._first_objects())
            self._boot_guests()
            archives = [archive.result(), self.options.image.resolve()]
            self._progress("starting containerd on each node and loading images")
            starts = [
                *(pool.submit(self._start_node, node, archives) for node in self.nodes),
                *(pool.submit(self._start_guest, guest, archives) for guest in self._guests),
            ]
            for done in starts:
                done.result()
        self._progress("waiting for nodes and kube-proxy")
        self.control.kubectl("wait", "node", "--all", "--for=condition=Ready", _WAIT)
        self.wait_for_proxy()
        self._progress(f"the cluster is up after {time.monotonic() - began:.0f} s")

    def _sub(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    @property
    def places(self) -> list[NodePlace]:
        return [NodePlace(number) for number in range(1, self.options.nodes + 1)]

    def _open_machines(self) -> None:
        self._progress("making machines out of namespaces")
        control = self._machine("control")
        if self.options.kernel:
            open_switch(control)
        else:
            pairs = [(place, self._machine(place.name)) for place in self.places]
            connect(control, pairs)
            self.nodes = [self._node(place, machine) for place, machine in pairs]
        self._control = ControlPlane(control)

    def _node(self, place: NodePlace, machine: Machine) -> Node:
        cgroup = f"/{self._name}/{place.name}"
        make_cgroups(cgroup)
        return Node(place, machine, cgroup=cgroup)

    def _boot_guests(self) -> None:
        for place in self.places if self.options.kernel else ():
            self._progress(f"booting a kernel for {place.name}")
            self._guests.append(GuestNode(place, self.control, self.options.kernel))

    def _machine(self, name: str) -> Machine:
        machine = Machine(name, self.folder / name)
        self._machines.append(machine)
        return machine

    def _first_objects(self) -> str:
        image = OUR_PROXY if self.options.proxy == "ours" else UPSTREAM_PROXY
        proxy = proxy_objects(self.options.mode, image, self.control.api.url)
        nodes = [node_object(place) for place in self.places]
        return as_list([*nodes, *dns_objects(), *proxy])

    def _start_node(self, node: Node, archives: list[Path]) -> None:
        node.start_containerd()
        node.load(archives)
        node.start_kubelet(self.control.node_credentials(node.place.name))
        if self.options.login_key:
            allow_logins(node.machine, self.options.login_key)

    def _start_guest(self, guest: GuestNode, archives: list[Path]) -> None:
        numbers = [place.number for place in self.places]
        guest.start(archives, numbers, self.options.login_key)
