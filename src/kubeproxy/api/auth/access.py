"""How one API server is reached and which credentials are shown there: plain values.

`kubeconfig` and `credentials.in_cluster_access` produce an `Access`. `credentials` turns it into
TLS contexts and headers at the moment of a request, because files and plugins may change meanwhile.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from kubeproxy.errors import ConfigError


class Tls(msgspec.Struct, frozen=True, gc=False):
    """Certificates to trust and to show. Inline data wins over a file of the same purpose."""

    ca_file: str = ""
    ca_data: bytes = b""
    cert_file: str = ""
    cert_data: bytes = b""
    key_file: str = ""
    key_data: bytes = b""
    server_name: str = ""
    is_insecure: bool = False

    @property
    def has_ca(self) -> bool:
        return bool(self.ca_file or self.ca_data)

    @property
    def has_cert(self) -> bool:
        return bool(self.cert_file or self.cert_data)

    @property
    def files(self) -> tuple[str, ...]:
        """The files whose change means that new connections are needed."""
        ca = "" if self.ca_data else self.ca_file
        cert = "" if self.cert_data else self.cert_file
        key = "" if self.key_data else self.key_file
        return tuple(name for name in (ca, cert, key) if name)


class ExecSpec(msgspec.Struct, frozen=True):
    """A program that prints credentials."""

    command: str
    api_version: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    provides_cluster_info: bool = False
    cluster_config: bytes = b""
    """The cluster's `client.authentication.k8s.io/exec` extension as JSON, or empty."""


class Access(msgspec.Struct, frozen=True):
    """The address of one API server, and the credentials for it."""

    server: str
    tls: Tls = Tls()
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    plugin: ExecSpec | None = None
    proxy_url: str = ""
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers that ask to be treated as another user."""
    disables_compression: bool = False

    @property
    def host(self) -> str:
        """Host and port, as the metrics label them."""
        return urlsplit(self.server).netloc


def normalise_server(server: str, tls: Tls) -> str:
    """Return the server's URL with a scheme and without a trailing slash.

    As in client-go, an address without a scheme means TLS if anything about TLS is configured.
    Raises `ConfigError` if it is no URL.
    """
    if "://" not in server:
        uses_tls = tls.has_ca or tls.has_cert or tls.is_insecure
        server = f"{'https' if uses_tls else 'http'}://{server}"
    parts = urlsplit(server)
    try:
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_usable = False
    if not is_usable or parts.query or parts.fragment:
        raise ConfigError(
            f"host must be a URL or a host:port pair: {server!r}; "
            "give the API server as https://host:port"
        )
    return server.rstrip("/")
