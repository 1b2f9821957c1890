"""What the dashboard shows of a Service, and the answer to a page that asks again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.support.builders import endpoint, endpoint_slice, port, service
from tests.support.bundles import held, status, write_by_hand

from kpctl.dashboard.board import Answer, Board
from kpctl.dashboard.rows import Row, refused_names
from kpctl.snapshot.bundle import read_bundle
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.inspection.types import Held, Refused, Status

WEB = ServiceName("shop", "web")


def board(tmp_path: Path, *services: Held, of: Status | None = None) -> Board:
    return Board(read_bundle(write_by_hand(tmp_path / "bundle", services, of)), is_live=True)


def only_row(found: Board) -> Row:
    (row,) = found.answer(0, "").rows
    return row


def details(found: Board, name: ServiceName = WEB) -> Any:
    """As the page gets it."""
    (family,) = msgspec.json.decode(msgspec.json.encode(found.service(name)))
    return family


def with_facts(**fields: object) -> Held:
    facts = service("shop/web", **fields)  # type: ignore[arg-type]
    slices = (endpoint_slice("shop/web", [endpoint("10.244.2.5")]),)
    return Held(WEB, Family.IPV4, facts, slices)


def test_a_row_counts_endpoints_and_names_every_address(tmp_path: Path) -> None:
    facts = service("shop/web", node_port=30080, load_balancer_ips=("203.0.113.7",))
    slices = (
        endpoint_slice("shop/web", [endpoint("10.1.1.1"), endpoint("10.1.1.2", ready=False)]),
    )
    row = only_row(board(tmp_path, Held(WEB, Family.IPV4, facts, slices)))
    assert (row.used, row.endpoints, row.state) == (1, 2, "forward")
    assert row.addresses == ("10.96.0.10:80", "203.0.113.7:80", "node:30080")


def test_the_state_is_the_worst_that_a_client_meets(tmp_path: Path) -> None:
    two = [port(80), port(81, name="admin")]
    assert only_row(board(tmp_path, held("shop/web"))).state == "reject"
    assert only_row(board(tmp_path, with_facts(ports=two))).state == "partial"
    assert only_row(board(tmp_path, with_facts(internal_local=True))).state == "drop"
    assert only_row(board(tmp_path, replace(with_facts(), service=None))).state == "noService"


def test_a_refused_service_is_shown_as_such_until_the_kernel_takes_it(tmp_path: Path) -> None:
    refused = Refused("shop/web:http/TCP", "no space")
    (family,) = status().families
    bad = status(families=(replace(family, refused=(refused,)),))
    found = board(tmp_path, held("shop/web", "10.96.0.10", "10.1.1.1"), of=bad)
    assert only_row(found).state == "refused"
    before = found.answer(0, "").revision
    found.update(status(), None, {})
    (row,) = found.answer(before, "").rows
    assert row.state == "forward"


def test_owners_of_any_kind_are_understood() -> None:
    names = refused_names(["shop/web:http/TCP", "shop/web/TCP", "shop/db", "", "scaffold"])
    assert names == {WEB, ServiceName("shop", "db")}


def test_a_page_gets_everything_once_and_then_what_changed(tmp_path: Path) -> None:
    found = board(tmp_path, held("shop/web"), held("shop/db"))
    first = found.answer(0, "")
    assert first.is_reset
    assert len(first.rows) == 2
    assert first.history is not msgspec.UNSET
    second = found.answer(first.revision, first.history_mark)
    assert (second.is_reset, second.rows, second.removed) == (False, (), ())
    assert second.history is msgspec.UNSET
    found.update(status(), None, {WEB: (held("shop/web", "10.96.0.10", "10.1.1.1"),)})
    third = found.answer(second.revision, "")
    assert [(row.name, row.state) for row in third.rows] == [("web", "forward")]
    assert details(found)["ports"][0]["endpoints"][0]["at"] == "10.1.1.1:8080"


def test_a_removed_service_is_named_and_gone(tmp_path: Path) -> None:
    found = board(tmp_path, held("shop/web", "10.96.0.10", "10.1.1.1"), held("shop/db"))
    before = found.answer(0, "").revision
    found.update(status(), None, {WEB: ()})
    answer = found.answer(before, "")
    assert (answer.rows, answer.removed) == ((), (WEB,))
    assert not found.service(WEB)
    assert len(found.answer(0, "").rows) == 1


def test_a_page_that_is_older_than_a_full_read_begins_again(tmp_path: Path) -> None:
    found = board(tmp_path, held("shop/web"))
    old = found.answer(0, "").revision
    found.load(found.snapshot)
    assert found.answer(old, "").is_reset
    assert found.answer(10**9, "").is_reset


def test_every_endpoint_has_its_pools_or_the_reason(tmp_path: Path) -> None:
    ends = [
        endpoint("10.1.1.1", local=True),
        endpoint("10.1.1.2"),
        endpoint("10.1.1.3", ready=False),
    ]
    facts = service("shop/web", node_port=30080, external_local=True)
    one = Held(WEB, Family.IPV4, facts, (endpoint_slice("shop/web", ends),))
    shown = details(board(tmp_path, one))["ports"][0]["endpoints"]
    assert [(e["pools"], e["reason"], e["local"]) for e in shown] == [
        (["cluster", "local"], "ready", True),
        (["cluster"], "ready", False),
        ([], "not ready", False),
    ]


def test_a_port_of_another_name_is_the_reason_for_no_endpoints(tmp_path: Path) -> None:
    slices = (endpoint_slice("shop/web", [endpoint()], port_name="www"),)
    hints = details(board(tmp_path, replace(held("shop/web"), slices=slices)))["hints"]
    assert hints == [
        "the slices have port “www” TCP, which the Service does not have",
        "the Service has port “http” TCP, which no slice has",
    ]


def test_services_are_found_by_the_address_of_an_endpoint(tmp_path: Path) -> None:
    found = board(
        tmp_path,
        held("shop/web", "10.96.0.10", "10.1.1.1"),
        held("shop/db", "10.96.0.11", "10.1.1.10"),
    )
    assert found.with_endpoint("10.1.1.1:") == [WEB]
    assert len(found.with_endpoint("10.1.1.1")) == 2
    assert not found.with_endpoint("10.9")


def test_an_answer_is_camel_case_json(tmp_path: Path) -> None:
    answer: Answer = board(tmp_path, held("shop/web")).answer(0, "")
    data = msgspec.json.decode(msgspec.json.encode(answer))
    assert {"revision", "isReset", "isLive", "historyMark", "rows", "status"} <= data.keys()
    assert data["rows"][0]["changedAt"]
