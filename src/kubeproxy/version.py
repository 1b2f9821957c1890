"""The version of this distribution, and the Kubernetes release whose behaviour it has."""

PACKAGE_VERSION = "0.1.0"
"""Version of this distribution."""

KUBERNETES_VERSION = "v1.36.4"
"""The release this proxy is a drop-in for, shown by `--version` and in the user agent."""

REVISION = ""
"""The commit this was built from, written when a product is packed; empty in a working tree."""

COMMIT, _, _CHANGED = REVISION.partition("-")
TREE_STATE = ("dirty" if _CHANGED else "clean") if COMMIT else ""

DISTRIBUTION = f"kubeproxy {PACKAGE_VERSION}" + (f" ({REVISION})" if REVISION else "")
"""This program by its own name and version, for everything that shows upstream's version."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}


def go_platform(system: str, machine: str) -> str:
    """Return the platform as Go names it: `linux/amd64`."""
    return f"{system.lower()}/{_ARCHITECTURES.get(machine, machine)}"
