"""Run what was built, each in a root and a network of its own, and send traffic through it."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.host import Host
from tests.support.objects_text import service_text, slice_text
from tests.support.waiting import LIMIT_SECONDS

_IN_ROOT = (
    'mount --make-rprivate / && mount -t proc proc "$1/proc" && mount -t sysfs sysfs "$1/sys"'
    ' && mount -t tmpfs tmpfs "$1/run" && exec chroot "$@"'
)
CLUSTER_IP, ENDPOINT = "10.96.0.10", "10.244.1.5"
SERVICE = service_text(CLUSTER_IP) + slice_text(ENDPOINT)


def apt_sources() -> list[str]:
    """The files in which this machine's apt has its sources."""
    folder = Path("/etc/apt")
    found = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    return [str(path) for path in found if path.is_file() and path.suffix in (".list", ".sources")]


def read_layout(layout: Path) -> tuple[dict[str, object], dict[str, object], bytes]:
    """Config, manifest and layer of an image layout, with every digest and size checked."""
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(_blob(layout, index["manifests"][0]))
    (layer,) = manifest["layers"]
    return json.loads(_blob(layout, manifest["config"])), manifest, _blob(layout, layer)


def _blob(layout: Path, descriptor: dict[str, object]) -> bytes:
    algorithm, _, digest = str(descriptor["digest"]).partition(":")
    content = (layout / "blobs" / algorithm / digest).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
    assert len(content) == descriptor["size"]
    return content


def unpack_image(layout: Path, root: Path) -> None:
    _, manifest, _ = read_layout(layout)
    layers = manifest["layers"]
    assert isinstance(layers, list)
    for layer in layers:
        with tarfile.open(layout / "blobs" / layer["digest"].replace(":", "/")) as tar:
            tar.extractall(root, filter="tar")


def in_root(root: Path, *argv: str) -> list[str]:
    """The command line that runs a program with these files as its root."""
    return ["unshare", "--mount", "sh", "-c", _IN_ROOT, "sh", str(root), *argv]


def run_in_root(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = in_root(root, *argv)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)


@contextmanager
def answering(host: Host) -> Iterator[None]:
    """An endpoint in the host's network that answers each connection with its name."""
    commands = (
        ("address", "add", f"{ENDPOINT}/32", "dev", "lo"),
        ("route", "add", f"{CLUSTER_IP}/32", "dev", "lo", "src", ENDPOINT),
    )
    for words in commands:
        assert host.run("ip", *words).returncode == 0
    listener = host.listen(ENDPOINT, 8080)
    thread = threading.Thread(target=_answer, args=(listener,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"web-1")


def ask(host: Host) -> bytes:
    """What a client gets at the cluster IP; nothing if it cannot connect."""
    with host.network.inside():
        try:
            with socket.create_connection((CLUSTER_IP, 80), timeout=2) as connection:
                return connection.recv(100)
        except OSError:
            return b""


def assert_serves(host: Host, program: Sequence[str | Path], *flags: str) -> None:
    """Start it, expect an answer through the Service, and stop it."""
    with answering(host):
        process = host.start(*flags, program=program)
        host.until(lambda: ask(host) == b"web-1", "an answer through the Service")
        assert host.stop(process) == 0
