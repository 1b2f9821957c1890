"""Lists of sources in what `kpctl plan` shows."""

from __future__ import annotations

from tests.support.builders import endpoint, node, plan, service

from kpctl.look.planview import NodePorts, plan_document, plan_rows
from kubeproxy.facts.ids import Family
from kubeproxy.plan.types import ServicePlan

PLACES = NodePorts({Family.IPV4: ("*",)})


def planned(**lists: object) -> ServicePlan:
    facts = service(node_port=30080, **lists)  # type: ignore[arg-type]
    return plan(facts, [endpoint("10.244.1.1", 8080)], node())


def test_every_frontend_shows_who_may_connect() -> None:
    made = planned(allow_sources=["10.0.0.0/8"], deny_sources=["10.9.0.0/16"])
    rows = plan_rows([(Family.IPV4, made)], PLACES)
    assert len(rows) == 2
    assert all("only from 10.0.0.0/8, not from 10.9.0.0/16" in row.why for row in rows)


def test_lists_are_data_where_there_are_any() -> None:
    shown = plan_document(Family.IPV4, planned(deny_sources=["10.9.0.0/16"]), PLACES)
    assert shown["denySources"] == ["10.9.0.0/16"]
    assert "allowSources" not in shown
    assert "denySources" not in plan_document(Family.IPV4, planned(), PLACES)
