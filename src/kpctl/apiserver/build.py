"""Builds the programs of a Kubernetes cluster with Go, once per machine.

The sources come from the Go module proxy that the machine is configured for; only module names and
versions are written here. Programs of older Kubernetes releases are built on request. Binaries are
kept outside the tree, in the user's cache directory, so that later runs start at once. Building
takes some minutes. Where it is not possible, `NoGo` names the reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kubeproxy.version import KUBERNETES_VERSION

_MODULE = "k8s.io/kubernetes"
_ETCD_MODULE = "go.etcd.io/etcd/server/v3"
_COMMANDS = (
    *("kube-apiserver", "kubectl", "kube-proxy"),
    *("kube-controller-manager", "kube-scheduler", "kubelet"),
)
_PACKAGES = {
    "etcd": "./etcd",
    **{name: f"{_MODULE}/cmd/{name}" for name in _COMMANDS},
    **{name: f"{_MODULE}/test/images/{name}" for name in ("agnhost", "regression-issue-74839")},
    "e2e.test": f"{_MODULE}/test/e2e",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
}
# A test package is compiled by another command, and checking its source takes as long again.
_VERBS = {"e2e.test": ("test", "-c", "-vet=off")}
_ETCD_MAIN = f"""package main

import (
	"os"

	"{_ETCD_MODULE}/etcdmain"
)

func main() {{ etcdmain.Main(os.Args) }}
"""


class NoGo(Exception):
    """The programs cannot be built on this machine, for the reason in the text."""


def cache_folder(version: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kubeproxy-tests" / version


def built(program: str, version: str = KUBERNETES_VERSION) -> Path:
    """Return the path of a program, and build it first if needed. Raises `NoGo`."""
    return build_once(version, program, lambda folder: _build(folder, program, version))


def is_built(program: str, version: str) -> bool:
    """Is the program of a release in the cache already?"""
    return (cache_folder(version) / "bin" / program).exists()


def build_once(version: str, program: str, build: Callable[[Path], None]) -> Path:
    """Return `bin/program` in the cache of a version; `build` makes it if needed. Raises `NoGo`."""
    folder = cache_folder(version)
    binary = folder / "bin" / program
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        raise NoGo(f"{program} must be built with Go, and there is no `go` command here")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not binary.exists():
            build(folder)
    return binary


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock, so that two test runs at once build only once."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(folder: Path, program: str, version: str) -> None:
    source = folder / "src"
    (source / "etcd").mkdir(parents=True, exist_ok=True)
    (source / "etcd" / "main.go").write_text(_ETCD_MAIN)
    if not (source / "go.mod").exists():
        (source / "go.mod").write_text(_module_file(folder, version))
    unfinished = folder / "bin" / f".{program}"
    run_go(
        source,
        *_VERBS.get(program, ("build",)),
        *("-mod=mod", "-p", "2", "-trimpath", "-ldflags", _linker_flags(version)),
        *("-o", str(unfinished), _PACKAGES[program]),
    )
    unfinished.rename(folder / "bin" / program)


def _module_file(folder: Path, version: str) -> str:
    """Return a go.mod that requires Kubernetes, its staging modules mapped to their releases."""
    downloaded = run_go(folder, "mod", "download", "-json", f"{_MODULE}@{version}")
    described = run_go(folder, "mod", "edit", "-json", json.loads(downloaded)["GoMod"])
    upstream = json.loads(described)
    etcd = next(r["Version"] for r in upstream["Require"] if r["Path"] == _ETCD_MODULE)
    staged = version.replace("v1.", "v0.", 1)
    replaced = [entry["Old"]["Path"] for entry in upstream["Replace"]]
    lines = [
        "module kubeproxytests",
        f"go {upstream['Go']}",
        f"require {_MODULE} {version}",
        f"require {_ETCD_MODULE} {etcd}",
        *(f"replace {path} => {path} {staged}" for path in replaced),
    ]
    return "\n".join(lines) + "\n"


def _linker_flags(version: str) -> str:
    """Return the flags that give the programs the version of a release build."""
    _, minor, _ = version.split(".")
    stamps = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor}
    words = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        words += [f"-X {package}.{name}={value}" for name, value in stamps.items()]
    return " ".join(words)


def run_go(folder: Path, *arguments: str, **environment: str) -> str:
    """Run the go command in a folder. Return what it prints. Raises `NoGo` if it fails."""
    done = subprocess.run(
        ["nice", "-n", "10", "go", *arguments],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "downloading" not in line]
        raise NoGo(f"go {arguments[0]} failed: {' / '.join(lines[-5:])}")
    return done.stdout
