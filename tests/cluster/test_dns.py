"""The name server of the cluster answers as CoreDNS does, for what the lab asks."""

from __future__ import annotations

import ipaddress
import struct
from typing import Any

import pytest

from kpctl.kubernetes.dns import answer

OBJECTS: dict[str, Any] = {
    "/api/v1/namespaces/shop/services/web": {
        "spec": {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "fd00::5"]}
    },
    "/api/v1/namespaces/shop/services/other": {
        "spec": {"type": "ExternalName", "externalName": "web.shop.svc.cluster.local."}
    },
    "/api/v1/namespaces/shop/services/db": {"spec": {"clusterIP": "None"}},
    "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
    "?labelSelector=kubernetes.io/service-name%3Ddb": {
        "items": [
            {
                "endpoints": [
                    {"addresses": ["10.244.1.2"], "hostname": "db-0"},
                    {"addresses": ["10.244.2.2"], "hostname": "db-1"},
                    {"addresses": ["10.244.3.2"], "conditions": {"ready": False}},
                ]
            }
        ]
    },
}
A, AAAA = 1, 28


def ask(name: str, kind: int = A) -> tuple[int, set[str]]:
    """Return the response code and the addresses."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    question = labels + b"\0" + struct.pack(">2H", kind, 1)
    message = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + question
    response = answer(message, OBJECTS.get)
    number, flags, _, count, _, _ = struct.unpack_from(">6H", response)
    assert number == 7
    records, size = response[len(message) :], 16 if kind == AAAA else 4
    step = 12 + size
    found = [records[at + 12 : at + step] for at in range(0, count * step, step)]
    return flags & 15, {str(ipaddress.ip_address(address)) for address in found}


def test_a_service_has_the_addresses_of_its_families() -> None:
    assert ask("web.shop.svc.cluster.local") == (0, {"10.96.0.5"})
    assert ask("WEB.shop.svc.cluster.local", AAAA) == (0, {"fd00::5"})


def test_an_external_name_has_the_addresses_of_what_it_names() -> None:
    assert ask("other.shop.svc.cluster.local") == (0, {"10.96.0.5"})


def test_a_headless_service_has_its_ready_pods() -> None:
    assert ask("db.shop.svc.cluster.local") == (0, {"10.244.1.2", "10.244.2.2"})
    assert ask("db-1.db.shop.svc.cluster.local") == (0, {"10.244.2.2"})


def test_a_family_without_address_is_no_error() -> None:
    """A resolver that asks for both families would give up otherwise."""
    assert ask("db.shop.svc.cluster.local", AAAA) == (0, set())


@pytest.mark.parametrize("name", ["none.shop.svc.cluster.local", "example.com", "shop"])
def test_what_is_not_in_the_cluster_does_not_exist(name: str) -> None:
    assert ask(name) == (3, set())
