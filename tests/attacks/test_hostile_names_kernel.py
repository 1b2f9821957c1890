"""Hostile objects for the real program, in every mode: refused and named, and the rest goes on.

Every line of the log is one of ours, and what `kpctl` shows is for reading.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml
from tests.support.host import Host
from tests.support.hostile import LOG_LINE, NAMES, TEXTS, commands_in
from tests.support.served import WEB, write

pytestmark = pytest.mark.kernel

HEADER = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [^ ]+\] ")
REFUSED = [text for text in (*NAMES, *TEXTS) if not re.fullmatch(r"\w*", text, re.ASCII)]


def service(name: str, namespace: str, number: int) -> dict[str, object]:
    spec = {"clusterIP": f"10.96.1.{number}", "ports": [{"name": "http", "port": 80}]}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def slice_with(text: str, number: int) -> dict[str, object]:
    """A slice of the Service that is served, with the text where it is only shown."""
    labels = {"kubernetes.io/service-name": "web"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"s-{number}", "namespace": "shop", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {
                "addresses": [f"10.244.2.{number}"],
                "nodeName": f"{text}\n{LOG_LINE}",
                "hints": {"forZones": [{"name": text}]},
            }
        ],
    }


def write_hostile_objects(host: Host) -> None:
    for number, text in enumerate(REFUSED, 1):
        found = [service(text, "shop", number), service("web", text, number + 100)]
        found.append(slice_with(text, number))
        for index, document in enumerate(found):
            # JSON can escape what YAML cannot hold.
            (host.manifests / f"bad-{number}-{index}.yaml").write_text(json.dumps(document))


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
def test_hostile_objects_are_named_and_the_others_served(host: Host, mode: str, form: str) -> None:
    write(host, "web.yaml", WEB)
    write_hostile_objects(host)
    flags = ("--feature-gates=LoggingBetaOptions=true", f"--logging-format={form}", "--v=4")
    host.start(f"--proxy-mode={mode}", "--service-metrics=10", "--service-events", *flags)
    host.until(lambda: host.get(10256, "/healthz")[0] == 200, "health")
    host.until(lambda: "10.96.0.10" in host.tables(), "the good Service")
    assert "10.96.1." not in host.tables()

    drift = host.run("kpctl", "drift", "--socket", host.socket)
    assert drift.returncode == 0, drift.stdout + drift.stderr
    for command in ("get", "status", "explain shop/web", "explain shop/web -o wide", "render"):
        for output in ((), ("-o", "json"), ("-o", "yaml")):
            if "-o" in command or (command == "render" and output):
                continue
            shown = host.run("kpctl", *command.split(), *output, "--socket", host.socket)
            assert shown.stdout and not commands_in(shown.stdout + shown.stderr), command
    assert yaml.safe_load(host.run("kpctl", "get", "-o", "yaml", "--socket", host.socket).stdout)
    assert host.get(10249, "/metrics")[0] == 200
    check_log(host.log, form)


def check_log(text: str, form: str) -> None:
    """Lines from before the format is known are text."""
    lines = [line for line in text.split("\n") if line]
    assert not commands_in(text)
    for line in lines:
        if form == "json" and line.startswith("{"):
            assert "msg" in json.loads(line)
        else:
            assert HEADER.match(line) or line.startswith(("\t", " >")), line
    assert sum(line.startswith(LOG_LINE[:20]) for line in lines) == 0
