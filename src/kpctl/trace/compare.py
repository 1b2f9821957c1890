"""A packet's way through plan, rendered items and kernel, and the first place where they differ.

Two sets of items are compared where the packet passes: every step of a way names the item that
decided it, also where nothing was found. What differs elsewhere is `kpctl drift`'s matter. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kpctl.trace.packets import (
    Arrival,
    Ruling,
    Step,
    Traced,
    Tracer,
    Untraceable,
    Way,
    shares,
    summary,
)
from kubeproxy.modes.base import AnyItem, AnyValue, Owner

_SAME_SHARE = 1e-6
"""iptables rounds probabilities to 31 bits."""
_ROUNDED_SHARE = 0.02
"""Weights are shared out in whole slots, of which a chain of rules has 128 (`plan/slots`)."""


class Leg(Struct, frozen=True):
    """The packet's ways through one of the three. With a `problem` there is no answer."""

    ways: tuple[Way, ...] = ()
    problem: str = ""

    @property
    def traced(self) -> Traced | None:
        return None if self.problem else summary(self.ways)


class Difference(Struct, frozen=True):
    """The first place where two legs differ.

    `item` and the step where it was met are None if only the outcome differs. `held` is what the
    kernel has for the item, `wanted` what was rendered.
    """

    between: tuple[str, str]
    step: Step | None = None
    held: AnyValue | None = None
    wanted: AnyValue | None = None

    @property
    def item(self) -> AnyItem | None:
        return self.step.item if self.step else None


class Wanted(Struct, frozen=True):
    """Items with the owner whose value each of them has."""

    items: Mapping[AnyItem, AnyValue]
    owners: Mapping[AnyItem, Owner]


class Comparison(Struct, frozen=True):
    """All that was found out. `kernel` is None if there is none to ask."""

    arrival: Arrival
    plan: Leg
    rendered: Leg
    kernel: Leg | None
    difference: Difference | None

    @property
    def verdict(self) -> Ruling | None:
        """What happens to the packet, as near to the kernel as is known; None if unknown."""
        traced = (self.kernel or self.rendered).traced
        return traced.ruling if traced else None


def follow(tracer: Tracer, arrival: Arrival) -> Leg:
    """Trace, and turn what cannot be traced into a problem."""
    try:
        return Leg(tuple(tracer.ways(arrival)))
    except Untraceable as problem:
        return Leg(problem=str(problem))


def compare(
    arrival: Arrival,
    plan: Leg,
    rendered: Leg,
    kernel: Leg | None,
    *,
    wanted: Mapping[AnyItem, AnyValue],
    held: Mapping[AnyItem, AnyValue] | None,
) -> Comparison:
    """Find the first difference: between plan and rendered, then between rendered and kernel."""
    difference = None
    if not _is_same(plan, rendered, _ROUNDED_SHARE):
        difference = Difference(("plan", "rendered"))
    elif kernel is not None and held is not None:
        difference = _kernel_difference(rendered, kernel, wanted, held)
    return Comparison(arrival, plan, rendered, kernel, difference)


def _kernel_difference(
    rendered: Leg,
    kernel: Leg,
    wanted: Mapping[AnyItem, AnyValue],
    held: Mapping[AnyItem, AnyValue],
) -> Difference | None:
    between = ("rendered", "kernel")
    for step in (*_decided(rendered.ways), *_decided(kernel.ways)):
        is_value, should_be = held.get(step.item), wanted.get(step.item)
        if is_value != should_be:
            return Difference(between, step, is_value, should_be)
    return None if _is_same(rendered, kernel) else Difference(between)


def _decided(ways: Sequence[Way]) -> Iterator[Step]:
    """The steps that an item decided, each item once, in the order of the ways."""
    seen: set[AnyItem] = set()
    for way in ways:
        for step in way.steps:
            if step.item is not None and step.item not in seen:
                seen.add(step.item)
                yield step


def _is_same(one: Leg, other: Leg, tolerance: float = _SAME_SHARE) -> bool:
    """Do both end the same way, at the same endpoints with the same shares?"""
    if one.problem or other.problem or one.traced != other.traced:
        return False
    mine, theirs = shares(one.ways), shares(other.ways)
    return all(abs(float(mine[place] - theirs[place])) <= tolerance for place in mine)
