"""TLS contexts: which certificate authorities are trusted, and which certificate is shown.

Inline keys are never written to a disk: OpenSSL reads them from an anonymous file in memory.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from kubeproxy.api.auth.access import Tls
from kubeproxy.errors import ConfigError
from kubeproxy.go.text import format_os_error


def build_context(tls: Tls) -> ssl.SSLContext:
    """Return a client context for these settings. Raises `ConfigError` that names what is bad."""
    context = _verifying_context(tls)
    # Go's client does not require the key identifiers of RFC 5280, and certificate authorities
    # made by hand often lack them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if tls.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.has_cert:
        _load_client_certificate(context, tls)
    return context


def _verifying_context(tls: Tls) -> ssl.SSLContext:
    if not tls.has_ca:
        return ssl.create_default_context()
    name = "certificate-authority-data" if tls.ca_data else tls.ca_file
    try:
        if tls.ca_data:
            return ssl.create_default_context(cadata=tls.ca_data.decode())
        return ssl.create_default_context(cafile=tls.ca_file)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"unable to load root certificates: {name}: {_reason(error)}; it must hold PEM "
            "certificates"
        ) from error


def _load_client_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    with (
        _as_file(tls.cert_data, tls.cert_file) as certificate,
        _as_file(tls.key_data, tls.key_file) as key,
    ):
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            cert = "client-certificate-data" if tls.cert_data else tls.cert_file
            where = "client-key-data" if tls.key_data else tls.key_file
            raise ConfigError(
                f"tls: cannot use the client certificate {cert} with the key {where}: "
                f"{_reason(error)}"
            ) from error


def _no_password() -> str:
    """Raise ValueError. Without a callback OpenSSL would ask on the terminal and wait."""
    raise ValueError("the key is encrypted; give it without a pass phrase")


@contextmanager
def _as_file(data: bytes, path: str) -> Iterator[str]:
    """Yield the path of a file with this data, or `path` if there is no data."""
    if not data:
        yield path
        return
    handle = os.memfd_create("kubeproxy-tls", os.MFD_CLOEXEC)
    try:
        os.write(handle, data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError):
        return format_os_error(error)
    return str(error)
