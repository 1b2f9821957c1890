"""Log lines about refused addresses: when it begins, with the Service, and never too many."""

from __future__ import annotations

import pytest
from tests.support.builders import endpoint, endpoint_slice, node, service
from tests.support.fake_backend import FakeBackend

from kubeproxy.facts.ids import Family
from kubeproxy.status.refused_targets import MOST_PER_MINUTE, RefusedTargets
from kubeproxy.sync.pipeline import Pipeline

GOOD, BAD = "10.244.1.5", "169.254.169.254"


def planned(names: list[str], *addresses: str) -> Pipeline:
    pipeline = Pipeline(FakeBackend(Family.IPV4), node(), listeners=[RefusedTargets()])
    serve(pipeline, names, *addresses)
    return pipeline


def serve(pipeline: Pipeline, names: list[str], *addresses: str) -> None:
    for name in names:
        pipeline.store.set_service(service(name))
        targets = [endpoint(address) for address in addresses]
        pipeline.store.set_slice(endpoint_slice(name, targets, slice_name=name))
    pipeline.recompute()


def test_a_refused_endpoint_is_logged_with_its_service(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = planned(["shop/web"], GOOD, BAD)
    (record,) = caplog.records
    assert record.getMessage() == "Addresses of a Service are refused"
    values, error, _ = record.kubeproxy  # type: ignore[attr-defined]
    assert str(values["service"]) == "shop/web"
    assert error == "169.254.169.254:8080 (a link-local address)"
    serve(pipeline, ["shop/web"], "10.244.1.6", BAD)
    assert len(caplog.records) == 1, "it is as before"


def test_without_refusals_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    planned(["shop/web"], GOOD)
    assert not caplog.records


def test_many_services_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    planned([f"shop/web-{number}" for number in range(3 * MOST_PER_MINUTE)], BAD)
    assert len(caplog.records) == MOST_PER_MINUTE
