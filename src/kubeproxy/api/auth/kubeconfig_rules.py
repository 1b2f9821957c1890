"""Checks of the cluster and the user that a kubeconfig chooses.

Each check returns a list of problems, so that all of them are reported at once. Their texts are
those of Kubernetes' own clients where these have one. Files are opened only to see whether they
can be.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from kubeproxy.api.auth.kubeconfig_types import Cluster, User
from kubeproxy.go.text import format_os_error

_EXEC_VERSIONS = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)
# CONTROL_PLANE_ADDRESS, <address>, ${ADDRESS}, {{ .address }}: none can be part of a URL's host.
_PLACEHOLDER = re.compile(r"^(https?://)?([A-Z]+(_[A-Z]+)+\b|[^/]*[<>{}$])")
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


def check_placeholder(name: str, cluster: Cluster, source: str) -> list[str]:
    """Return the problem of an example's server that was never replaced by a real one.

    Otherwise it would be looked up for ever as a name that no server has.
    """
    if _PLACEHOLDER.search(cluster.server) is None:
        return []
    return [
        f'server "{cluster.server}" of cluster "{name}" has a placeholder: write the address of a '
        "control-plane node, or of the load balancer in front of them (not a cluster IP), as "
        f"clusters[].cluster.server into {source or 'the kubeconfig'}, or into the ConfigMap that "
        "it comes from"
    ]


def check_cluster(name: str, cluster: Cluster) -> list[str]:
    """Return the problems of a cluster entry."""
    problems = []
    if not cluster.server:
        problems.append(
            f'no server found for cluster "{name}"' if name else "cluster has no server defined"
        )
    if cluster.proxy_url:
        problems += _check_proxy(name, cluster.proxy_url)
    if cluster.certificate_authority and cluster.certificate_authority_data:
        problems.append(
            f"certificate-authority-data and certificate-authority are both specified for {name}. "
            "certificate-authority-data will override."
        )
    elif cluster.certificate_authority:
        problems += _unreadable("certificate-authority", cluster.certificate_authority, name)
    if cluster.insecure_skip_tls_verify and (
        cluster.certificate_authority or cluster.certificate_authority_data
    ):
        problems.append("specifying a root certificates file with the insecure flag is not allowed")
    problems += _bad_base64("certificate-authority-data", cluster.certificate_authority_data, name)
    return problems


def _check_proxy(name: str, url: str) -> list[str]:
    scheme, separator, rest = url.partition("://")
    if separator and rest and scheme in _PROXY_SCHEMES:
        return []
    allowed = ", ".join(f'"{known}"' for known in _PROXY_SCHEMES[:3])
    return [
        f'invalid \'proxy-url\' "{url}" for cluster "{name}": '
        f'unsupported scheme "{scheme if separator else ""}", must be one of {allowed}'
    ]


def check_user(name: str, user: User) -> list[str]:
    """Return the problems of a user entry."""
    methods = []
    if user.token:
        methods.append("token")
    if user.username or user.password:
        methods.append("basicAuth")
    problems = _check_client_certificate(name, user) + _check_exec(name, user)
    if user.auth_provider is not None:
        problems.append(
            f'no Auth Provider found for name "{user.auth_provider.name}": '
            f"replace the auth-provider of user {name} by an exec plugin or a token"
        )
    if len(methods) > 1:
        found = " ".join(methods)
        problems.append(
            f"more than one authentication method found for {name}; "
            f"found [{found}], only one is allowed"
        )
    if (user.as_uid or user.as_groups or user.as_user_extra) and not user.as_:
        problems.append(
            f"requesting uid, groups or user-extra for {name} without impersonating a user"
        )
    return problems


def _check_client_certificate(name: str, user: User) -> list[str]:
    if not (user.client_certificate or user.client_certificate_data):
        return []
    problems = []
    if user.client_certificate and user.client_certificate_data:
        problems.append(
            f"client-cert-data and client-cert are both specified for {name}. "
            "client-cert-data will override."
        )
    if user.client_key and user.client_key_data:
        problems.append(
            f"client-key-data and client-key are both specified for {name}; "
            "client-key-data will override"
        )
    if not (user.client_key or user.client_key_data):
        problems.append(
            f"client-key-data or client-key must be specified for {name} "
            "to use the clientCert authentication method."
        )
    if not user.client_certificate_data:
        problems += _unreadable("client-cert", user.client_certificate, name)
    if not user.client_key_data and user.client_key:
        problems += _unreadable("client-key", user.client_key, name)
    problems += _bad_base64("client-certificate-data", user.client_certificate_data, name)
    return problems + _bad_base64("client-key-data", user.client_key_data, name)


def _check_exec(name: str, user: User) -> list[str]:
    exec_ = user.exec
    if exec_ is None:
        return []
    purpose = f"must be specified for {name} to use exec authentication plugin"
    problems = []
    if user.auth_provider is not None:
        problems.append(
            f"authProvider cannot be provided in combination with an exec plugin for {name}"
        )
    if not exec_.command:
        problems.append(f"command {purpose}")
    if not exec_.api_version:
        problems.append(f"apiVersion {purpose}")
    elif exec_.api_version not in _EXEC_VERSIONS:
        known = " or ".join(_EXEC_VERSIONS)
        problems.append(f'exec plugin: invalid apiVersion "{exec_.api_version}"; use {known}')
    if exec_.interactive_mode == "Always":
        problems.append(
            f"exec plugin of {name} wants interactiveMode Always, but a daemon has no terminal; "
            "use Never or IfAvailable"
        )
    elif exec_.interactive_mode not in ("Never", "IfAvailable", ""):
        problems.append(f"invalid interactiveMode for {name}: {exec_.interactive_mode}")
    elif not exec_.interactive_mode and exec_.api_version == _EXEC_VERSIONS[0]:
        problems.append(f"interactiveMode {purpose}")
    return problems


def _unreadable(field: str, path: str, name: str) -> list[str]:
    try:
        with Path(path).open("rb"):
            return []
    except OSError as error:
        reason = format_os_error(error)
        return [f"unable to read {field} {path} for {name} due to open {path}: {reason}"]


def _bad_base64(field: str, text: str, name: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return [f"{field} of {name} is not base64: encode the PEM text with base64 -w0"]
    return []
