"""Tools of others that only tests use, built with Go once per machine: Helm, RuntimeDefault."""

from __future__ import annotations

from pathlib import Path

from kpctl.apiserver.build import build_once, run_go

_HELM, _HELM_VERSION = "helm.sh/helm/v3", "v3.22.0"
_CONTAINERD, _CONTAINERD_VERSION = "github.com/containerd/containerd/v2", "v2.1.4"
HELM = ("helm", f"helm-{_HELM_VERSION}")
RUNTIME_DEFAULT = ("runtime-default", f"seccomp-{_CONTAINERD_VERSION}")
"""Names of programs, and the folders they are kept in."""
_PROFILE = f"""package main

import (
	"encoding/json"
	"os"

	"{_CONTAINERD}/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {{
	spec := &specs.Spec{{}}
	if err := json.NewDecoder(os.Stdin).Decode(spec); err != nil {{
		panic(err)
	}}
	if err := json.NewEncoder(os.Stdout).Encode(seccomp.DefaultProfile(spec)); err != nil {{
		panic(err)
	}}
}}
"""


def helm() -> Path:
    """Helm. Raises `NoGo`."""
    program, folder = HELM
    return build_once(folder, program, _build_helm)


def runtime_default() -> Path:
    """A program: an OCI configuration in, containerd's RuntimeDefault for it out. Raises `NoGo`."""
    program, folder = RUNTIME_DEFAULT
    return build_once(folder, program, _build_profile)


def _build_helm(folder: Path) -> None:
    unfinished = folder / "unfinished"
    package = f"{_HELM}/cmd/helm@{_HELM_VERSION}"
    run_go(folder, "install", "-p", "1", "-trimpath", package, GOBIN=str(unfinished))
    unfinished.rename(folder / "bin")


def _build_profile(folder: Path) -> None:
    lines = ("module kubeproxytests", "go 1.23", f"require {_CONTAINERD} {_CONTAINERD_VERSION}")
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    (folder / "main.go").write_text(_PROFILE)
    unfinished = folder / "runtime-default"
    run_go(folder, "build", "-mod=mod", "-p", "1", "-trimpath", "-o", str(unfinished), ".")
    (folder / "bin").mkdir(exist_ok=True)
    unfinished.rename(folder / "bin" / unfinished.name)
