"""`kpctl trace` over manifests: no proxy, no kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Run
from tests.support.builders import node
from tests.support.objects_text import at, service_text, slice_text

from kpctl.trace.legacy import parse_prefix
from kpctl.trace.subject import arrival_at, parse_destination, source_text
from kubeproxy.errors import ConfigError
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.modes.registry import mode_names

MANIFEST = (
    service_text(
        "10.96.0.10", ports="{name: http, port: 80, nodePort: 30080}", spec="type: NodePort"
    )
    + slice_text(at("10.244.1.5", "a"), at("10.244.2.5", "b"))
    + service_text("10.96.0.11", "empty")
)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "web.yaml"
    path.write_text(MANIFEST)
    return str(path)


@pytest.mark.parametrize("mode", mode_names())
def test_every_mode_is_traced_from_files(run: Run, manifest: str, mode: str) -> None:
    options = ["-f", manifest, "--mode", mode, "--node", "a"]
    done = run(["kpctl", "trace", "10.244.1.9", "10.96.0.10:80", *options])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Kernel: not known" in done.stdout
    assert "10.244.2.5:8080  50.0%" in done.stdout
    refused = run(["kpctl", "trace", "node", "10.96.0.11:80", *options])
    assert refused.returncode == 3, refused.stdout
    alone = run(["kpctl", "trace", "node", "198.51.100.1:80", *options])
    assert alone.returncode == 4, alone.stdout


def test_data_has_the_shape_that_is_documented(run: Run, manifest: str) -> None:
    options = ["-f", manifest, "--mode", "nftables", "-o", "json"]
    data = json.loads(run(["kpctl", "trace", "outside", "10.96.0.10:80", *options]).stdout)
    assert (data["verdict"], data["agrees"], data["difference"]) == ("forward", True, None)
    assert data["kernel"] is None
    assert data["rendered"]["endpoints"][0] == {
        "address": "10.244.1.5",
        "port": 8080,
        "share": 0.5,
        "masqueraded": False,
    }
    assert any(step.get("service") == "shop/web:http/TCP" for step in data["rendered"]["steps"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "10.96.0.10:80"], "'nowhere' is no source"),
        (["node", "10.96.0.10"], "is no destination"),
        (["fd00::1", "10.96.0.10:80"], "not of one IP family"),
        (["node", "10.96.0.10:80", "--live"], "not with --bundle or -f"),
        (["node", "10.96.0.10:80", "--send"], "--send goes with --live"),
    ],
)
def test_a_wrong_command_line_is_explained(
    run: Run, manifest: str, arguments: list[str], words: str
) -> None:
    done = run(["kpctl", "trace", *arguments, "-f", manifest])
    assert done.returncode == 2
    assert words in done.stderr.replace("\n", " ")


def test_no_proxy_is_a_failure_of_its_own_code(run: Run, tmp_path: Path) -> None:
    done = run(["kpctl", "trace", "node", "10.96.0.10:80", "--socket", str(tmp_path / "none")])
    assert done.returncode == 5
    assert "no kube-proxy answers" in done.stderr


def test_destinations_are_parsed() -> None:
    found = parse_destination("[fd00::10]:53/udp")
    assert (found.family, found.address, found.port) == (Family.IPV6, "fd00::10", 53)
    assert found.protocol is Protocol.UDP
    for wrong in ("10.0.0.1", "10.0.0.1:0", "10.0.0.1:70000", "10.0.0.1:80/icmp", "web:80"):
        with pytest.raises(ConfigError):
            parse_destination(wrong)


def test_the_source_is_what_the_rules_take_it_for() -> None:
    facts, to = node(), parse_destination("10.96.0.10:80")
    own = arrival_at(facts, (), "node", to)
    assert own.is_from_node
    assert source_text(facts, own) == "the node itself"
    outside = arrival_at(facts, (), "outside", to)
    assert not outside.is_from_node
    assert source_text(facts, outside) == "no pod of this node"


def test_a_trace_of_legacy_iptables_is_read() -> None:
    assert parse_prefix("TRACE: nat:KUBE-SVC-X:rule:3 ") == ("nat", "KUBE-SVC-X", "rule", 3)
    assert parse_prefix("TRACE: nat:OUTPUT:policy:9 ") == ("nat", "OUTPUT", "policy", 9)
