"""What a person may want to know about the plans of one Service on this node. Pure.

Each function returns one sentence while a state lasts, else an empty text, so that its beginning
is found by comparing the plans before and after a change.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.facts.address import join_host_port
from kubeproxy.plan.balance import NOT_SUPPORTED
from kubeproxy.plan.draining import NOT_DRAINED
from kubeproxy.plan.endpoints import FAILS, HINTS_IGNORED, HINTS_INCOMPLETE
from kubeproxy.plan.health import ALL_FAIL
from kubeproxy.plan.limits import REFUSED
from kubeproxy.plan.types import Frontend, ServicePlan, Verdict

_MOST_PLACES = 3
INVALID = "annotation "
"""Marks the note about an annotation (`api/policy`)."""


def no_local_endpoints(plans: Sequence[ServicePlan]) -> str:
    """Where traffic is dropped, because endpoints serve but none on this node."""
    dropped = [
        f"{_place(frontend)}/{plan.id.protocol.value}"
        for plan in plans
        for frontend in plan.frontends
        if frontend.verdict is Verdict.DROP
    ]
    if not dropped:
        return ""
    places = _some(dropped, ", ")
    return f"no endpoint is on this node and the policy is Local: {places} is dropped here"


def _some(texts: Sequence[str], separator: str) -> str:
    more = len(texts) - _MOST_PLACES
    return separator.join(texts[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else "")


def _place(frontend: Frontend) -> str:
    if not frontend.address:
        return f"node port {frontend.port}"
    return join_host_port(frontend.address, frontend.port)


def refused_addresses(plans: Sequence[ServicePlan]) -> str:
    """Which endpoints and addresses a rule of this node about addresses refuses, and which rule."""
    refused = [
        f"{each.what} ({each.reason.removeprefix(REFUSED)})"
        for plan in plans
        for each in plan.excluded
        if each.is_refused
    ]
    unique = list(dict.fromkeys(refused))
    more = len(unique) - _MOST_PLACES
    return ", ".join(unique[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else "")


def is_refused_here(plans: Sequence[ServicePlan]) -> bool:
    """Is this node one of few that should report it, with an endpoint or a port of its own?"""
    return any(
        plan.hairpin or any(each.is_here for each in plan.excluded if each.is_refused)
        for plan in plans
    )


def invalid_annotations(plans: Sequence[ServicePlan]) -> str:
    """Which annotations hold what cannot be understood. Only nodes with an endpoint report that."""
    return _notes_with(INVALID, plans)


def unsupported_algorithm(plans: Sequence[ServicePlan]) -> str:
    """Which algorithm this mode does not have. Only nodes with an endpoint report that."""
    return _notes_with(NOT_SUPPORTED, plans)


def unsupported_draining(plans: Sequence[ServicePlan]) -> str:
    """For which protocol draining is not limited. Only nodes with an endpoint report that."""
    return _notes_with(NOT_DRAINED, plans)


def _notes_with(mark: str, plans: Sequence[ServicePlan]) -> str:
    found = [note for plan in plans if plan.hairpin for note in plan.notes if mark in note]
    return "; ".join(dict.fromkeys(found))


def ignored_hints(plans: Sequence[ServicePlan]) -> str:
    """Why topology hints are not followed here.

    Hints that are incomplete are so on every node. Only nodes with an endpoint report that.
    """
    found = [
        note
        for plan in plans
        for note in plan.notes
        if HINTS_IGNORED in note and (plan.hairpin or not note.endswith(HINTS_INCOMPLETE))
    ]
    return "; ".join(dict.fromkeys(found))


def failing_endpoints(plans: Sequence[ServicePlan]) -> str:
    """Which endpoints fail their check and are left out. Only nodes with an endpoint report that.

    A dead endpoint is dead for every node, and five thousand need not report the same.
    """
    found = [
        f"{excluded.what} {excluded.reason}"
        for plan in plans
        if plan.hairpin
        for excluded in plan.excluded
        if excluded.reason.startswith(FAILS)
    ]
    return _some(list(dict.fromkeys(found)), "; ")


def all_endpoints_fail(plans: Sequence[ServicePlan]) -> str:
    """That every endpoint fails its check, and all are used."""
    return _notes_with(ALL_FAIL, plans)
