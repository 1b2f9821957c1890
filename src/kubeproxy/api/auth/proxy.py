"""Which HTTP proxy to use for the API server, if any. Pure.

The kubeconfig's `proxy-url` decides. Without one the usual environment variables do, by the rules
of Kubernetes' own clients: `NO_PROXY` may hold names, domains, addresses and networks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from kubeproxy.errors import ConfigError
from kubeproxy.go.hostport import split_host_port


def choose_proxy(server: str, proxy_url: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the proxy to use for `server`, or an empty text.

    Raises `ConfigError` if it is not an HTTP proxy.
    """
    chosen = proxy_url or _from_environment(server, environment)
    if chosen and "://" not in chosen:
        chosen = f"http://{chosen}"
    if chosen and not _is_http(chosen):
        raise ConfigError(
            f"proxy {chosen!r}: only http and https proxies can be used, as http://host:port; "
            "put an HTTP proxy in front of a SOCKS proxy, or reach the API server directly"
        )
    return chosen


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, a port that is no number
        return False


def _from_environment(server: str, environment: Mapping[str, str]) -> str:
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    chosen = environment.get(name.upper()) or environment.get(name) or ""
    bypass = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return "" if not chosen or bypasses(parts.hostname or "", port, bypass) else chosen


def bypasses(host: str, port: int, rules: str) -> bool:
    """Does a NO_PROXY list name this host? Loopback is never reached through a proxy."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(rule.strip().lower(), host.lower(), port) for rule in rules.split(","))


def _matches(rule: str, host: str, port: int) -> bool:
    if rule == "*":
        return True
    address = _address(host)
    if "/" in rule:
        try:
            network = ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
        return address is not None and address in network
    name, wanted_port = _split_port(rule)
    if not name or wanted_port not in (None, port):
        return False
    if address is not None:
        return _address(name) == address
    if name.startswith(("*.", ".")):
        return host.endswith(name.removeprefix("*"))
    return host == name or host.endswith(f".{name}")


def _split_port(rule: str) -> tuple[str, int | None]:
    """Split a rule into a name or address and a port, None if it names no port."""
    if _address(rule.strip("[]")) is not None:
        return rule.strip("[]"), None
    try:
        name, port = split_host_port(rule)
    except ValueError:
        return rule, None
    # Python refuses to turn thousands of digits into a number.
    is_port = port.isascii() and port.isdigit() and len(port) <= 5
    return (name, int(port)) if is_port else (rule, None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
