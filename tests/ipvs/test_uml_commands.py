"""The commands of kpctl beside a running proxy in ipvs mode, in both families.

One proxy in one kernel goes through a story (`guest_commands`); each test looks at one part of what
the commands showed, of what was right and of what was broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ipvs.guest_commands import EMPTY, PODS, VIPS

from kpctl.places.uml import UserModeKernel

GUEST = Path(__file__).with_name("guest_commands.py")

pytestmark = [pytest.mark.uml, pytest.mark.timeout(1800)]
families = pytest.mark.parametrize("family", VIPS)
Story = dict[str, Any]


@pytest.fixture(scope="module")
def story(uml: UserModeKernel) -> Iterator[Story]:
    found = uml.call(GUEST, "look_inside")
    assert isinstance(found, dict)
    yield found


def place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# --- right ---


def test_status_and_doctor_find_nothing_wrong(story: Story) -> None:
    status = story["right"]["status"]
    assert (status["mode"], status["troubles"], story["right"]["status code"]) == ("ipvs", [], 0)
    levels = {each["check"]: each["level"] for each in story["right"]["doctor"]}
    for check in ("proxy", "other proxies", "objects", "kernel and tools", "forwarding", "routes"):
        assert levels[check] == "ok"


@families
def test_services_are_listed_and_explained(story: Story, family: str) -> None:
    at, pod = place(VIPS[family], 80), place(PODS[family], 8080)
    listed = [each for each in story["right"]["get"] if each["ipFamily"] == family]
    assert [pod] in [[e["at"] for e in each["endpoints"]] for each in listed]
    code, text = story["right"]["explain"][VIPS[family]]
    assert code == 0 and "served by 1 of 1 endpoints" in text
    assert f"-a -t {at} -r {pod} -m -w 1" in text


def test_what_is_rendered_is_of_all_kinds(story: Story) -> None:
    code, text = story["right"]["render"]
    assert code == 0
    for words in ("-A -t 10.96.0.10:80 -s rr", "add KUBE-CLUSTER-IP 10.96.0.10,tcp:80", "*nat"):
        assert words in text


@families
def test_plan_rules_and_kernel_agree(story: Story, family: str) -> None:
    code, text = story["right"]["trace"][VIPS[family]]
    assert code == 0 and "Verdict: forwarded; plan, rules and kernel agree." in text
    assert f"IPVS {place(VIPS[family], 80)}/TCP (scheduler rr)" in text


def test_a_refused_packet_is_traced_to_ipvs(story: Story) -> None:
    code, text = story["right"]["refused"]
    assert code == 3 and "it has no real server" in text


@families
def test_connections_come_from_ipvs(story: Story, family: str) -> None:
    (found,) = [each for each in story["right"]["connections"] if each["ipFamily"] == family]
    (endpoint,) = found["endpoints"]
    assert endpoint["endpoint"] == place(PODS[family], 8080)
    assert endpoint["connections"] > 0 and endpoint["stale"] is None


def test_top_counts_connections_and_what_ipvs_refuses(story: Story) -> None:
    rows = {(each["service"], each["ipFamily"]): each for each in story["right"]["top"]["services"]}
    for family, pod in PODS.items():
        row = rows["shop/web:http", family]
        assert row["connectionsPerSecond"] > 0
        assert row["endpoints"] == [{"endpoint": place(pod, 8080), "share": 1.0}]
    row = rows["shop/empty:http", "IPv4"]
    assert row["rejectedPerSecond"] > 0 and row["reason"] == "has no endpoints"
    assert not story["right"]["top"]["notes"]


def test_the_kernel_is_as_wanted_with_counters_that_count(story: Story) -> None:
    code, text = story["right"]["drift"]
    assert code == 0 and "ipvs mode: the kernel is as wanted" in text


# --- broken ---


@families
def test_a_deleted_virtual_server_is_drift(story: Story, family: str) -> None:
    at, pod = place(VIPS[family], 80), place(PODS[family], 8080)
    assert story["server"]["deleted"] == sorted(VIPS.values())
    for code, text in (story["server"]["drift"], story["server"]["since"]):
        assert code == 1
        assert f"@@ shop/web:http/TCP @@\n+ -A -t {at} -s rr\n+ -a -t {at} -r {pod}" in text
    code, text = story["server"]["trace"][VIPS[family]]
    assert code == 1 and f"the kernel has no virtual server {at}/TCP of shop/web:http" in text


@families
def test_a_repair_is_in_the_history_and_in_the_status(story: Story, family: str) -> None:
    repairs = {each["family"]: each for each in story["rule"]["drift"]["repairs"]}
    assert "another program edited iptables" in repairs[family]["cause"]
    assert any(place(VIPS[family], 80) in line for line in repairs[family]["lines"])
    code, text = story["rule"]["status"]
    assert code == 0 and "repairs   2, of what other programs changed" in text


def test_a_wrong_port_name_is_the_reason(story: Story) -> None:
    code, text = story["port name"]["explain"]
    assert code == 6 and "is named `www`, and the Service wants `http`" in text
    assert f"ClusterIP {VIPS['IPv4']}:80 (reject: no endpoints)" in story["port name"]["get"][1]


def test_the_doctor_notices_that_nothing_is_forwarded(story: Story) -> None:
    code, text = story["forwarding"]["doctor"]
    assert code == 1 and "Remedy: sysctl -w net.ipv4.ip_forward=1" in text


# --- offline, and without a proxy ---


def test_a_bundle_holds_all_of_it(story: Story) -> None:
    code, text = story["right"]["bundle"]
    notes = [line for line in text.splitlines() if line.startswith("Note:")]
    assert code == 0 and "2 Services" in text
    assert [note for note in notes if "Slow iptables call" not in note] == []  # a busy machine's
    offline = story["offline"]
    doubtful = {"doctor"}  # it may warn about this kernel's clock
    assert {name for name, (code, _) in offline.items() if code} <= doubtful
    assert "Verdict: forwarded; plan, rules and kernel agree." in offline["trace"][1]
    assert "the kernel is as wanted" in offline["drift"][1]
    assert place(PODS["IPv6"], 8080) in offline["connections"][1]
    assert "has no endpoints" in offline["top"][1]
    assert EMPTY not in offline["get"][1], "only what is asked for"


def test_without_a_proxy_exit_codes_say_so(story: Story) -> None:
    assert set(story["gone"].values()) == {3, 5}
    assert story["gone"]["drift"] == 3
