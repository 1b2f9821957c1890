"""The versions people ask for: ours, and the Kubernetes release whose behaviour we match."""

PACKAGE_VERSION = "0.1.0"
"""Version of this distribution."""

KUBERNETES_VERSION = "v1.36.4"
"""The release this proxy is a drop-in for; what `--version` and the user agent say."""
