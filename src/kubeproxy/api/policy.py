"""Our annotations on objects → facts. Pure.

A wrong value is a problem, and the default holds: what an annotation asks for is never worth a
Service that does not work. Only lists of sources are otherwise, because their default is that
everyone may connect: of those, the entries that can be read hold, and an allow list in which there
is none admits no client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kubeproxy.api import objects
from kubeproxy.api.annotations import (
    parse_algorithm,
    parse_draining,
    parse_health_check,
    parse_weights,
    readable_sources,
)
from kubeproxy.facts.address import family_of, is_zero_cidr, merge_cidrs
from kubeproxy.facts.ids import Family
from kubeproxy.facts.policy import DEFAULT_WEIGHT, NO_POLICY, Policy

Value = TypeVar("Value")


def decode_policy(
    annotations: objects.ServiceAnnotations | None, family: Family, problems: list[str]
) -> Policy | None:
    """What a Service asks for; None if that is nothing, or nothing that can be understood."""
    if annotations is None:
        return None
    allow, deny = _sources(annotations, family, problems)
    policy = Policy(
        algorithm=_value(
            objects.ALGORITHM_ANNOTATION, annotations.algorithm, parse_algorithm, problems
        ),
        health_check=_value(
            objects.HEALTH_CHECK_ANNOTATION, annotations.health_check, parse_health_check, problems
        ),
        drain_seconds=_value(
            objects.DRAINING_ANNOTATION, annotations.draining, parse_draining, problems
        ),
        allow_sources=allow,
        deny_sources=deny,
    )
    return policy if policy != NO_POLICY else None


def _sources(
    annotations: objects.ServiceAnnotations, family: Family, problems: list[str]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Who may connect in this family (None: everyone), and who of these may not.

    Neither list holds the network of all addresses, which not every mode can match.
    """
    allow = _networks(
        objects.ALLOW_SOURCES_ANNOTATION,
        annotations.allow_sources,
        family,
        problems,
        otherwise="no client may connect",
    )
    if allow is not None and any(map(is_zero_cidr, allow)):
        allow = None
    deny = _networks(
        objects.DENY_SOURCES_ANNOTATION,
        annotations.deny_sources,
        family,
        problems,
        otherwise="it denies none",
    )
    if deny is not None and any(map(is_zero_cidr, deny)):
        return (), ()
    return allow, deny or ()


def _networks(
    name: str, text: str | None, family: Family, problems: list[str], *, otherwise: str
) -> tuple[str, ...] | None:
    """The networks of a family in one annotation; None if it is not there."""
    if text is None:
        return None
    found, wrong = readable_sources(text)
    if wrong:
        rest = "the other entries hold" if found else otherwise
        problems.append(f"annotation {name}: {wrong[0]}; {rest}")
    return merge_cidrs((cidr for cidr in found if family_of(cidr) is family), family)


def decode_weights(
    annotations: objects.SliceAnnotations | None,
    endpoints: Iterable[tuple[objects.SliceEndpoint, str]],
    problems: list[str],
) -> tuple[tuple[str, int], ...]:
    """The weights of these endpoints by address, where they are not 1.

    This is the only place that yields weights. Upstream's KEP-6315 proposes a weight as a field of
    each endpoint of a slice; when the API has it, read it here, before the annotation.
    """
    text = annotations.weights if annotations else None
    given = _value(objects.WEIGHTS_ANNOTATION, text, parse_weights, problems)
    if not given:
        return ()
    found = {
        address: given.get(address, given.get(endpoint.zone or "", DEFAULT_WEIGHT))
        for endpoint, address in endpoints
    }
    return tuple((a, weight) for a, weight in found.items() if weight != DEFAULT_WEIGHT)


def _value(
    name: str, text: str | None, parse: Callable[[str], Value | None], problems: list[str]
) -> Value | None:
    """The value of one annotation; None if it is not there, or is wrong."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        problems.append(f"annotation {name}: {error}; the default is used")
        return None
