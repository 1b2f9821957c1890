"""`kpctl doctor` and `kpctl bundle` on a host with a running proxy, in order and broken."""

from __future__ import annotations

import json
import stat

import pytest
from tests.support.host import Host
from tests.support.served import WEB, until_serving, write

pytestmark = pytest.mark.kernel


def serve(host: Host, mode: str) -> None:
    """A proxy on a host that forwards and has a default route."""
    for words in (
        ("ip", "link", "add", "out", "type", "veth", "peer", "name", "far"),
        ("ip", "address", "add", "192.0.2.1/24", "dev", "out"),
        ("ip", "link", "set", "out", "up"),
        ("ip", "link", "set", "far", "up"),
        ("ip", "route", "add", "default", "via", "192.0.2.2"),
        ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
    ):
        done = host.run(*words)
        assert done.returncode == 0, done.stderr
    write(host, "web.yaml", WEB)
    host.start(f"--proxy-mode={mode}")
    host.until(host.socket.exists, "the socket")
    until_serving(host)


def findings(host: Host) -> dict[str, set[str]]:
    done = host.run("kpctl", "doctor", "--socket", host.socket, "-o", "json")
    found: dict[str, set[str]] = {}
    for each in json.loads(done.stdout):
        found.setdefault(each["check"], set()).add(each["level"])
    return found


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_a_host_in_order_and_then_without_forwarding(host: Host, mode: str) -> None:
    serve(host, mode)
    found = findings(host)
    assert found["proxy"] == found["forwarding"] == found["routes"] == {"ok"}
    assert found["other proxies"] == found["objects"] == found["kernel and tools"] == {"ok"}

    host.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    host.run("ip", "route", "del", "default")
    assert findings(host)["forwarding"] == findings(host)["routes"] == {"failure"}
    done = host.run("kpctl", "doctor", "--socket", host.socket)
    assert done.returncode == 1
    assert "Remedy: sysctl -w net.ipv4.ip_forward=1" in done.stdout


def test_a_bundle_is_private_and_keeps_what_the_doctor_found(host: Host) -> None:
    serve(host, "nftables")
    host.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    place = host.manifests.parent / "support.gz"
    assert host.run("kpctl", "bundle", "--socket", host.socket, place).returncode == 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    done = host.run("kpctl", "doctor", "--bundle", place)
    assert done.returncode == 1
    assert "ip_forward is 0" in done.stdout


@pytest.mark.parametrize("mode", ["nftables", "userspace"])
def test_a_bundle_keeps_connections(host: Host, mode: str) -> None:
    serve(host, mode)
    place = host.manifests.parent / "support.gz"
    done = host.run("kpctl", "bundle", "--socket", host.socket, place)
    assert (done.returncode, done.stderr) == (0, "")
    shown = host.run("kpctl", "connections", "shop/web", "--bundle", place, "-o", "json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout) == []
    unknown = host.run("kpctl", "connections", "shop/none", "--bundle", place)
    assert unknown.returncode == 7


def test_without_a_proxy_the_rest_is_examined_all_the_same(host: Host) -> None:
    done = host.run("kpctl", "doctor", "--socket", host.socket)
    assert done.returncode == 1
    assert "no kube-proxy answers" in done.stdout
    assert "ip_forward" in done.stdout


def test_a_damaged_bundle_is_named(host: Host) -> None:
    place = host.manifests.parent / "support.gz"
    place.write_bytes(b"no bundle")
    done = host.run("kpctl", "doctor", "--bundle", place)
    assert done.returncode == 1
    assert "this is no bundle, or it is damaged" in done.stderr
