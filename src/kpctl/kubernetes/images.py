"""Images of the cluster, made of programs of this host and of programs that were built.

Written as one OCI archive without a container engine: a layer is a tar of copied files with the
shared libraries they load. Images that differ only in name or command share a layer. Our own image
is not made here (`make image` makes it).
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kpctl.apiserver.build import built
from kpctl.apiserver.pki import openssl
from kubeproxy.errors import Unsupported
from kubeproxy.version import KUBERNETES_VERSION

PAUSE = "localhost/pause:lab"
AGNHOST = "localhost/agnhost:lab"
BUSYBOX = "localhost/busybox:lab"
UPSTREAM_PROXY = f"localhost/kube-proxy:{KUBERNETES_VERSION}"

# busybox has these too, but others than tests expect, and its shell prefers its own.
POD_TOOLS = ("sh", "bash", "wget", "nc", "curl", "dig", "ip", "nsenter", "conntrack", "iptables")
PROXY_TOOLS = (
    *("iptables", "iptables-save", "iptables-restore"),
    *("ip6tables", "ip6tables-save", "ip6tables-restore"),
    *("nft", "conntrack", "ipset", "modprobe"),
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_ONE_PROGRAM = {"regression-issue-74839"}
"""Images of tests with one program, of the same name."""
_TYPE = "application/vnd.oci.image."


class Image(msgspec.Struct, frozen=True):
    """A name, what it runs, and the folder with its files."""

    name: str
    root: Path
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def make_images(folder: Path, extra_names: Sequence[str] = ()) -> Path:
    """Write all images into one archive. `extra_names` are others that tests know them by."""
    pod, proxy = folder / "pod", folder / "proxy"
    _fill_pod_root(pod)
    for program in _ONE_PROGRAM & {_base(name) for name in extra_names}:
        shutil.copy2(built(program), pod / program)
    _fill_proxy_root(proxy)
    images = [
        *(_pod_image(name, pod) for name in (PAUSE, AGNHOST, BUSYBOX, *extra_names)),
        Image(UPSTREAM_PROXY, proxy, entrypoint=("/usr/local/bin/kube-proxy",)),
    ]
    archive = folder / "images.tar"
    write_archive(archive, images)
    shutil.rmtree(pod)
    shutil.rmtree(proxy)
    return archive


def _base(name: str) -> str:
    """The last part of an image's name, without its tag."""
    return name.rpartition("/")[2].partition(":")[0]


def _pod_image(name: str, root: Path) -> Image:
    """An image of the shared files that starts what the image of this name starts."""
    base = _base(name)
    if base in _ONE_PROGRAM:
        return Image(name, root, entrypoint=(f"/{base}",))
    if base == "pause":
        return Image(name, root, entrypoint=("/agnhost", "pause"))
    if base == "agnhost":
        return Image(name, root, entrypoint=("/agnhost",), command=("pause",))
    return Image(name, root, command=("sh",))


def _fill_pod_root(root: Path) -> None:
    _fill_base(root)
    shutil.copy2(built("agnhost"), root / "agnhost")
    # agnhost serves TLS with this pair.
    certificate, key = str(root / "localhost.crt"), str(root / "localhost.key")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    pair = ("-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate)
    openssl("req", "-x509", "-days", "30", *pair, *name)
    _copy_programs(root, POD_TOOLS)
    busybox = _find("busybox")
    shutil.copy2(busybox, root / "bin/busybox")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for applet in applets.stdout.split():
        if not (root / "bin" / applet).exists() and not (root / "sbin" / applet).exists():
            (root / "bin" / applet).symlink_to("/bin/busybox")


def _fill_proxy_root(root: Path) -> None:
    _fill_base(root)
    program = root / "usr/local/bin/kube-proxy"
    program.parent.mkdir(parents=True)
    shutil.copy2(built("kube-proxy"), program)
    _copy_programs(root, PROXY_TOOLS)
    _copy_with_libraries(root, list(Path("/usr/lib").glob("*/xtables/*.so")))


def _fill_base(root: Path) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "proc", "sys", "run", "tmp", "root", "etc", "var/lib"):
        (root / name).mkdir(parents=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)


def _find(program: str) -> Path:
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise Unsupported(f"{program} is not installed; `make cluster-packages` installs it")
    return Path(found)


def _copy_programs(root: Path, programs: Sequence[str]) -> None:
    """Copy programs of this host with the libraries they load."""
    places = [_find(program) for program in programs]
    _copy_with_libraries(root, [place.resolve() for place in places])
    for place in places:
        link = root / place.relative_to("/")
        if not link.exists():
            link.symlink_to(place.resolve())


def _copy_with_libraries(root: Path, files: Sequence[Path]) -> None:
    listed = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
    words = [word for line in listed.splitlines() for word in line.split()]
    libraries = {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}
    for path in {*files, *libraries}:
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(path, target)


# --- the archive ---


def write_archive(archive: Path, images: Sequence[Image]) -> None:
    """Write images as an OCI layout in a tar, each layer once."""
    with tarfile.open(archive, "w") as out:
        layers = {root: _add_layer(out, root) for root in {image.root for image in images}}
        listed = [_add_image(out, image, layers[image.root]) for image in images]
        index = {"schemaVersion": 2, "mediaType": _TYPE + "index.v1+json", "manifests": listed}
        _add_file(out, "index.json", _json(index))
        _add_file(out, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))


def _add_layer(out: tarfile.TarFile, root: Path) -> dict[str, object]:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(root, ".", filter=_owned_by_root)
    return _add_blob(out, plain.getvalue(), "layer.v1.tar")


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _add_image(out: tarfile.TarFile, image: Image, layer: dict[str, object]) -> dict[str, object]:
    run = {
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "Entrypoint": list(image.entrypoint),
        "Cmd": list(image.command),
    }
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": run,
        # An uncompressed layer is its own content.
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _TYPE + "manifest.v1+json",
        "config": _add_blob(out, _json(config), "config.v1+json"),
        "layers": [layer],
    }
    named = {"io.containerd.image.name": image.name}
    return {**_add_blob(out, _json(manifest), "manifest.v1+json"), "annotations": named}


def _add_blob(out: tarfile.TarFile, content: bytes, kind: str) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    _add_file(out, f"blobs/sha256/{digest}", content)
    return {"mediaType": _TYPE + kind, "digest": f"sha256:{digest}", "size": len(content)}


def _add_file(out: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    out.addfile(member, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
