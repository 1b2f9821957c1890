"""Credential plugins: a program of the operator's that prints a token or a certificate.

A credential is kept until it expires or the server refuses it. The program gets no terminal and
must end in time, so that a plugin that hangs is an error and does not hang the proxy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from kubeproxy.api.auth.access import Access, ExecSpec
from kubeproxy.api.json_text import NotJson, parse_json
from kubeproxy.api.observer import Observer
from kubeproxy.errors import Unavailable
from kubeproxy.go.text import format_os_error

TIMEOUT_SECONDS = 60.0


class Credential(msgspec.Struct, frozen=True, rename="camel"):
    """A token, a certificate with its key, or both, as a plugin printed them."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """With its zone. A time without one could mean any hour of a day, and upstream refuses it."""

    def is_valid(self, now: datetime) -> bool:
        return self.expiration_timestamp is None or now < self.expiration_timestamp


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """The object that a plugin prints."""

    kind: str = ""
    api_version: str = ""
    status: Credential | None = None


_PRINTED = msgspec.json.Decoder(_ExecCredential)


def exec_info(spec: ExecSpec, access: Access) -> bytes:
    """Return the text of $KUBERNETES_EXEC_INFO: the wanted version, and the cluster if asked."""
    inner: dict[str, object] = {"interactive": False}
    if spec.provides_cluster_info:
        inner["cluster"] = _cluster_info(spec, access)
    return msgspec.json.encode(
        {"kind": "ExecCredential", "apiVersion": spec.api_version, "spec": inner}
    )


def _cluster_info(spec: ExecSpec, access: Access) -> dict[str, object]:
    info: dict[str, object] = {
        "server": access.server,
        "tls-server-name": access.tls.server_name,
        "insecure-skip-tls-verify": access.tls.is_insecure,
        "certificate-authority-data": access.tls.ca_data,
        "proxy-url": access.proxy_url,
        "disable-compression": access.disables_compression,
        "config": msgspec.Raw(spec.cluster_config) if spec.cluster_config else None,
    }
    return {name: value for name, value in info.items() if value}


def decode_credential(output: bytes, spec: ExecSpec) -> Credential:
    """Decode and check what the plugin printed. Raises `Unavailable` with the plugin's name."""
    try:
        printed = parse_json(_PRINTED, output).value
    except NotJson as error:
        raise _failure(spec, f"decoding stdout: {error}") from error
    if printed.kind != "ExecCredential" or printed.api_version != spec.api_version:
        found = f"{printed.api_version or 'no apiVersion'} {printed.kind or 'no kind'}"
        raise _failure(
            spec, f"it printed {found}, but an ExecCredential of {spec.api_version} is configured"
        )
    status = printed.status
    if status is None:
        raise _failure(spec, "it didn't return a status field")
    if not (status.token or status.client_certificate_data or status.client_key_data):
        raise _failure(spec, "it didn't return a token or cert/key pair")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _failure(spec, "it returned only certificate or key, not both")
    return status


def _failure(spec: ExecSpec, reason: str) -> Unavailable:
    return Unavailable(f"getting credentials: exec: plugin {spec.command}: {reason}")


class ExecPlugin:
    """Runs the plugin when a credential is needed and none is held."""

    def __init__(
        self,
        spec: ExecSpec,
        access: Access,
        *,
        observer: Observer,
        environment: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._spec = spec
        self._info = exec_info(spec, access).decode()
        self._environment = os.environ if environment is None else environment
        self._observer = observer
        self._now = now
        self._timeout_seconds = timeout_seconds
        self._held: Credential | None = None
        self._lock = asyncio.Lock()

    async def credential(self) -> Credential:
        """Return a credential that is not expired. Several callers at once run the plugin once."""
        async with self._lock:
            if self._held is None or not self._held.is_valid(self._now()):
                self._held = decode_credential(await self._run(), self._spec)
            return self._held

    def discard(self, used: Credential) -> None:
        """Do not return this credential again, because the server refused it."""
        if self._held is used:
            self._held = None

    async def _run(self) -> bytes:
        process = await self._start()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                output, errors = await process.communicate()
        except TimeoutError:
            self._observer.plugin_called(code=1, status="plugin_execution_error")
            raise _failure(
                self._spec, f"no answer within {self._timeout_seconds:g} seconds"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return self._check(process.returncode or 0, output, errors)

    async def _start(self) -> asyncio.subprocess.Process:
        environment = {
            **self._environment,
            **dict(self._spec.environment),
            "KUBERNETES_EXEC_INFO": self._info,
        }
        try:
            return await asyncio.create_subprocess_exec(
                self._spec.command,
                *self._spec.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            self._observer.plugin_called(code=1, status="plugin_not_found_error")
            hint = self._spec.install_hint or "install it, or give its full path in the kubeconfig"
            reason = format_os_error(error) if isinstance(error, OSError) else str(error)
            raise _failure(self._spec, f"cannot be started: {reason}; {hint}") from error

    def _check(self, code: int, output: bytes, errors: bytes) -> bytes:
        if code == 0:
            self._observer.plugin_called(code=0, status="no_error")
            return output
        self._observer.plugin_called(code=code, status="plugin_execution_error")
        text = errors.decode(errors="replace").strip()
        raise _failure(self._spec, f"failed with exit code {code}{f': {text}' if text else ''}")
