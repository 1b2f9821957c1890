"""A node: containerd and a kubelet on a machine, with images loaded from archives."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kpctl.kubernetes.images import PAUSE
from kpctl.kubernetes.machine import Machine
from kpctl.kubernetes.network import DNS_ADDRESSES, DOMAIN, NodePlace, pod_network
from kpctl.kubernetes.programs import CNI, search_path
from kubeproxy.errors import KernelError

_SOCKET = "/run/containerd/containerd.sock"
_START_SECONDS = 120.0
_CONTAINERD = f"""
version = 3
[grpc]
address = "{_SOCKET}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE no process may be given a better score than ours.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI}"]
conf_dir = "/etc/cni/net.d"
"""


class Credentials(msgspec.Struct, frozen=True):
    """Files by which a kubelet knows the API server, and is known by it."""

    kubeconfig: str
    ca: str


class Node:
    """containerd and kubelet of one node."""

    def __init__(self, place: NodePlace, machine: Machine, *, cgroup: str) -> None:
        self.place = place
        self.machine = machine
        self._cgroup = cgroup

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        folder = self.machine.folder
        (folder / "containerd.toml").write_text(_CONTAINERD)
        (folder / "pods.conflist").write_text(pod_network(self.place))
        self.machine.run("mkdir", "-p", "/etc/cni/net.d")
        self.machine.run("cp", str(folder / "pods.conflist"), "/etc/cni/net.d/10-lab.conflist")
        argv = ["containerd", "--config", str(folder / "containerd.toml")]
        process = self.machine.start("containerd", ["env", f"PATH={search_path()}", *argv])
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.ctr("version")
                return
            except KernelError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise KernelError(
                        f"containerd of {self.place.name} does not start: "
                        f"{self.machine.last_words('containerd')}"
                    ) from None
            time.sleep(0.1)

    def ctr(self, *arguments: str) -> str:
        words = ("ctr", "--address", _SOCKET, "--namespace", "k8s.io", *arguments)
        return self.machine.run("env", f"PATH={search_path()}", *words)

    def load(self, archives: Sequence[Path]) -> None:
        """Load images, as an operator does it on a node without a registry."""
        for archive in archives:
            self.ctr("images", "import", str(archive))

    def tag(self, name: str, other: str) -> None:
        """Give an image a second name."""
        self.ctr("images", "tag", name, other)

    def start_kubelet(self, credentials: Credentials) -> None:
        folder = self.machine.folder
        (folder / "resolv.conf").write_text("")
        configuration = folder / "kubelet.json"
        configuration.write_text(json.dumps(self._kubelet_configuration(credentials.ca)))
        argv = [
            "kubelet",
            f"--config={configuration}",
            f"--kubeconfig={credentials.kubeconfig}",
            f"--hostname-override={self.place.name}",
            f"--node-ip={','.join(self.place.addresses)}",
        ]
        self.machine.start("kubelet", ["env", f"PATH={search_path()}", *argv])

    def _kubelet_configuration(self, ca: str) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": ca},
            },
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._cgroup,
            "enforceNodeAllocatable": [],
            # Hosts with the older kind of cgroups work as well.
            "failCgroupV1": False,
            "failSwapOn": False,
            # Several nodes share a disk; none of them may evict pods because of the others.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "clusterDNS": [DNS_ADDRESSES[0]],
            "clusterDomain": DOMAIN,
            "resolvConf": str(self.machine.folder / "resolv.conf"),
        }
