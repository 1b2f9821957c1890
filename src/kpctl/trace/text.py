"""What was found out about a packet, as lines for people and as data for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kpctl.trace.compare import Comparison, Leg, Wanted
from kpctl.trace.naming import difference_lines, owner_text
from kpctl.trace.packets import Arrival, Ruling, Step, StepKind, Way, shares
from kpctl.trace.subject import source_text
from kubeproxy.facts.address import join_host_port
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import AnyBackend, AnyItem, Owner

_MOST_ENDPOINTS = 10
_RULINGS = {
    Ruling.FORWARD: "forwarded",
    Ruling.REJECT: "rejected",
    Ruling.DROP: "dropped",
    Ruling.UNTOUCHED: "left alone: no Service takes it",
}
_ACTIONS = {
    "dnat": "the destination becomes",
    "connect": "connects to",
    "mark": "marked for masquerading",
    "unmark": "the mark is cleared",
    "masquerade": "the source becomes the node",
    "drop": "dropped",
    "reject": "rejected with an ICMP error",
    "accept": "passes",
    "return": "",
    "choose": "chosen from",
    "pass": "passes",
}
_SILENT = frozenset({StepKind.RULE, StepKind.MISS})
"""Steps that only the wide form shows."""


class Line(Struct, frozen=True):
    """One line of a way: how deep in chains, and what is there."""

    depth: int
    text: str
    is_event: bool = True
    """Does something happen there, or is it a chain that is merely entered?"""


def answer_lines(
    comparison: Comparison,
    wanted: Wanted,
    backend: AnyBackend,
    node: NodeFacts,
    *,
    mode: str,
    is_wide: bool = False,
) -> Iterator[str]:
    """Everything, as lines."""
    yield from _heading(comparison.arrival, node, mode)
    yield from _leg_lines("Plan", comparison.plan, wanted.owners, is_wide=True)
    yield from _leg_lines("Rendered", comparison.rendered, wanted.owners, is_wide=is_wide)
    yield from _kernel_lines(comparison, wanted, is_wide=is_wide)
    yield ""
    yield from _conclusion(comparison, wanted, backend)


def _heading(arrival: Arrival, node: NodeFacts, mode: str) -> Iterator[str]:
    yield f"{arrival.source} → {_place(arrival)}, on node {node.name} in {mode} mode"
    yield f"The source is {source_text(node, arrival)}."


def _place(arrival: Arrival) -> str:
    return f"{join_host_port(arrival.destination, arrival.port)}/{arrival.protocol.value}"


def _kernel_lines(comparison: Comparison, wanted: Wanted, *, is_wide: bool) -> Iterator[str]:
    if comparison.kernel is None:
        yield ""
        yield "Kernel: not known, because no running proxy is asked."
    elif comparison.difference is None and not is_wide:
        yield ""
        yield "Kernel: holds all of this."
    else:
        yield from _leg_lines("Kernel", comparison.kernel, wanted.owners, is_wide=is_wide)


def _conclusion(comparison: Comparison, wanted: Wanted, backend: AnyBackend) -> Iterator[str]:
    ruling = comparison.verdict
    verdict = "unknown" if ruling is None else _RULINGS[ruling]
    if comparison.difference is None:
        who = "plan, rules and kernel" if comparison.kernel is not None else "plan and rules"
        yield f"Verdict: {verdict}; {who} agree."
        return
    yield f"Verdict: {verdict}; but they differ:"
    first, *rest = difference_lines(comparison.difference, backend, wanted.owners)
    yield f"  {first}"
    yield from (f"    {line}" for line in rest)
    if comparison.difference.between[0] == "plan":
        yield "  This is a defect of kube-proxy. Please report it with `kpctl bundle`."
    else:
        yield "  `kpctl drift` shows all that differs. A running proxy repairs in seconds what it"
        yield "  notices, and in ipvs mode virtual servers at its next periodic sync."


# ---- one leg ---------------------------------------------------------------------------------


def _leg_lines(
    title: str, leg: Leg, owners: Mapping[AnyItem, Owner], *, is_wide: bool
) -> Iterator[str]:
    yield ""
    yield title
    if leg.problem:
        yield f"  cannot be followed: {leg.problem}"
        return
    way = next((way for way in leg.ways if way.is_translated), leg.ways[0])
    is_example = len(shares(leg.ways)) > 1
    for line in way_lines(way.steps, owners, is_wide=is_wide, is_example=is_example):
        yield f"  {'  ' * line.depth}{line.text}"
    yield from (f"  {text}" for text in _ends(leg.ways))


def way_lines(
    steps: Sequence[Step],
    owners: Mapping[AnyItem, Owner],
    *,
    is_wide: bool,
    is_example: bool = False,
) -> list[Line]:
    """The steps of a way, nested as chains were entered; without chains where nothing happened.

    `is_example` holds if other ways lead to other endpoints.
    """
    kept: list[Line] = []
    entered: list[int] = []
    for step in steps:
        if step.kind is StepKind.HOOK:
            kept, entered = _without_idle(kept, 0 if not entered else entered[0]), []
        if step.kind in (StepKind.HOOK, StepKind.ENTER):
            entered.append(len(kept))
            kept.append(Line(len(entered) - 1, _chain_text(step, owners), is_event=False))
        elif step.kind is StepKind.LEAVE:
            kept = kept if is_wide else _without_idle(kept, entered[-1])
            entered.pop()
        elif is_wide or step.kind not in _SILENT:
            kept += _event(step, owners, len(entered), is_example=is_example)
    return _without_idle(kept, entered[0]) if entered else kept


def _without_idle(kept: list[Line], start: int) -> list[Line]:
    return kept if any(line.is_event for line in kept[start:]) else kept[:start]


def _chain_text(step: Step, owners: Mapping[AnyItem, Owner]) -> str:
    more = f" ({step.text})" if step.text else ""
    return _named(f"{step.name}{more}", owner_text(owners, step.item))


def _event(
    step: Step, owners: Mapping[AnyItem, Owner], depth: int, *, is_example: bool
) -> list[Line]:
    owner = owner_text(owners, step.item)
    if step.kind is StepKind.DO:
        action = _action_text(step, is_example=is_example)
        return [Line(depth, action)] if action else []
    if step.kind is StepKind.LOOK:
        return [Line(depth, _named(f"{step.name}: {step.text}", owner))]
    if step.kind is StepKind.MISS:
        more = f": {step.text}" if step.text else ""
        return [Line(depth, f"({step.name}{more})", is_event=False)]
    return [Line(depth, f"({step.text})", is_event=False)]


def _action_text(step: Step, *, is_example: bool) -> str:
    action = _ACTIONS.get(step.name, step.name)
    if step.name in ("dnat", "connect"):
        more = ", for example" if is_example else ""
        return f"{action} {step.text.removeprefix('to ')}{more}"
    return f"{action}: {step.text}" if step.text else action


def _named(text: str, owner: str) -> str:
    return f"{text}  # {owner}" if owner and owner not in text else text


def _ends(ways: Sequence[Way]) -> Iterator[str]:
    """Where the connection can end, with the probability of each."""
    found = shares(ways)
    masqueraded = {way.endpoint for way in ways if way.is_masqueraded}
    lost = sum(way.share for way in ways if not way.is_translated)
    if not found:
        return
    yield "→ one of" if len(found) > 1 else "→"
    ordered = sorted(found.items())
    for place, share in ordered[:_MOST_ENDPOINTS]:
        sees = "sees the node" if place in masqueraded else "sees the client"
        yield f"    {join_host_port(*place)}  {float(share):.1%}, {sees}"
    if len(ordered) > _MOST_ENDPOINTS:
        yield f"    … {len(ordered) - _MOST_ENDPOINTS} more"
    if lost:
        yield f"    nowhere: {float(lost):.1%}"


# ---- data ------------------------------------------------------------------------------------


def answer_data(
    comparison: Comparison, wanted: Wanted, backend: AnyBackend, node: NodeFacts, *, mode: str
) -> dict[str, object]:
    """The same as plain data."""
    arrival, difference = comparison.arrival, comparison.difference
    lines = difference and list(difference_lines(difference, backend, wanted.owners))
    kernel = comparison.kernel
    return {
        "source": arrival.source,
        "sourceIs": source_text(node, arrival),
        "destination": arrival.destination,
        "port": arrival.port,
        "protocol": arrival.protocol.value,
        "family": arrival.family.value,
        "node": node.name,
        "mode": mode,
        "verdict": comparison.verdict.value if comparison.verdict else None,
        "agrees": difference is None,
        "difference": lines
        and difference
        and {
            "between": list(difference.between),
            "text": lines[0],
            "lines": lines[1:],
            "service": owner_text(wanted.owners, difference.item) or None,
        },
        "plan": _leg_data(comparison.plan, wanted.owners),
        "rendered": _leg_data(comparison.rendered, wanted.owners),
        "kernel": None if kernel is None else _leg_data(kernel, wanted.owners),
    }


def _leg_data(leg: Leg, owners: Mapping[AnyItem, Owner]) -> dict[str, object]:
    traced = leg.traced
    if traced is None:
        return {"problem": leg.problem}
    way = next((way for way in leg.ways if way.is_translated), leg.ways[0])
    return {
        "verdict": traced.ruling.value,
        "endpoints": [
            {
                "address": place[0],
                "port": place[1],
                "share": round(float(share), 6),
                "masqueraded": place in traced.masqueraded,
            }
            for place, share in sorted(shares(leg.ways).items())
        ],
        "steps": [_step_data(step, owners) for step in way.steps],
    }


def _step_data(step: Step, owners: Mapping[AnyItem, Owner]) -> dict[str, object]:
    owner = owner_text(owners, step.item)
    data: dict[str, object] = {"kind": step.kind.value, "name": step.name}
    if step.text:
        data["text"] = step.text
    if owner:
        data["service"] = owner
    return data
