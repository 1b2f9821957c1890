"""Who we are to the API server, at this moment.

Finds the access (kubeconfig, `--master`, or the pod's service account), and hands out a `Login` for
each request: a TLS context and headers. Token files, certificate files and plugins are looked at
again for every request, so rotation needs no restart; a request is rare and a look costs
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
from kubeproxy.api.observer import Observer, SilentObserver
from kubeproxy.errors import ConfigError, Unavailable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Login(msgspec.Struct, frozen=True):
    """What one request needs to be let in."""

    headers: tuple[tuple[str, str], ...]
    context: ssl.SSLContext | None = None
    credential: Credential | None = None


class Found(msgspec.Struct, frozen=True):
    """An access, and what the operator should be told about how it was found."""

    access: Access
    warnings: tuple[str, ...] = ()


def find_access(
    *,
    kubeconfig: str = "",
    master: str = "",
    environment: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Found:
    """The access the flags describe; the pod's own where they describe none."""
    environment = os.environ if environment is None else environment
    if not kubeconfig and not master:
        note = (
            "Neither kubeconfig file nor master URL was specified, "
            "falling back to in-cluster config"
        )
        return _find_in_cluster(note, environment, service_account)
    if not kubeconfig:
        return Found(Access(server=normalise_server(master, Tls())))
    config = read_kubeconfig(split_paths(kubeconfig))
    if not config.is_empty or master:
        return Found(access_from(config, master))
    if not _is_in_cluster(environment, service_account):
        raise ConfigError(NO_CONFIGURATION)
    note = f"{kubeconfig} configures nothing, falling back to in-cluster config"
    return _find_in_cluster(note, environment, service_account)


def _find_in_cluster(note: str, environment: Mapping[str, str], service_account: Path) -> Found:
    access = in_cluster_access(environment, service_account)
    if access.tls.has_ca:
        return Found(access, (note,))
    missing = f"{service_account / 'ca.crt'} is missing, trusting the system's authorities instead"
    return Found(access, (note, missing))


def _is_in_cluster(environment: Mapping[str, str], service_account: Path) -> bool:
    names = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    return all(map(environment.get, names)) and (service_account / "token").is_file()


def in_cluster_access(environment: Mapping[str, str], service_account: Path) -> Access:
    """The access of the pod's service account."""
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
    """The token in a file; an unreadable or empty file is an error that names it."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"open {path}: {reason}") from error
    if not token:
        raise ConfigError(f'failed to read token file "{path}": read empty token')
    return token


class Credentials:
    """Logins for one access."""

    def __init__(
        self,
        access: Access,
        *,
        observer: Observer | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.access = access
        self._plugin = (
            ExecPlugin(
                access.plugin,
                access,
                observer=observer or SilentObserver(),
                environment=environment,
            )
            if access.plugin
            else None
        )
        self._token = access.token
        self._context: tuple[object, ssl.SSLContext] | None = None

    def check(self) -> None:
        """Fail now, with the reason, where certificates or token cannot be used at all."""
        if self.access.token_file:
            read_token(self.access.token_file)
        if self.access.server.startswith("https:"):
            self._tls_context(None)

    async def login(self) -> Login:
        """Headers and TLS context for the next request."""
        credential = await self._plugin.credential() if self._plugin else None
        headers = (*self._authorization(credential), *self.access.impersonation)
        if not self.access.server.startswith("https:"):
            return Login(headers, None, credential)
        return Login(headers, self._tls_context(credential), credential)

    def refuse(self, login: Login) -> None:
        """The server answered 401 to this login."""
        if self._plugin is not None and login.credential is not None:
            self._plugin.refuse(login.credential)

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
        """The file's token; while it cannot be read, the last one, which may still be good."""
        if not self.access.token_file:
            return self._token
        try:
            self._token = read_token(self.access.token_file)
        except ConfigError as error:
            if not self._token:
                raise Unavailable(str(error)) from error
        return self._token

    def _tls_context(self, credential: Credential | None) -> ssl.SSLContext:
        """The context for the files as they are now; the same object while nothing changed.

        Connections are pooled per context: a new one makes new connections, the old ones end with
        their last request.
        """
        tls = self.access.tls
        if credential is not None and credential.client_certificate_data:
            tls = msgspec.structs.replace(
                tls,
                cert_data=credential.client_certificate_data.encode(),
                key_data=credential.client_key_data.encode(),
            )
        fingerprint = (tls, tuple(map(_stamp, tls.files)))
        if self._context is None or self._context[0] != fingerprint:
            self._context = fingerprint, self._rebuild(tls)
        return self._context[1]

    def _rebuild(self, tls: Tls) -> ssl.SSLContext:
        """A half-rotated pair of files must not end a working proxy: keep the last context."""
        try:
            return build_context(tls)
        except ConfigError:
            if self._context is None:
                raise
            return self._context[1]


def _stamp(path: str) -> tuple[int, int, int]:
    """Changes when the file is rewritten or replaced."""
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
