"""The commands as people start them: on manifests, on a bundle, and on a running proxy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from tests.support.host import Host
from tests.support.served import BAD, WEB, write

from kubeproxy.modes.registry import mode_names

Run = Callable[[Sequence[str]], CompletedProcess[str]]

CLUSTER = str(Path(__file__).parent.parent / "golden" / "plan" / "cluster.yaml")
MISNAMED = WEB.replace("{name: http, port: 8080}", "{name: www, port: 8080}")
SICK = WEB.replace("nodeName: worker-a", "conditions: {ready: false}")


# --- manifests ---


@pytest.mark.parametrize("mode", mode_names())
def test_manifests_are_explained_in_every_mode(run: Run, mode: str) -> None:
    done = run(["kpctl", "explain", "shop/web", "-f", CLUSTER, "--mode", mode])
    assert done.returncode == 0, done.stderr
    assert "served by 2 of 4 endpoints" in done.stdout
    assert "out 10.244.2.6:8080 on worker-b: not ready" in done.stdout


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["explain", "shop/lonely"], 6, "no EndpointSlice"),
        (["explain", "shop/agent"], 6, "internalTrafficPolicy is Local"),
        (["explain", "10.96.0.10:81"], 7, "has 80/TCP (http)"),
        (["explain", "lb", "--from", "8.8.8.8"], 6, "not within loadBalancerSourceRanges"),
        (["get", "shop/web"], 0, "10.244.2.6:8080 (out: not ready)"),
        (["get", "--pod", "10.244.2.9"], 0, "shop/lb:https TCP"),
        (["get", "-n", "kube-system", "-o", "wide"], 0, "600 s"),
        (["get", "30443"], 0, "shop/lb:https TCP"),
    ],
)
def test_exit_codes_tell_what_was_found(run: Run, argv: list[str], code: int, words: str) -> None:
    done = run(["kpctl", *argv, "-f", CLUSTER])
    assert (done.returncode, done.stderr) == (code, "")
    assert words in done.stdout


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["get", "shop/none", "-f", CLUSTER], 7, "No Service shop/none is served here"),
        (["get", "--pod", "web", "-f", CLUSTER], 2, "not an IP address"),
        (["explain", "a/b/c", "-f", CLUSTER], 2, "neither a Service"),
        (["explain", "web", "--from", "x", "-f", CLUSTER], 2, "--from x"),
        (["explain", "web", "--node", "worker-x", "-f", CLUSTER], 2, "'worker-x'"),
        (["status", "-f", CLUSTER], 2, "manifests have no status"),
        (["status", "--socket", "/nowhere"], 5, "no kube-proxy answers at /nowhere"),
        (["get", "--socket", "/nowhere"], 5, "no kube-proxy answers at /nowhere"),
    ],
)
def test_what_is_wrong_is_a_sentence(run: Run, argv: list[str], code: int, words: str) -> None:
    done = run(["kpctl", *argv])
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout


def test_a_rejected_object_shows_in_the_exit_code(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    done = run(["kpctl", "get", "shop/web", "-f", CLUSTER, "-f", str(tmp_path / "bad.yaml")])
    assert done.returncode == 3 and "shop/web" in done.stdout


def test_data_is_the_same_in_both_forms(run: Run) -> None:
    argv = ["kpctl", "explain", "shop/web", "-f", CLUSTER, "-o"]
    found = json.loads(run([*argv, "json"]).stdout)
    assert found == yaml.safe_load(run([*argv, "yaml"]).stdout)
    (port,) = found["services"][0]["ports"]
    assert port["servicePort"] == "shop/web:http" and port["kernelObjects"]
    assert [e["isUsed"] for e in port["endpoints"]] == [True, True, False, False]


def test_piped_output_has_each_fact_in_one_line(run: Run) -> None:
    lines = run(["kpctl", "get", "-f", CLUSTER]).stdout.splitlines()
    (web,) = [line for line in lines if line.startswith("shop/web:http TCP")]
    assert "10.244.1.5:8080, 10.244.2.5:8080, 10.244.2.6:8080 (out: not ready)" in web


# --- a running proxy ---


def running(host: Host, mode: str, text: str) -> None:
    write(host, "web.yaml", text)
    host.start(f"--proxy-mode={mode}", "--healthz-bind-address=127.0.0.1:10256")
    host.until(host.socket.exists, "the socket")
    host.until(lambda: kpctl(host, "status").returncode != 6, "the first sync")


def kpctl(host: Host, *argv: str) -> CompletedProcess[str]:
    return host.run("kpctl", *argv, "--socket", host.socket)


@pytest.mark.kernel
@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
def test_a_running_proxy_is_looked_into(host: Host, mode: str) -> None:
    running(host, mode, WEB)
    status = kpctl(host, "status")
    assert status.returncode == 0, status.stdout + status.stderr
    assert f"{mode} mode" in status.stdout and "watching" in status.stdout
    assert "10.244.1.5:8080" in kpctl(host, "get", "web").stdout
    found = kpctl(host, "explain", "10.96.0.10:80")
    assert found.returncode == 0, found.stderr
    assert "served by 1 of 1 endpoints" in found.stdout


@pytest.mark.kernel
def test_a_wrong_port_name_and_a_sick_pod_are_found_as_they_happen(
    host: Host, tmp_path: Path
) -> None:
    running(host, "nftables", WEB)
    write(host, "web.yaml", MISNAMED)
    host.until(lambda: kpctl(host, "explain", "shop/web").returncode == 6, "the change")
    assert "is named `www`, and the Service wants `http`" in kpctl(host, "explain", "web").stdout
    write(host, "web.yaml", WEB)
    host.until(lambda: kpctl(host, "explain", "shop/web").returncode == 0, "the correction")
    write(host, "web.yaml", SICK)
    host.until(lambda: kpctl(host, "explain", "shop/web").returncode == 6, "the failure")
    live = kpctl(host, "explain", "shop/web").stdout
    assert "its only endpoint is not ready, since " in live
    assert "EndpointSlice web-1 changed" in live and "10.244.1.5:8080 ready → not ready" in live
    bundle = tmp_path / "bundle"
    assert kpctl(host, "bundle", str(bundle)).returncode == 0
    offline = host.run("kpctl", "explain", "shop/web", "--bundle", bundle)
    assert offline.returncode == 6
    assert "its only endpoint is not ready, since " in offline.stdout


@pytest.mark.kernel
def test_an_object_that_cannot_be_used_is_in_the_status(host: Host) -> None:
    running(host, "nftables", WEB)
    write(host, "bad.yaml", BAD)
    host.until(lambda: "bad.yaml:1: spec" in kpctl(host, "status").stdout, "the problem")
    found = kpctl(host, "explain", "bad")
    assert found.returncode == 7 and "bad.yaml:1: spec.clusterIP is missing" in found.stdout
