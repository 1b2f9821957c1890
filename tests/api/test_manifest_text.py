"""What counts as a manifest: formats, kinds, defaults and clear words about what is missing."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeproxy.api import objects
from kubeproxy.api.manifest_text import Key, parse_manifest
from kubeproxy.api.source import Kind
from kubeproxy.errors import ObjectError

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""
SLICE = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
"""
WEB: Key = (Kind.SERVICE, "shop", "web")


def keys(text: str) -> list[Key]:
    manifest = parse_manifest(text)
    assert not manifest.problems
    return list(manifest.objects)


def problem_of(text: str) -> str:
    (problem,) = parse_manifest(text).problems
    return f"{problem.kind.value} {problem.name}: {problem.reason}"


def service(name: str = "web", **more: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.10"},
        **more,
    }


def test_yaml_with_several_documents() -> None:
    text = f"# a comment\n---\n{SERVICE}---\n---\n{SLICE}---\n"
    assert keys(text) == [WEB, (Kind.ENDPOINT_SLICE, "shop", "web-1")]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(service()),
        "\n  " + json.dumps([service()]),
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [service()]}),
        json.dumps(service()) + "\n---\n" + json.dumps(service("api")),
        "{kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1}}",
    ],
    ids=["object", "array", "list", "documents", "flow style"],
)
def test_json_and_yaml_that_looks_like_it(text: str) -> None:
    assert WEB in keys(text)


def test_items_of_a_list_get_its_kind() -> None:
    item = {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.1"}}
    text = json.dumps({"apiVersion": "v1", "kind": "ServiceList", "items": [item]})
    assert keys(text) == [WEB]


def test_lists_may_hold_lists_and_be_empty() -> None:
    inner = {"kind": "List", "items": [service()]}
    assert keys(json.dumps({"kind": "List", "items": [inner, {"kind": "ServiceList"}]})) == [WEB]
    assert keys("kind: List\nitems:\n") == []


def test_objects_of_a_namespaced_kind_are_in_default_unless_they_say_otherwise() -> None:
    text = (SERVICE + "---" + SLICE).replace(", namespace: shop", "")
    text += "---\n{apiVersion: v1, kind: Node, metadata: {name: worker-a}}"
    assert keys(text) == [
        (Kind.SERVICE, "default", "web"),
        (Kind.ENDPOINT_SLICE, "default", "web-1"),
        (Kind.NODE, "", "worker-a"),
    ]
    found = parse_manifest(text).objects[Kind.SERVICE, "default", "web"]
    assert found.metadata.namespace == "default"


@pytest.mark.parametrize(
    "foreign",
    [
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}",
        "{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: x}}",
        "{apiVersion: v1, kind: Endpoints, metadata: {name: x}}",
        "{apiVersion: v1, kind: PodList, items: [{metadata: {name: x}}]}",
    ],
)
def test_other_kinds_in_the_same_file_are_passed_over(foreign: str) -> None:
    assert keys(f"{SERVICE}---\n{foreign}\n") == [WEB]


def test_a_service_without_a_cluster_ip_is_told_what_to_do() -> None:
    text = problem_of(SERVICE.replace("clusterIP: 10.96.0.10, ", ""))
    assert text.startswith("Service shop/web: spec.clusterIP is missing")
    assert "write the address" in text


@pytest.mark.parametrize("spec", ["{clusterIP: None}", "{type: ExternalName, externalName: a.b}"])
def test_a_service_that_needs_no_address_is_fine_without(spec: str) -> None:
    text = f"{{kind: Service, metadata: {{name: web, namespace: shop}}, spec: {spec}}}"
    assert keys(text) == [WEB]


def test_a_slice_without_its_label_is_told_what_to_do() -> None:
    text = problem_of(SLICE.replace("kubernetes.io/service-name: web", "app: web"))
    assert text.startswith("EndpointSlice shop/web-1: label kubernetes.io/service-name is missing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{kind: Service, spec: {clusterIP: 10.96.0.1}}", "metadata.name is missing"),
        (SERVICE.replace("port: 80", "port: eighty"), "Expected `int`, got `str`"),
        (SERVICE.replace("port: 80", "name: x"), "missing required field `port`"),
        (SERVICE.replace("name: web,", "name: 5,"), "Expected `str`, got `int`"),
        (f"{SERVICE}---{SERVICE}", "the file holds another object of this name"),
    ],
)
def test_a_bad_object_is_named_and_the_others_are_used(text: str, reason: str) -> None:
    manifest = parse_manifest(f"{text}\n---\n{json.dumps(service('good'))}")
    assert (Kind.SERVICE, "shop", "good") in manifest.objects
    (problem,) = manifest.problems
    assert reason in problem.reason


def test_times_stay_text() -> None:
    text = SLICE.replace(
        "labels:",
        "annotations: {endpoints.kubernetes.io/last-change-trigger-time: 2026-01-01T00:00:00Z},"
        " labels:",
    )
    (found,) = parse_manifest(text).objects.values()
    assert isinstance(found, objects.EndpointSlice) and found.metadata.annotations is not None
    assert found.metadata.annotations.trigger_time == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("# only a comment\n---\n", "the file is empty"),
        ("{", "neither JSON"),
        ("a: [", "not YAML"),
        ("just words", "expected an object with a kind"),
        ("kind: 5: 6", "not YAML"),
        ("[1, 2]", "expected an object with a kind"),
        ("metadata: {name: web}", "expected an object with a kind"),
        ("{kind: List, items: 5}", "items of a List are not a list"),
        ('{"kind": "List", "items": {"a": 1}}', "items of a List are not a list"),
        ("kind: Service\nx: !!int word", "not YAML"),
        ("kind: Service\nx: !!bool word", "not YAML"),
        ("kind: Service\nx: !!python/object:os.system {}", "not YAML"),
        ('{"kind": "List", "items": ["\\ud800"]}', "neither JSON"),
        ('{"kind": "List", "items": [1e999]}', "not JSON"),
        ('{"kind": "List", "items": [{"kind": "Service"}', "neither JSON"),
        ("&a [*a]", "contains itself"),
        ("[" * 20_000, "nested too deeply"),
        ("\x00", "not YAML"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, reason: str) -> None:
    with pytest.raises(ObjectError) as caught:
        parse_manifest(text)
    assert reason in str(caught.value)


WORDS = (
    *["kind: ", "Service", "List", "items:", "\n", "  ", "- ", "metadata: {name: x}", "spec:"],
    *["---\n", "{", "}", "[", "]", ",", '"', ": ", "&a ", "*a", "!!int ", "!!set {a, b}", "? "],
    *["!!timestamp x", "!!binary aGk=", "clusterIP: 10.0.0.1", "5", ".nan", "null", "<<: "]
)  # fmt: skip


@given(text=st.lists(st.sampled_from(WORDS), max_size=14).map("".join) | st.text(max_size=30))
@settings(max_examples=300, deadline=None, database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ObjectError):
        parse_manifest(text)
