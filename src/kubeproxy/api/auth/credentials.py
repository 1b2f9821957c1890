"""The credentials that the API server gets, as they are at the moment of a request.

Finds the access (kubeconfig, `--master`, or the pod's service account), and returns a `Login` for
each request: a TLS context and headers. Token files, certificate files and plugins are checked
for every request, so that rotation needs no restart: requests are rare and a check costs
microseconds. Sending requests is left to `transport`.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kubeproxy.api.auth.access import Access, Tls, normalise_server
from kubeproxy.api.auth.exec_plugin import Credential, ExecPlugin
from kubeproxy.api.auth.kubeconfig import (
    NO_CONFIGURATION,
    access_from,
    read_kubeconfig,
    split_paths,
)
from kubeproxy.api.auth.tls import build_context
from kubeproxy.api.observer import Observer
from kubeproxy.errors import ConfigError, Unavailable
from kubeproxy.go.text import format_os_error
from kubeproxy.kernel.files import open_without_waiting
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit

logger = get_logger(__name__)
_unreadable = LogLimit()

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_TOKEN_BYTES = 1 << 20
"""What a Go server takes as headers of one request."""


class Login(msgspec.Struct, frozen=True):
    """What one request needs to be authenticated."""

    headers: tuple[tuple[str, str], ...]
    context: ssl.SSLContext | None = None
    credential: Credential | None = None


class FoundAccess(msgspec.Struct, frozen=True):
    """An access, and warnings to the operator about how it was found."""

    access: Access
    warnings: tuple[str, ...] = ()


def find_access(
    *,
    kubeconfig: str = "",
    master: str = "",
    environment: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> FoundAccess:
    """Return the access that the flags describe, or the pod's own where they describe none.

    Raises `ConfigError` if there is none or it is wrong.
    """
    environment = os.environ if environment is None else environment
    if not kubeconfig and not master:
        return _find_in_cluster((), environment, service_account)
    if not kubeconfig:
        return FoundAccess(Access(server=normalise_server(master, Tls())))
    config = read_kubeconfig(split_paths(kubeconfig))
    if not config.is_empty or master:
        return FoundAccess(access_from(config, master))
    if not _is_in_cluster(environment, service_account):
        raise ConfigError(NO_CONFIGURATION)
    note = f"{kubeconfig} configures nothing, falling back to in-cluster config"
    return _find_in_cluster((note,), environment, service_account)


def _find_in_cluster(
    notes: tuple[str, ...], environment: Mapping[str, str], service_account: Path
) -> FoundAccess:
    access = in_cluster_access(environment, service_account)
    if access.tls.has_ca:
        return FoundAccess(access, notes)
    missing = f"{service_account / 'ca.crt'} is missing, trusting the system's authorities instead"
    return FoundAccess(access, (*notes, missing))


def _is_in_cluster(environment: Mapping[str, str], service_account: Path) -> bool:
    names = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    return all(map(environment.get, names)) and (service_account / "token").is_file()


def in_cluster_access(environment: Mapping[str, str], service_account: Path) -> Access:
    """Return the access of the pod's service account. Raises `ConfigError` outside a pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError(
            "unable to load in-cluster configuration, "
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
        )
    token_file, ca_file = service_account / "token", service_account / "ca.crt"
    read_token(str(token_file))
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        tls=Tls(ca_file=str(ca_file)) if ca_file.is_file() else Tls(),
        token_file=str(token_file),
    )


