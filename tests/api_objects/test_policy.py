"""Our annotations as facts: which objects they are read from, and what a wrong one does."""

from __future__ import annotations

import msgspec

from kubeproxy.api import objects
from kubeproxy.api.decode import DecodedService, DecodedSlice, decode_service, decode_slice
from kubeproxy.facts.ids import Family
from kubeproxy.facts.policy import Algorithm, CheckKind, HealthCheck, Policy


def decoded_service(annotations: dict[str, str] | None) -> DecodedService:
    manifest = {
        "metadata": {"namespace": "default", "name": "web", "annotations": annotations},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
    }
    return decode_service(msgspec.convert(manifest, objects.Service), Family.IPV4)


def decoded_slice(weights: str | None) -> DecodedSlice:
    endpoints = [
        {"addresses": [f"10.244.0.{number}"], "zone": zone}
        for number, zone in ((1, "zone-a"), (2, "zone-a"), (3, "zone-b"), (4, None))
    ]
    manifest = {
        "metadata": {
            "namespace": "default",
            "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"kubeproxy/weights": weights},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 80}],
        "endpoints": endpoints,
    }
    return decode_slice(msgspec.convert(manifest, objects.EndpointSlice), "node")


def test_a_service_without_our_annotations_has_no_policy() -> None:
    """One pointer is all that a feature which is not used may cost."""
    for given in (None, {}, {"example.org/else": "random"}):
        found = decoded_service(given)
        assert found.facts is not None
        assert (found.facts.policy, found.facts.ignored, found.problems) == (None, (), ())


def test_an_algorithm_becomes_a_policy() -> None:
    found = decoded_service({"kubeproxy/algorithm": "source-hash"})
    assert found.facts is not None
    assert found.facts.policy == Policy(algorithm=Algorithm.SOURCE_HASH)


def test_a_wrong_value_is_a_problem_that_names_the_annotation_and_the_default_holds() -> None:
    found = decoded_service({"kubeproxy/algorithm": "fastest"})
    assert found.facts is not None
    assert found.facts.policy is None
    assert found.problems == found.facts.ignored
    assert found.problems[0].startswith("annotation kubeproxy/algorithm: 'fastest' is none of")
    assert found.problems[0].endswith("; the default is used")


def test_an_address_beats_its_zone_and_weights_of_1_are_not_kept() -> None:
    found = decoded_slice("zone-a=5,10.244.0.2=1,10.244.0.4=0")
    assert found.facts.weights == (("10.244.0.1", 5), ("10.244.0.4", 0))
    assert not found.problems


def test_weights_of_addresses_that_are_not_in_the_slice_mean_nothing() -> None:
    """An endpoint may leave before whoever wrote the annotation notices."""
    assert decoded_slice("10.244.9.9=7,zone-z=2").facts.weights == ()


def test_slices_without_weights_are_as_before() -> None:
    assert decoded_slice(None).facts.weights == ()


def test_wrong_weights_name_the_slice() -> None:
    found = decoded_slice("10.244.0.1=heavy")
    assert found.facts.weights == ()
    assert found.problems[0].startswith("annotation kubeproxy/weights: 'heavy' is not a number")
    assert found.facts.ignored == (f"EndpointSlice web-1: {found.problems[0]}",)


def test_a_health_check_becomes_a_policy() -> None:
    found = decoded_service({"kubeproxy/health-check": "http /healthz interval=2s"})
    assert found.facts is not None
    check = HealthCheck(CheckKind.HTTP, "/healthz", interval_seconds=2)
    assert found.facts.policy == Policy(health_check=check)
    assert found.problems == ()


def test_a_wrong_health_check_is_a_problem_and_nothing_is_checked() -> None:
    found = decoded_service({"kubeproxy/health-check": "icmp"})
    assert found.facts is not None
    assert found.facts.policy is None
    assert found.facts.ignored == found.problems
    assert "annotation kubeproxy/health-check: 'icmp' is none of tcp" in found.problems[0]
