"""A real API server for tests and benchmarks: etcd and kube-apiserver with RBAC.

It can be killed, restarted and compacted. It starts in the network namespace that its command
`prefix` enters (see `places.network`), by default on loopback. Building the programs is left to
`build`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

from kpctl.apiserver.build import built
from kpctl.apiserver.pki import Pki, make_authority, openssl
from kubeproxy.api.auth.access import Access, Tls
from kubeproxy.version import KUBERNETES_VERSION

ADMIN_TOKEN = "admin-token"
NOBODY_TOKEN = "nobody-token"
_TOKENS = f'{ADMIN_TOKEN},admin,1,"system:masters"\n{NOBODY_TOKEN},nobody,2\n'
# Without controllers no namespace has a ServiceAccount, and no one removes an old endpoint.
_ALONE = ("--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")
_ETCD = "http://127.0.0.1:2379"
START_SECONDS = 600.0


class RealApiServer:
    """etcd and one or more API servers. All calls must come from inside their network."""

    def __init__(
        self,
        folder: Path,
        prefix: Sequence[str] = (),
        *,
        service_cidrs: str | None = None,
        address: str = "127.0.0.1",
        etcd: Path | None = None,
        version: str = KUBERNETES_VERSION,
        has_controllers: bool = False,
    ) -> None:
        """Make the credentials. `etcd` is a program to use instead of the built one."""
        self._for_controllers = () if has_controllers else _ALONE
        self.folder = folder
        self._version = version
        self._address = address
        self._etcd = etcd
        self._prefix = tuple(prefix)
        self._service_cidrs = service_cidrs or "10.96.0.0/16,fd00:10:96::/112"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.pki = make_credentials(folder, address)

    @property
    def url(self) -> str:
        return self.url_of(6443)

    def url_of(self, port: int) -> str:
        return f"https://{self._address}:{port}"

    def access(self, token: str = ADMIN_TOKEN, *, port: int = 6443) -> Access:
        return Access(server=self.url_of(port), tls=Tls(ca_file=str(self.pki.ca)), token=token)

    def kubeconfig(self, token: str = ADMIN_TOKEN, *, name: str = "kubeconfig") -> Path:
        """Write a kubeconfig that describes the same access. Return its path."""
        return self.kubeconfig_of({"token": token}, name)

    def kubeconfig_of(self, user: Mapping[str, str], name: str) -> Path:
        """Write a kubeconfig with these fields of a user. Return its path."""
        path = self.folder / name
        cluster = {"server": self.url, "certificate-authority": str(self.pki.ca)}
        tree = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "clusters": [{"name": "main", "cluster": cluster}],
            "users": [{"name": "main", "user": dict(user)}],
            "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
        }
        path.write_text(json.dumps(tree))
        return path

    def start(self) -> None:
        self.start_etcd()
        self.start_server()

    def start_etcd(self) -> None:
        self._run(
            "etcd",
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", _ETCD, "--advertise-client-urls", _ETCD),
            *("--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "warn"),
        )
        _wait("etcd", self._running["etcd"], lambda: _is_ok(f"{_ETCD}/health"))

    def start_server(self, *, port: int = 6443, options: Sequence[str] = ()) -> None:
        """Start an API server. Several may share the etcd."""
        name = f"kube-apiserver-{port}"
        server, key = self.pki.pair("server")
        signer = str(self.folder / "sa.key")
        self._run(
            name,
            f"--etcd-servers={_ETCD}",
            f"--secure-port={port}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            f"--service-cluster-ip-range={self._service_cidrs}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--client-ca-file={self.pki.ca}",
            f"--tls-cert-file={server}",
            f"--tls-private-key-file={key}",
            f"--service-account-key-file={signer}",
            f"--service-account-signing-key-file={signer}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--allow-privileged=true",
            "--etcd-compaction-interval=0",
            "--storage-media-type=application/vnd.kubernetes.protobuf",
            *self._for_controllers,
            *options,
        )
        _wait(name, self._running[name], lambda: self._is_ready(port))

    def heal(self) -> None:
        """Return to one running API server on the usual port, whatever happened before."""
        for name, process in list(self._running.items()):
            if name not in ("etcd", "kube-apiserver-6443") or process.poll() is not None:
                process.kill()
                process.wait()
                del self._running[name]
        if "kube-apiserver-6443" not in self._running:
            self.start_server()

    def kill_server(self, port: int = 6443) -> None:
        """Kill an API server, as a crash would end it."""
        name = f"kube-apiserver-{port}"
        os.kill(self.pid(name), signal.SIGKILL)
        process = self._running.pop(name)
        process.kill()
        process.wait()
        # With nsenter in the prefix the program itself is a grandchild, which `wait` does not
        # cover: wait until its port is free.
        _wait_for(lambda: _is_free(port), f"port {port} is still in use")

    def pid(self, name: str = "kube-apiserver-6443") -> int:
        """The process of a program that runs; with nsenter in the prefix it is its child."""
        pid = self._running[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else pid

    def compact(self) -> None:
        """Make etcd drop every version but the current one."""
        status = _post(f"{_ETCD}/v3/maintenance/status", {})
        revision = json.loads(status)["header"]["revision"]
        _post(f"{_ETCD}/v3/kv/compaction", {"revision": revision, "physical": True})

    def stop(self) -> None:
        for process in reversed(self._running.values()):
            process.kill()
            process.wait()
        self._running = {}

    def _run(self, name: str, *arguments: str) -> None:
        is_etcd = name == "etcd"
        program = self._etcd or built(name) if is_etcd else built("kube-apiserver", self._version)
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*self._prefix, "setpriv", "--pdeathsig", "KILL", str(program), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _is_ready(self, port: int) -> bool:
        return _is_ok(f"{self.url_of(port)}/readyz", self.pki)


def make_credentials(folder: Path, address: str) -> Pki:
    """Make certificates, the key of service account tokens, and the token file."""
    pki = make_authority(folder)
    names = f"IP:127.0.0.1,IP:10.96.0.1,IP:{address},DNS:localhost,DNS:kubernetes.default.svc"
    pki.sign("server", "/CN=kube-apiserver", f"subjectAltName={names}")
    pki.sign("admin", "/O=system:masters/CN=cert-admin", "extendedKeyUsage=clientAuth")
    openssl("genrsa", "-out", str(folder / "sa.key"), "2048")
    (folder / "tokens.csv").write_text(_TOKENS)
    return pki


def _is_free(port: int) -> bool:
    """Can a program listen at all addresses? A listing may lack a socket that is being closed."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
            tried.listen()
        except OSError:
            return False
        return True


def _is_ok(url: str, pki: Pki | None = None) -> bool:
    import ssl

    context = ssl.create_default_context(cafile=str(pki.ca)) if pki else None
    request = Request(url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    try:
        with urlopen(request, timeout=5, context=context) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _post(url: str, body: object) -> bytes:
    request = Request(url, data=json.dumps(body).encode(), method="POST")
    with urlopen(request, timeout=10) as response:
        return bytes(response.read())


def _wait(name: str, process: subprocess.Popen[bytes], is_ready: Callable[[], bool]) -> None:
    def check() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with code {process.returncode}; see its log")
        return is_ready()

    _wait_for(check, f"{name} did not become ready")


def _wait_for(is_true: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem} within {START_SECONDS:g} seconds")
        time.sleep(0.1)
