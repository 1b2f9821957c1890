"""`kube-proxy` and `kpctl` with a kernel: one network namespace each, real nftables."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.support.host import PROGRAMS, Host
from tests.support.served import BAD, BALANCED, WEB, until_programmed, until_serving, write
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.modes.registry import mode_names

pytestmark = pytest.mark.kernel

HEALTH, METRICS = 10256, 10249
NFTABLES = "--proxy-mode=nftables"


def metric(host: Host, name: str) -> float:
    """The sum over all labels."""
    _, text = host.get(METRICS, "/metrics")
    found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_the_daemon_serves_follows_and_leaves_its_rules(host: Host) -> None:
    write(host, "web.yaml", WEB)
    write(host, "bad.yaml", BAD)
    process = host.start(NFTABLES, "--feature-gates=ComponentFlagz=true,ComponentStatusz=true")
    until_serving(host)
    host.until(lambda: host.get(HEALTH, "/healthz")[0] == 200, "health")
    assert "10.96.0.10" in host.tables()
    assert host.get(HEALTH, "/livez")[0] == 200
    (line,) = (line for line in host.log.splitlines() if '"Serving"' in line)
    assert line.endswith(
        'mode="nftables" ipFamilies=["IPv4","IPv6"] services=1 servicePorts=1 endpoints=1'
        ' nodePortAddresses=["all IPv4 addresses","all IPv6 addresses"] healthz="0.0.0.0:10256"'
        ' metrics="127.0.0.1:10249"'
    )
    assert host.get(METRICS, "/healthz") == (200, "ok")
    assert host.get(METRICS, "/proxyMode") == (200, "nftables")
    config = json.loads(host.get(METRICS, "/configz")[1])
    assert config["kubeproxy.config.k8s.io"]["mode"] == "nftables"
    # The separator is chosen at random, so that no program parses the page.
    assert re.search(r"^proxy-mode\W+nftables$", host.get(METRICS, "/flagz")[1], re.MULTILINE)
    assert "1.36" in host.get(METRICS, "/statusz")[1]
    assert metric(host, "kubeproxy_sync_proxy_rules_last_timestamp_seconds") > 0
    assert metric(host, "kubeproxy_rejected_objects_total") == 1

    write(host, "web.yaml", WEB.replace("10.96.0.10", "10.96.0.11"))
    until_programmed(host, "10.96.0.11")
    host.until(lambda: "10.96.0.10 " not in host.tables(), "removal of the old address")

    assert host.stop(process) == 0
    assert "10.96.0.11" in host.tables()
    assert "Traceback" not in host.log


def test_a_restarted_daemon_takes_over_what_it_finds(host: Host) -> None:
    write(host, "web.yaml", WEB)
    write(host, "lb.yaml", BALANCED)
    first = host.start(NFTABLES)
    until_programmed(host, "10.96.0.20")
    assert host.stop(first) == 0
    (host.manifests / "lb.yaml").unlink()
    second = host.start(NFTABLES)
    host.until(lambda: "10.96.0.20" not in host.tables(), "removal of what is gone")
    assert "10.96.0.10" in host.tables()
    assert host.stop(second) == 0


CONFIG = (
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    "mode: nftables\noomScoreAdj: 0\nconntrack: {maxPerCore: 0}\n"
)


def test_a_changed_configuration_file_ends_the_process_with_1(host: Host, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    write(host, "web.yaml", WEB)
    process = host.start(f"--config={config}", "--config-restart-jitter=1s")
    until_programmed(host, "10.96.0.10")
    config.write_text(CONFIG + "bindAddress: 127.0.0.1\n")
    assert process.wait(LIMIT_SECONDS) == 1
    assert "content of the proxy server's configuration file was updated" in host.log
    assert "10.96.0.10" in host.tables()


def test_a_typo_in_a_config_map_does_not_end_the_process(host: Host, tmp_path: Path) -> None:
    """Services that change afterwards are served, and the corrected file ends it as ever."""
    dated = tmp_path / "..v1"
    dated.mkdir()
    (dated / "config.conf").write_text(CONFIG)
    data, config = tmp_path / "..data", tmp_path / "config.conf"
    data.symlink_to(dated.name)
    config.symlink_to("..data/config.conf")

    def publish(version: str, text: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.conf").write_text(text)
        link = tmp_path / "..data_tmp"
        link.symlink_to(version)
        link.rename(data)

    write(host, "web.yaml", WEB)
    process = host.start(f"--config={config}", "--config-restart-jitter=1ms")
    until_programmed(host, "10.96.0.10")
    assert metric(host, "kubeproxy_config_last_reload_successful") == 1
    publish("..v2", CONFIG.replace("nftables", "nftable"))
    host.until(lambda: "Configuration file cannot be used" in host.log, "the error")
    host.until(lambda: metric(host, "kubeproxy_config_last_reload_successful") == 0, "the metric")
    write(host, "lb.yaml", BALANCED)
    until_programmed(host, "10.96.0.20")
    assert process.poll() is None
    publish("..v3", CONFIG + "bindAddress: 127.0.0.1\n")
    assert process.wait(LIMIT_SECONDS) == 1


def test_a_configuration_from_a_pipe_is_read_once(host: Host, tmp_path: Path) -> None:
    """As with `--config <(…)` of a shell."""
    write(host, "web.yaml", WEB)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = host.start(f"--config={pipe}")
    pipe.write_text(CONFIG)
    until_programmed(host, "10.96.0.10")
    host.until(lambda: "its changes are not followed" in host.log, "the note")
    assert host.stop(process) == 0


def test_without_a_health_server_service_health_ports_still_answer(host: Host) -> None:
    write(host, "lb.yaml", BALANCED)
    process = host.start(NFTABLES, "--healthz-port=0")
    host.until(lambda: host.get(32123, "/")[0] == 200, "service health")
    _, body = host.get(32123, "/")
    assert json.loads(body)["localEndpoints"] == 1
    assert host.get(HEALTH, "/healthz")[0] == 0
    write(host, "lb.yaml", BALANCED.replace("worker-a", "worker-b"))
    host.until(lambda: host.get(32123, "/")[0] == 503, "the loss of the local endpoint")
    assert host.stop(process) == 0
    assert "Traceback" not in host.log


def test_init_only_prepares_and_ends(host: Host) -> None:
    write(host, "web.yaml", WEB)
    process = host.start(NFTABLES, "--init-only")
    assert process.wait(LIMIT_SECONDS) == 0
    assert "System initialized and --init-only specified" in host.log
    assert "10.96.0.10" not in host.tables()


@pytest.mark.parametrize("port", [HEALTH, METRICS])
def test_an_address_in_use_is_fatal_if_asked_for(host: Host, port: int) -> None:
    with host.listen("127.0.0.1", port):
        process = host.start(
            NFTABLES,
            "--bind-address-hard-fail",
            f"--healthz-bind-address=127.0.0.1:{HEALTH}",
        )
        assert process.wait(LIMIT_SECONDS) == 1
    assert "address already in use" in host.log
    assert "Traceback" not in host.log


def test_an_address_in_use_is_logged_and_tried_again_otherwise(host: Host) -> None:
    write(host, "web.yaml", WEB)
    with host.listen("127.0.0.1", METRICS):
        process = host.start(NFTABLES)
        until_programmed(host, "10.96.0.10")
        assert process.poll() is None
    assert host.stop(process) == 0
    assert "address already in use" in host.log


def test_clean_up_removes_what_is_ours_and_nothing_else(host: Host) -> None:
    assert host.run("nft", "add table ip of-another-program").returncode == 0
    write(host, "web.yaml", WEB)
    process = host.start(NFTABLES)
    until_programmed(host, "10.96.0.10")
    host.stop(process)
    done = host.run("kube-proxy", "--cleanup")
    assert done.returncode == 0, done.stderr
    assert "kube-proxy" not in host.tables()
    assert "of-another-program" in host.tables()


def test_kpctl_apply_syncs_once_and_cleanup_takes_it_back(host: Host) -> None:
    write(host, "web.yaml", WEB)
    rendered = host.run("kpctl", "render", "--mode", "nftables", host.manifests)
    assert rendered.returncode == 0 and "10.96.0.10" in rendered.stdout
    assert "10.96.0.10" not in host.tables()
    applied = host.run("kpctl", "apply", "--mode", "nftables", host.manifests)
    assert applied.returncode == 0, applied.stderr
    assert "IPv4: 1 services" in applied.stdout
    assert "10.96.0.10" in host.tables()
    again = host.run("kpctl", "apply", "--mode", "nftables", host.manifests)
    assert "0 changes in 0 batches" in again.stdout.splitlines()[0]
    cleaned = host.run("kpctl", "cleanup")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "kube-proxy" not in host.tables()


POWERLESS = ("--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.parametrize("mode", mode_names())
def test_rendering_needs_no_privileges(host: Host, mode: str) -> None:
    write(host, "web.yaml", WEB)
    kpctl = str(PROGRAMS / "kpctl")
    done = host.run("setpriv", *POWERLESS, kpctl, "render", "--mode", mode, host.manifests)
    assert done.returncode == 0, done.stderr
    assert "10.96.0.10" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["kpctl", "apply", "--mode", "nftables"],
        ["kube-proxy", NFTABLES, "--conntrack-max-per-core=0", "--oom-score-adj=0"],
    ],
    ids=["kpctl apply", "kube-proxy"],
)
def test_without_privileges_the_missing_one_is_named(host: Host, command: list[str]) -> None:
    write(host, "web.yaml", WEB)
    where = [str(host.manifests)] if command[0] == "kpctl" else [f"--manifests={host.manifests}"]
    done = host.run("setpriv", *POWERLESS, str(PROGRAMS / command[0]), *command[1:], *where)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "CAP_NET_ADMIN" in done.stderr or "permission denied" in done.stderr.lower()
