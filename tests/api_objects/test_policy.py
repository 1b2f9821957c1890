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


def sources(
    family: Family = Family.IPV4, **lists: str
) -> tuple[tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]]:
    """Who is allowed, who is denied, and what is wrong, of these annotations."""
    manifest = {
        "metadata": {
            "namespace": "default",
            "name": "web",
            "annotations": {f"kubeproxy/{name}-sources": text for name, text in lists.items()},
        },
        "spec": {
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"port": 80}],
        },
    }
    found = decode_service(msgspec.convert(manifest, objects.Service), family)
    assert found.facts is not None
    policy = found.facts.policy or Policy()
    assert found.facts.ignored == found.problems
    return policy.allow_sources, policy.deny_sources, found.problems


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
    """An endpoint may leave before the author of the annotation notices."""
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


def test_lists_of_sources_are_merged_and_split_by_family() -> None:
    lists = {"allow": "10.1.0.0/16, 10.0.0.0/16,192.0.2.1,2001:db8::/32", "deny": "10.0.9.0/24"}
    assert sources(Family.IPV4, **lists) == (("10.0.0.0/15", "192.0.2.1/32"), ("10.0.9.0/24",), ())
    assert sources(Family.IPV6, **lists) == (("2001:db8::/32",), (), ())


def test_a_family_that_an_allow_list_does_not_name_is_closed() -> None:
    """An allow list of IPv4 networks does not mean that all of IPv6 may come in."""
    assert sources(Family.IPV6, allow="10.0.0.0/8") == ((), (), ())
    assert sources(Family.IPV6, deny="10.0.0.0/8") == (None, (), ())


def test_all_addresses_are_no_network_that_a_mode_must_match() -> None:
    assert sources(allow="0.0.0.0/1,128.0.0.0/1") == (None, (), ())
    assert sources(allow="10.0.0.0/8", deny="0.0.0.0/0") == ((), (), ())


def test_of_a_wrong_list_the_entries_that_can_be_read_hold() -> None:
    allow, deny, problems = sources(allow="10.0.0.0/8,10.0.0.0/33", deny="office,192.0.2.0/24")
    assert (allow, deny) == (("10.0.0.0/8",), ("192.0.2.0/24",))
    assert problems == (
        "annotation kubeproxy/allow-sources: '10.0.0.0/33' is no address and no network like"
        " 192.0.2.0/24; the other entries hold",
        "annotation kubeproxy/deny-sources: 'office' is no address and no network like"
        " 192.0.2.0/24; the other entries hold",
    )


def test_an_allow_list_that_cannot_be_read_admits_no_client() -> None:
    """The default would be that everyone may connect: a typing error must not open a Service."""
    for text in ("office", "", "10.0.0.0/33"):
        allow, _, problems = sources(allow=text)
        assert allow == ()
        assert problems[0].endswith("; no client may connect")


def test_a_list_is_bounded_and_the_rest_is_not_admitted() -> None:
    text = ",".join(f"10.{number >> 8}.{number & 255}.0/32" for number in range(1500))
    allow, _, problems = sources(allow=text)
    assert allow is not None
    assert "10.0.0.0/32" in allow
    assert "10.5.0.0/32" not in allow
    assert "1500 entries are more than 1000" in problems[0]
