"""The version of this distribution, and the Kubernetes release whose behaviour it has."""

PACKAGE_VERSION = "0.1.0"
"""Version of this distribution."""

KUBERNETES_VERSION = "v1.36.4"
"""The release this proxy is a drop-in for, shown by `--version` and in the user agent."""
