"""`kpctl bundle` beside a running proxy: one reading, and everything that commands need."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.support.flowing import ADDRESSES, connect, listening, prepare, repeating, serve
from tests.support.host import Host
from tests.support.served import until_serving

from kpctl.bundle.collect import collect
from kpctl.snapshot.client import Client

pytestmark = pytest.mark.kernel


def start(host: Host, mode: str) -> str:
    prepare(host)
    vip, first, second = ADDRESSES["IPv4"]
    serve(host, "IPv4", {first: True, second: True})
    host.start(f"--proxy-mode={mode}")
    host.until(host.socket.exists, "the socket")
    until_serving(host)
    return vip


def offline(host: Host, path: Path, *words: str) -> tuple[int, str]:
    done = host.run("kpctl", *words, "--bundle", path)
    return done.returncode, done.stdout


def has_connections(host: Host, path: Path) -> bool:
    """Write a bundle. In two seconds of a busy machine there may be no connection."""
    path.unlink(missing_ok=True)
    done = host.run("kpctl", "bundle", "--socket", host.socket, path, "-i", "2")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(offline(host, path, "top", "-o", "json")[1])["services"]
    return any(row["connectionsPerSecond"] for row in rows)


@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
def test_a_bundle_answers_what_the_node_would(host: Host, tmp_path: Path, mode: str) -> None:
    vip, path = start(host, mode), tmp_path / "node.kpb"
    host.run("nft", "add table inet guard")
    host.run("nft", "add chain inet guard early { type filter hook prerouting priority -300; }")
    with listening(host, "IPv4"):
        connect(host, vip).close()
        with repeating(lambda: connect(host, vip).close()):
            host.until(lambda: has_connections(host, path), "a bundle with connections")
    code, text = offline(host, path, "top", "-o", "json")
    (row,) = json.loads(text)["services"]
    assert (code, row["service"]) == (0, "shop/web:http") and row["connectionsPerSecond"] > 0
    code, text = offline(host, path, "drift", "-o", "wide")
    assert code == 0 and "the kernel is as wanted" in text
    assert "table inet guard, chain early (filter)" in text
    code, text = offline(host, path, "trace", "outside", f"{vip}:80")
    assert code == 0 and "plan, rules and kernel agree" in text
    code, text = offline(host, path, "connections", "shop/web", "-o", "json")
    assert code == 0 and "shop/web:http" in text


def test_the_proxy_is_read_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start(host, "nftables")
    asked: Counter[str] = Counter()
    get = Client._get

    def counted(client: Client, place: str, answer: type[object]) -> object:
        asked[place.partition("?")[0]] += 1
        return get(client, place, answer)

    monkeypatch.setattr(Client, "_get", counted)
    with host.network.inside():
        collected = collect(host.socket, 0.1)
    assert asked["services"] == 1
    assert not collected.notes
