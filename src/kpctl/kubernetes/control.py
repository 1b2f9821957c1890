"""The control plane on a machine of its own: API server, controllers, scheduler and name server.

The API server authorizes nodes as in any cluster (Node and RBAC). Only the controllers and the
user of `kubectl` are admin; what runs on nodes has credentials of its own.
"""

from __future__ import annotations

import subprocess
import sys

from kpctl.apiserver.build import built
from kpctl.apiserver.real import RealApiServer
from kpctl.kubernetes.machine import Machine
from kpctl.kubernetes.network import CONTROL, SERVICE_CIDRS
from kpctl.kubernetes.node import Credentials
from kpctl.places.netns import inside_namespace
from kubeproxy.errors import KernelError

_KUBECTL_SECONDS = 300.0


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and a name server."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        folder = machine.folder / "api"
        folder.mkdir()
        self.api = RealApiServer(
            folder,
            machine.command([]),
            service_cidrs=SERVICE_CIDRS,
            address=CONTROL[0],
            has_controllers=True,
        )
        self.kubeconfig = self.api.kubeconfig()

    def start(self) -> None:
        with inside_namespace(self.machine.network):
            self.api.start_etcd()
            self.api.start_server(options=self._server_options())
        self._start_controller("kube-controller-manager", *self._token_options())
        self._start_controller("kube-scheduler")
        argv = [sys.executable, "-m", "kpctl.kubernetes.dns", self.api.url, str(self.api.pki.ca)]
        self.machine.start("dns", [*argv, *CONTROL])

    def node_credentials(self, node: str) -> Credentials:
        """Credentials by which the API server knows a node."""
        pki = self.api.pki
        subject = f"/O=system:nodes/CN=system:node:{node}"
        certificate, key = pki.sign(node, subject, "extendedKeyUsage=clientAuth")
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        kubeconfig = self.api.kubeconfig_of(user, f"kubeconfig-{node}")
        return Credentials(kubeconfig=str(kubeconfig), ca=str(pki.ca))

    def kubectl_command(self, *arguments: str) -> list[str]:
        """The command line of kubectl as admin."""
        program = [str(built("kubectl")), f"--kubeconfig={self.kubeconfig}"]
        return ["nsenter", f"--net={self.machine.network}", *program, *arguments]

    def kubectl(self, *arguments: str, objects: str | None = None) -> str:
        """Run kubectl to its end. Return what it prints. Raises `KernelError` if it fails."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=objects,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_SECONDS,
        )
        if done.returncode:
            raise KernelError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def _server_options(self) -> tuple[str, ...]:
        certificate, key = self.api.pki.pair("admin")
        return (
            "--authorization-mode=Node",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={certificate}",
            f"--kubelet-client-key={key}",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _token_options(self) -> tuple[str, ...]:
        return (
            f"--service-account-private-key-file={self.api.folder / 'sa.key'}",
            f"--root-ca-file={self.api.pki.ca}",
        )

    def _start_controller(self, program: str, *options: str) -> None:
        own = ("--leader-elect=false", f"--kubeconfig={self.kubeconfig}", *options)
        # Tests that delete much would wait for the default of 20 requests a second.
        limits = ("--kube-api-qps=200", "--kube-api-burst=400")
        self.machine.start(program, [str(built(program)), *own, *limits])
