"""Builds what tests run against, before they begin: a test has a limit, a compiler none."""

from __future__ import annotations

import os
from functools import partial

from tests.support.go_tools import HELM, RUNTIME_DEFAULT, helm, runtime_default

from kpctl.apiserver.build import NoGo, built, is_built
from kubeproxy.version import KUBERNETES_VERSION

PROGRAMS = {
    (name, KUBERNETES_VERSION): partial(built, name)
    for name in ("etcd", "kube-apiserver", "kubectl", "kube-proxy")
} | {HELM: helm, RUNTIME_DEFAULT: runtime_default}


def main() -> None:
    """Build each program that is not in the cache. What cannot be built is reported; tests skip."""
    if os.geteuid() != 0:
        return  # tests that use them make network namespaces, which only root may
    for (name, version), build in PROGRAMS.items():
        if is_built(name, version):
            continue
        print(f"Building {name} ({version}): some minutes, once per machine", flush=True)
        try:
            build()
        except NoGo as reason:
            print(f"NO {name.upper()}: {reason}. Tests that need it are skipped.")


if __name__ == "__main__":
    main()
