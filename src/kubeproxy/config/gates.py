"""Feature gates: which are on, and why a request for one is refused.

`resolve_gates` is pure: it takes what flags or file request and returns the state of all gates,
warnings for the log, and errors. Code asks for a gate by name through `FeatureGates.enabled`. Which
gates exist is in `gates_table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import msgspec

from kubeproxy.config.gates_table import CLASSES, DEPENDENCIES, Stage
from kubeproxy.go.text import format_bool

ALL_ALPHA = "AllAlpha"
ALL_BETA = "AllBeta"
# Setting one of these sets every gate of its stage that is not set by name.
_SWEEPING = {ALL_ALPHA: Stage.ALPHA, ALL_BETA: Stage.BETA}


class Gate(msgspec.Struct, frozen=True, gc=False):
    """One gate as Kubernetes ships it."""

    name: str
    stage: Stage
    default: bool
    locked: bool


ONLY_BY_NAME = ("WatchListClient",)
"""Gates that are on by default upstream, and here only if they are set."""


class FeatureGates(msgspec.Struct, frozen=True):
    """The state of every gate."""

    values: Mapping[str, bool]
    by_name: frozenset[str] = frozenset()
    """Those of `ONLY_BY_NAME` that flags or file switch on."""

    def enabled(self, name: str) -> bool:
        """Is this gate on? Raises KeyError for a name that is no gate: a mistake in the program."""
        return self.values[name]

    def is_requested(self, name: str) -> bool:
        """Was this gate, one of `ONLY_BY_NAME`, switched on by name?"""
        return name in self.by_name

    def __iter__(self) -> Iterator[tuple[Gate, bool]]:
        """Every gate and its state, by name."""
        return ((gate, self.values[name]) for name, gate in sorted(known_gates().items()))


class GateWarning(msgspec.Struct, frozen=True, gc=False):
    """A gate was set that will go away."""

    message: str
    gate: str
    value: bool


class Resolution(msgspec.Struct, frozen=True):
    """Outcome of setting gates. With errors, `gates` holds the defaults."""

    gates: FeatureGates
    warnings: tuple[GateWarning, ...] = ()
    errors: tuple[str, ...] = ()


@cache
def known_gates() -> Mapping[str, Gate]:
    """All gates by name."""
    return {
        name: Gate(name, group.stage, group.default, group.locked)
        for group in CLASSES
        for name in group.names.split()
    }


def default_gates() -> FeatureGates:
    """The state when no gate is set."""
    return FeatureGates({name: gate.default for name, gate in known_gates().items()})


def resolve_gates(requested: Mapping[str, bool]) -> Resolution:
    """Apply the requests to the defaults. Errors are in order of the names."""
    errors = _request_errors(requested)
    if errors:
        return Resolution(default_gates(), errors=errors)
    values = _apply(requested)
    errors = _dependency_errors(values)
    if errors:
        return Resolution(default_gates(), errors=errors)
    by_name = frozenset(name for name in ONLY_BY_NAME if requested.get(name))
    return Resolution(FeatureGates(values, by_name), _warnings(requested))


def _request_errors(requested: Mapping[str, bool]) -> tuple[str, ...]:
    errors: list[str] = []
    for name, value in sorted(requested.items()):
        gate = known_gates().get(name)
        if gate is None:
            return (*errors, f"unrecognized feature gate: {name}")
        if gate.locked and value != gate.default:
            errors.append(
                f"cannot set feature gate {name} to {format_bool(value)}, "
                f"feature is locked to {format_bool(gate.default)}"
            )
    return tuple(errors)


def _apply(requested: Mapping[str, bool]) -> dict[str, bool]:
    swept = {stage: requested[name] for name, stage in _SWEEPING.items() if name in requested}
    values = {
        name: gate.default if name in _SWEEPING else swept.get(gate.stage, gate.default)
        for name, gate in known_gates().items()
    }
    return {**values, **requested}


def _dependency_errors(values: Mapping[str, bool]) -> tuple[str, ...]:
    errors = []
    for name, needed in DEPENDENCIES.items():
        missing = [other for other in needed if not values[other]]
        if values[name] and missing:
            errors.append(
                f"{name} is enabled, but depends on features that are disabled: "
                f"[{' '.join(missing)}]"
            )
    return tuple(errors)


def _warnings(requested: Mapping[str, bool]) -> tuple[GateWarning, ...]:
    words = {Stage.GA: "GA", Stage.DEPRECATED: "deprecated"}
    return tuple(
        GateWarning(
            f"Warning: setting {words[stage]} feature gate. "
            "It will be removed in a future release.",
            name,
            value,
        )
        for name, value in sorted(requested.items())
        if (stage := known_gates()[name].stage) in words
    )


def describe_gates() -> tuple[str, ...]:
    """Return a line of the help text for each alpha and beta gate."""
    return tuple(
        f"{gate.name}=true|false ({gate.stage.value} - default={format_bool(gate.default)})"
        for _, gate in sorted(known_gates().items())
        if gate.stage in (Stage.ALPHA, Stage.BETA)
    )
