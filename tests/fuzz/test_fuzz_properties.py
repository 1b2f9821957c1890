"""Objects, configuration, kubeconfig and manifests that look nearly right, made by hypothesis.

Bytes are the matter of `targets`. Here values have the shape that the program expects, with wrong
values here and there, so that they get far: objects become plans and rules of every mode; files
come in several encodings, with aliases and nesting. KUBEPROXY_EFFORT says how many are tried.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api_objects.test_decode_arbitrary import ANYTHING, TEXTS, shaped
from tests.fuzz import targets
from tests.support.builders import node
from tests.support.effort import examples

from kubeproxy.api import objects
from kubeproxy.api.auth.kubeconfig_types import File
from kubeproxy.api.decode import decode_service, decode_slice
from kubeproxy.api.manifest_text import decode_text, parse_manifest
from kubeproxy.config.command import Settings, parse_command_line, with_content
from kubeproxy.config.types import KubeProxyConfiguration
from kubeproxy.config.write import config_document
from kubeproxy.errors import ConfigError, ObjectError
from kubeproxy.facts.endpoint import SliceFacts
from kubeproxy.facts.ids import Family
from kubeproxy.facts.limits import Limits
from kubeproxy.facts.service import ServiceFacts
from kubeproxy.modes.base import AnyBackend
from kubeproxy.modes.registry import load_mode, mode_names
from kubeproxy.sync.pipeline import Pipeline

EXAMPLES = 60
_EXECUTIONS: Counter[str] = Counter()

many = settings(
    max_examples=examples(EXAMPLES),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    """Write how often each property was tried to where `make fuzz` looks."""
    yield
    if place := os.environ.get("KUBEPROXY_FUZZ_COUNTS"):
        Path(place).write_text(json.dumps(_EXECUTIONS))


# --- objects ---

NAMES = st.sampled_from(["web", "a", "b.c", "x" * 253]) | TEXTS
NAMESPACES = st.sampled_from(["shop", "default"])
PORTS = st.sampled_from([1, 80, 443, 8080, 65535, 0, 65536, -1]) | st.integers()


def _shaped(kind: type) -> st.SearchStrategy[object]:
    return shaped(msgspec.inspect.type_info(kind))


SERVICES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": NAMES, "namespace": NAMESPACES}),
        "spec": _shaped(objects.ServiceSpec).flatmap(
            lambda spec: st.fixed_dictionaries(
                {
                    "clusterIP": st.sampled_from(["10.96.0.1", "fd00::1", "10.96.0.2"]) | TEXTS,
                    "ports": st.lists(
                        st.fixed_dictionaries(
                            {"port": PORTS},
                            optional={
                                "name": TEXTS,
                                "nodePort": PORTS,
                                "protocol": st.sampled_from(["TCP", "UDP", "SCTP"]) | TEXTS,
                            },
                        ),
                        max_size=4,
                    ),
                }
            ).map(lambda fields: {**(spec if isinstance(spec, dict) else {}), **fields})
        ),
    },
    optional={"status": _shaped(objects.ServiceStatus)},
)
SLICES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": NAMES,
                "namespace": NAMESPACES,
                "labels": st.fixed_dictionaries({"kubernetes.io/service-name": NAMES}),
            }
        ),
        "addressType": st.sampled_from(["IPv4", "IPv6"]) | TEXTS,
        "ports": st.lists(
            st.fixed_dictionaries({"port": PORTS, "name": TEXTS}, optional={"protocol": TEXTS})
        ),
        "endpoints": st.lists(
            st.fixed_dictionaries(
                {"addresses": st.lists(st.ip_addresses().map(str) | TEXTS, max_size=2)},
                optional={
                    "conditions": _shaped(objects.EndpointConditions),
                    "hints": ANYTHING,
                    "nodeName": TEXTS,
                },
            ),
            max_size=5,
        ),
    }
)
LIMITS = st.builds(
    Limits,
    endpoint_cidrs=st.sampled_from([(), ("10.0.0.0/8", "fd00::/8"), ("0.0.0.0/0",)]),
    external_ip_cidrs=st.sampled_from([(), ("10.0.0.0/8",)]),
    refused_node_ports=st.sampled_from([(), ((1, 65535),)]),
)


@cache
def backend(mode: str, family: Family) -> AnyBackend:
    given_flags = parse_command_line([f"--proxy-mode={mode}"])
    assert isinstance(given_flags, Settings)
    loaded = load_mode(mode)
    return loaded.create(family, loaded.options(given_flags.config, given_flags.extensions))


@given(service=SERVICES, slices=st.lists(SLICES, max_size=3), limits=LIMITS, data=st.data())
@many
def test_objects_become_rules_or_are_refused(
    service: object, slices: list[object], limits: Limits, data: st.DataObject
) -> None:
    """What is decoded can be planned and rendered in every mode, and described."""
    _EXECUTIONS["objects"] += 1
    mode = data.draw(st.sampled_from(mode_names()))
    for family in Family:
        pipeline = Pipeline(backend(mode, family), node(family, limits=limits))
        facts = _service_facts(service, family)
        if facts is not None:
            pipeline.store.set_service(facts)
        for found in filter(None, (_slice_facts(each, family) for each in slices)):
            pipeline.store.set_slice(found)
        pipeline.recompute()
        assert not pipeline.faults
        assert isinstance(backend(mode, family).describe(pipeline.fragments()), str)


def _service_facts(service: object, family: Family) -> ServiceFacts | None:
    with contextlib.suppress(msgspec.ValidationError, ObjectError, UnicodeEncodeError):
        wire = msgspec.json.encode(service)
        return decode_service(msgspec.json.decode(wire, type=objects.Service), family).facts
    return None


def _slice_facts(found: object, family: Family) -> SliceFacts | None:
    with contextlib.suppress(msgspec.ValidationError, ObjectError, UnicodeEncodeError):
        wire = msgspec.json.encode(found)
        decoded = decode_slice(msgspec.json.decode(wire, type=objects.EndpointSlice), "worker-a")
        return decoded.facts if decoded.family is family else None
    return None


# --- files ---

ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
BOMB = "x: &x [{}]\n".format(",".join("a" * 20)) + "".join(
    f"{name}: &{name} [{','.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("xbcdefgh", "bcdefghi", strict=True)
)
DECORATIONS = st.sampled_from(
    [
        "",
        "# comment\n",
        "---\n",
        "%YAML 1.1\n---\n",
        BOMB,
        "a: " + "[" * 3000,
        "{" * 2000,
        "&a ",
        "\t",
    ]
)


@st.composite
def files(draw: st.DrawFn, documents: st.SearchStrategy[object]) -> bytes:
    """A document as YAML or JSON, in some encoding, perhaps with something odd before it."""
    document = draw(documents)
    try:
        text = (
            json.dumps(document, ensure_ascii=draw(st.booleans()))
            if draw(st.booleans())
            else yaml.safe_dump(document, allow_unicode=draw(st.booleans()))
        )
    except (ValueError, yaml.YAMLError):
        text = repr(document)
    text = draw(DECORATIONS) + text
    return text.encode(draw(ENCODINGS), "replace")


HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
DEFAULTS = config_document(KubeProxyConfiguration())


def altered(value: object) -> st.SearchStrategy[object]:
    """The value with some of its parts replaced by anything."""
    if isinstance(value, dict):
        parts = {str(key): altered(part) for key, part in value.items()}
        return st.fixed_dictionaries({}, optional=parts)
    return st.just(value) | ANYTHING


@given(content=files(altered(DEFAULTS).map(lambda fields: {**fields, **HEAD})))  # type: ignore[dict-item]
@many
def test_a_configuration_file_is_used_or_refused(content: bytes) -> None:
    _EXECUTIONS["configuration"] += 1
    given_flags = parse_command_line([])
    assert isinstance(given_flags, Settings)
    with contextlib.suppress(ConfigError):
        with_content(given_flags, content)
    targets.configuration(content)


@given(content=files(_shaped(File)))
@many
def test_a_kubeconfig_is_used_or_refused(content: bytes) -> None:
    _EXECUTIONS["kubeconfig"] += 1
    targets.kubeconfig(content)


KINDS = st.sampled_from(["Service", "EndpointSlice", "Node", "ServiceCIDR", "List", "Pod"]) | TEXTS
VERSIONS = st.sampled_from(["v1", "discovery.k8s.io/v1", "networking.k8s.io/v1"]) | TEXTS


def with_kind(document: object) -> st.SearchStrategy[object]:
    head = st.fixed_dictionaries({"kind": KINDS}, optional={"apiVersion": VERSIONS})
    return head.map(lambda found: {**document, **found} if isinstance(document, dict) else document)


DOCUMENTS = (SERVICES | SLICES | _shaped(objects.Node) | ANYTHING).flatmap(with_kind)
LISTS = st.lists(DOCUMENTS, max_size=3).map(lambda items: {"kind": "List", "items": items})


@given(content=files(DOCUMENTS | LISTS))
@many
def test_a_manifest_is_used_or_refused(content: bytes) -> None:
    """What is refused in part is named."""
    _EXECUTIONS["manifests"] += 1
    with contextlib.suppress(ObjectError):
        found = parse_manifest(decode_text(content))
        assert all(problem.reason for problem in found.problems)
        for item in found.objects.values():
            _use(item)


def _use(item: object) -> None:
    with contextlib.suppress(ObjectError):
        if isinstance(item, objects.Service):
            for family in Family:
                decode_service(item, family)
        elif isinstance(item, objects.EndpointSlice):
            decode_slice(item, "worker-a")
