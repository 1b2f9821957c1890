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
    def files(self) -> tuple[str, ...]:
        """The files that are read again, above all because they change."""
        command = self.plugin.command if self.plugin else ""
        names = (*self.tls.files, self.token_file, command if "/" in command else "")
        return tuple(name for name in names if name)

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
    if not _is_server(server):
        raise ConfigError(
            f"host must be a URL or a host:port pair: {server!r}; "
            "give the API server as https://host:port"
        )
    return server.rstrip("/")


def _is_server(url: str) -> bool:
    """Is it the URL of a server, with nothing that belongs to single requests?"""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, a port that is no number
        return False
    # urlsplit drops line breaks, and yarl would refuse the others at every request.
    is_text = url.isprintable() and " " not in url
    has_rest = bool(parts.query or parts.fragment)
    return has_host and is_text and not has_rest and parts.scheme in ("http", "https")