def read_token(path: str) -> str:
    """Return the token in a file. Raises `ConfigError` if it is unreadable or empty."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            data = (file.read(MOST_TOKEN_BYTES + 1) or b"").strip()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = format_os_error(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"open {path}: {reason}") from error
    if problem := _token_problem(data):
        raise ConfigError(f'failed to read token file "{path}": {problem}')
    return data.decode("ascii")


def _token_problem(data: bytes) -> str:
    """Return why these bytes are no token, or an empty text. A token is a value of a header."""
    if not data:
        return "read empty token"
    if len(data) > MOST_TOKEN_BYTES:
        return f"it is longer than {MOST_TOKEN_BYTES} bytes"
    if not data.isascii() or not data.decode("ascii").isprintable():
        return "it holds bytes that no token has; it must hold nothing but the token, in one line"
    return ""


class Credentials:
    """Makes logins for one access."""

    def __init__(
        self,
        access: Access,
        *,
        observer: Observer,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.access = access
        self._plugin = (
            ExecPlugin(access.plugin, access, observer=observer, environment=environment)
            if access.plugin
            else None
        )
        self._token = access.token
        self._context: tuple[object, ssl.SSLContext] | None = None

    def check(self) -> None:
        """Raise `ConfigError` now if certificates or token cannot be used at all."""
        if self.access.token_file:
            read_token(self.access.token_file)
        if self.access.server.startswith("https:"):
            try:
                self._tls_context(None)
            except Unavailable as error:
                raise ConfigError(str(error)) from error

    async def login(self) -> Login:
        """Return headers and TLS context for the next request."""
        credential = await self._plugin.credential() if self._plugin else None
        headers = (*self._authorization(credential), *self.access.impersonation)
        if not self.access.server.startswith("https:"):
            return Login(headers, None, credential)
        return Login(headers, self._tls_context(credential), credential)

    def discard(self, login: Login) -> None:
        """Do not use the plugin's credential of this login again: the server answered 401."""
        if self._plugin is not None and login.credential is not None:
            self._plugin.discard(login.credential)

    def _authorization(self, credential: Credential | None) -> tuple[tuple[str, str], ...]:
        access = self.access
        token = self._current_token() or (credential.token if credential else "")
        if token:
            return (("Authorization", f"Bearer {token}"),)
        if access.username or access.password:
            pair = base64.b64encode(f"{access.username}:{access.password}".encode()).decode()
            return (("Authorization", f"Basic {pair}"),)
        return ()

    def _current_token(self) -> str:
        """Return the file's token, or the last one while the file cannot be read.

        A token stays valid for a while after its file was rotated away.
        """
        if not self.access.token_file:
            return self._token
        try:
            self._token = read_token(self.access.token_file)
        except ConfigError as error:
            if not self._token:
                raise Unavailable(str(error)) from error
            if _unreadable.is_due(self.access.token_file):
                logger.error(error, "Token file cannot be used; using the token read before")
        return self._token

    def _tls_context(self, credential: Credential | None) -> ssl.SSLContext:
        """Return the context for the files as they are now.

        It is the same object while nothing changed, because connections are pooled per context:
        with a new one new connections are made, and old ones end with their last request.
        """
        tls = self.access.tls
        if credential is not None and credential.client_certificate_data:
            tls = msgspec.structs.replace(
                tls,
                cert_data=credential.client_certificate_data.encode(),
                key_data=credential.client_key_data.encode(),
            )
        fingerprint = (tls, tuple(map(_file_version, tls.files)))
        if self._context is None or self._context[0] != fingerprint:
            self._context = fingerprint, self._rebuild(tls)
        return self._context[1]

    def _rebuild(self, tls: Tls) -> ssl.SSLContext:
        """Build a context, or keep the last one while the files cannot be used.

        A rotation replaces certificate and key one after the other, and a request may come between.
        """
        try:
            return build_context(tls)
        except ConfigError as error:
            # Of a plugin's certificate there may be no earlier one: a later run may bring it.
            if self._context is None or tls.cert_data != self.access.tls.cert_data:
                raise Unavailable(str(error)) from error
            if _unreadable.is_due(tls.cert_file or tls.ca_file):
                logger.error(error, "Certificates cannot be used; using those read before")
            return self._context[1]


def _file_version(path: str) -> tuple[int, int, int]:
    """Return a value that changes when the file is rewritten or replaced."""
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
