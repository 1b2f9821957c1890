"""Every command about a proxy works offline on a bundle, in every form of output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest
import yaml
from tests.support.bundles import held, write_by_hand

from kpctl.snapshot.bundle import Head
from kpctl.top.sample import Row, Sample
from kubeproxy.facts.ids import Family, Protocol, ServicePortId

Run = Callable[[Sequence[str]], CompletedProcess[str]]

COMMANDS = (
    ["status"],
    ["get"],
    ["explain", "shop/web"],
    ["render"],
    ["trace", "outside", "10.96.0.10:80"],
    ["drift"],
    ["connections"],
    ["top"],
    ["doctor"],
)


def row(name: str, endpoint: str, **counts: int) -> Row:
    owner = ServicePortId("shop", name, "http", Protocol.TCP)
    return Row(Family.IPV4, owner, 4, {endpoint: 4}, reason="has no endpoints", **counts)


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    sample = Sample(2.0, [row("web", "10.244.1.5:8080", rejected=6), row("api", "10.244.1.6:8080")])
    head = Head(connections=[], sample=msgspec.to_builtins(sample))
    services = (
        held("shop/web", "10.96.0.10", "10.244.1.5"),
        held("shop/api", "10.96.0.11", "10.244.1.6"),
    )
    return str(write_by_hand(tmp_path / "node.kpb", services, head=head))


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_works_on_a_bundle(
    run: Run, bundle: str, command: list[str], form: str
) -> None:
    done = run(["kpctl", *command, "--bundle", bundle, "-o", form])
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
    if form == "json":
        assert json.loads(done.stdout) is not None
    elif form == "yaml":
        assert list(yaml.safe_load_all(done.stdout)) or command in (["connections"], ["doctor"])
    else:
        assert "\x1b" not in done.stdout, "no colours in a pipe"


def test_top_shows_the_interval_that_was_counted(run: Run, bundle: str) -> None:
    done = run(["kpctl", "top", "--bundle", bundle])
    head, _, _, _, *rows = done.stdout.splitlines()
    assert head.startswith("nftables mode, 4.0 new/s to 2 service ports: ")
    assert f": {bundle}, of node worker-a at 20" in head
    assert rows[0].split() == [
        *("shop/web:http/TCP", "2.0", "3.0", "0.0"),
        *("has", "no", "endpoints;", "10.244.1.5:8080", "100%"),
    ]


@pytest.mark.parametrize(
    ("words", "services"),
    [
        (["shop/web"], ["shop/web:http"]),
        (["-n", "shop"], ["shop/web:http", "shop/api:http"]),
        (["10.96.0.11:80"], ["shop/api:http"]),
        (["--pod", "10.244.1.6"], ["shop/api:http"]),
        (["shop/web", "--pod", "10.244.1.6"], []),
    ],
)
def test_top_shows_only_what_is_asked_for(
    run: Run, bundle: str, words: list[str], services: list[str]
) -> None:
    done = run(["kpctl", "top", *words, "--bundle", bundle, "-o", "json"])
    assert [each["service"] for each in json.loads(done.stdout)["services"]] == services


@pytest.mark.parametrize("command", ["top", "connections"])
@pytest.mark.parametrize("asked", ["shop/none", "10.96.0.99:80", "31999"])
def test_a_service_that_is_not_in_it_is_named(
    run: Run, bundle: str, command: str, asked: str
) -> None:
    done = run(["kpctl", command, asked, "--bundle", bundle])
    assert done.returncode == 7
    assert f"no Service {asked} is served by {bundle}, of node worker-a" in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [("top", "without a sample of connections"), ("connections", "without connections")],
)
def test_what_a_bundle_lacks_is_named(run: Run, tmp_path: Path, command: str, words: str) -> None:
    path = write_by_hand(tmp_path / "bare.kpb", [held("shop/web")])
    done = run(["kpctl", command, "--bundle", str(path)])
    assert done.returncode == 1 and words in done.stderr


@pytest.mark.parametrize("command", [*COMMANDS, ["bundle", "x"]], ids=lambda command: command[0])
def test_without_a_proxy_the_exit_code_says_so(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    """`drift` and `trace` have codes of their own; the doctor counts it among its findings."""
    done = run(["kpctl", *command, "--socket", str(tmp_path / "none")])
    assert done.returncode == {"drift": 3, "trace": 5, "doctor": 1}.get(command[0], 5)
    assert "no kube-proxy answers" in done.stderr + done.stdout


@pytest.mark.parametrize(
    "command", [*COMMANDS, ["bundle"], ["dashboard"]], ids=lambda command: command[0]
)
def test_every_help_text_has_examples_and_exit_codes(run: Run, command: list[str]) -> None:
    text = run(["kpctl", command[0], "--help"]).stdout
    assert f"  kpctl {command[0]}" in text.split("Examples:")[1]
    assert command == ["dashboard"] or "Exit codes:" in text
