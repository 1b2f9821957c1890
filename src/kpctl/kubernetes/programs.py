"""The programs of the cluster: what must be installed, and what is built with Go.

Everything is built once per machine (see `apiserver.build`), which takes some twenty minutes on
two cores. `missing` names what stands in the way before anything is started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from kpctl.apiserver.build import build_once, built, cache_folder, is_built, run_go
from kpctl.kubernetes.images import POD_TOOLS, PROXY_TOOLS
from kubeproxy.version import KUBERNETES_VERSION

CONTAINERD_VERSION = "v2.2.9"
CNI = Path("/usr/lib/cni")
CLUSTER_PROGRAMS = (
    *("etcd", "kube-apiserver", "kubectl", "kube-proxy"),
    *("kube-controller-manager", "kube-scheduler", "kubelet", "agnhost"),
)
E2E_PROGRAMS = ("e2e.test", "ginkgo", "regression-issue-74839")
_CONTAINERD = "github.com/containerd/containerd/v2"
_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
_CONTAINERD_TAGS = "no_btrfs,no_devmapper,no_zfs"
_HOST_TOOLS = ("runc", "busybox", "ip", "nsenter", "unshare", "mount", "openssl", "ldd")


def missing() -> str:
    """Why no cluster can run here, apart from programs to build. Empty if one can."""
    if os.geteuid() != 0:
        return "a cluster makes namespaces, mounts and cgroups, and needs root"
    tools = dict.fromkeys((*_HOST_TOOLS, *POD_TOOLS, *PROXY_TOOLS))
    absent = [tool for tool in tools if shutil.which(tool, path=_host_path()) is None]
    if not (CNI / "bridge").exists():
        absent.append(f"{CNI}/bridge")
    if absent:
        return f"not installed: {', '.join(absent)}; `make cluster-packages` installs what is used"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlay file system (module overlay)"
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        return "the kernel does not show bridged packets to netfilter (module br_netfilter)"
    return ""


def unbuilt(programs: tuple[str, ...] = CLUSTER_PROGRAMS) -> list[str]:
    """Programs that are not in the cache yet."""
    return [
        *(name for name in programs if not is_built(name, KUBERNETES_VERSION)),
        *(name for name in _CONTAINERD_PROGRAMS if not is_built(name, _containerd_cache())),
    ]


def build_all(programs: tuple[str, ...], progress: Callable[[str], None]) -> None:
    """Build what is not in the cache, with a line for each program. Raises `NoGo`."""
    for name in unbuilt(programs):
        progress(f"building {name} with Go, once per machine; this takes minutes")
        if name in _CONTAINERD_PROGRAMS:
            _build_containerd(name)
        else:
            built(name)


def program_folders() -> Iterator[Path]:
    """Where built programs are."""
    for version in (_containerd_cache(), KUBERNETES_VERSION):
        yield cache_folder(version) / "bin"


def search_path() -> str:
    """PATH of the nodes' programs."""
    return ":".join([*map(str, program_folders()), _host_path()])


def _host_path() -> str:
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _containerd_cache() -> str:
    return f"containerd-{CONTAINERD_VERSION}"


def _build_containerd(program: str) -> None:
    """Build a program of containerd: Debian's is too old for today's kubelet."""
    build_once(_containerd_cache(), program, lambda folder: _build(folder, program))


def _build(folder: Path, program: str) -> None:
    source = folder / "src"
    source.mkdir(exist_ok=True)
    lines = ("module kubeproxytests", "go 1.24", f"require {_CONTAINERD} {CONTAINERD_VERSION}")
    if not (source / "go.mod").exists():
        (source / "go.mod").write_text("\n".join(lines) + "\n")
    unfinished = folder / "bin" / f".{program}"
    stamp = f"-s -w -X {_CONTAINERD}/version.Version={CONTAINERD_VERSION}"
    run_go(
        source,
        *("build", "-mod=mod", "-p", "2", "-trimpath", "-tags", _CONTAINERD_TAGS),
        *("-ldflags", stamp, "-o", str(unfinished), f"{_CONTAINERD}/cmd/{program}"),
    )
    unfinished.rename(folder / "bin" / program)
