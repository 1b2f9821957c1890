"""Feature gates: the table, and what setting one does."""

from __future__ import annotations

import pytest

from kubeproxy.config.gates import default_gates, describe_gates, known_gates, resolve_gates
from kubeproxy.config.gates_table import CLASSES, DEPENDENCIES, Stage


def test_all_gates_of_the_release_are_known_once() -> None:
    names = [name for group in CLASSES for name in group.names.split()]
    assert len(names) == len(set(names)) == 242


@pytest.mark.parametrize(
    ("stage", "default", "locked", "count"),
    [
        (Stage.ALPHA, False, False, 50),
        (Stage.BETA, True, False, 88),
        (Stage.BETA, False, False, 12),
        (Stage.GA, True, False, 5),
        (Stage.GA, True, True, 71),
        (Stage.DEPRECATED, True, False, 4),
        (Stage.DEPRECATED, False, False, 7),
        (Stage.DEPRECATED, True, True, 2),
        (Stage.DEPRECATED, False, True, 3),
    ],
)
def test_classes_have_upstreams_sizes(
    stage: Stage, default: bool, locked: bool, count: int
) -> None:
    gates = known_gates().values()
    same = [g for g in gates if (g.stage, g.default, g.locked) == (stage, default, locked)]
    assert len(same) == count


@pytest.mark.parametrize(
    ("name", "stage", "default", "locked"),
    [
        ("AllowServiceExternalIPs", Stage.GA, True, False),
        ("MultiCIDRServiceAllocator", Stage.GA, True, True),
        ("PreferSameTrafficDistribution", Stage.GA, True, True),
        ("ComponentFlagz", Stage.BETA, True, False),
        ("ComponentStatusz", Stage.BETA, True, False),
        ("LoggingAlphaOptions", Stage.ALPHA, False, False),
        ("LoggingBetaOptions", Stage.BETA, True, False),
        ("NativeHistograms", Stage.ALPHA, False, False),
        ("WatchListClient", Stage.BETA, True, False),
        ("ConcurrentWatchObjectDecode", Stage.BETA, False, False),
    ],
)
def test_gates_with_an_effect(name: str, stage: Stage, default: bool, locked: bool) -> None:
    gate = known_gates()[name]
    assert (gate.stage, gate.default, gate.locked) == (stage, default, locked)


def test_dependencies_name_known_gates() -> None:
    named = {name for left, right in DEPENDENCIES.items() for name in (left, *right)}
    assert len(DEPENDENCIES) == 49
    assert named <= set(known_gates())


def test_nothing_set_gives_the_defaults() -> None:
    assert resolve_gates({}).gates == default_gates()


def test_every_gate_can_be_set_to_its_default() -> None:
    for gate in known_gates().values():
        assert not resolve_gates({gate.name: gate.default}).errors, gate.name


def test_only_locked_gates_refuse_the_other_value() -> None:
    for gate in known_gates().values():
        errors = resolve_gates({gate.name: not gate.default}).errors
        assert any("is locked to" in error for error in errors) is gate.locked, gate.name


def test_locked_error_names_both_values() -> None:
    assert resolve_gates({"NFTablesProxyMode": False}).errors == (
        "cannot set feature gate NFTablesProxyMode to false, feature is locked to true",
    )


def test_unknown_gates_are_refused() -> None:
    assert resolve_gates({"Foo": True}).errors == ("unrecognized feature gate: Foo",)


def test_a_dependency_that_is_off_is_an_error() -> None:
    errors = resolve_gates({"DRAWorkloadResourceClaims": True}).errors
    assert errors == (
        "DRAWorkloadResourceClaims is enabled, but depends on features that are disabled: "
        "[GenericWorkload]",
    )


@pytest.mark.parametrize(
    "requested",
    [
        {"AllAlpha": True},
        {"AllAlpha": False},
        {"AllBeta": True},
        {"AllBeta": False},
        {"AllAlpha": True, "AllBeta": True},
    ],
)
def test_sweeping_gates_are_accepted_and_set_their_stage(requested: dict[str, bool]) -> None:
    resolution = resolve_gates(requested)
    assert not resolution.errors
    stages = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
    for gate, value in resolution.gates:
        wanted = {requested[name] for name, stage in stages.items()
                  if name in requested and stage is gate.stage}  # fmt: skip
        if gate.name not in stages:
            assert value is (wanted.pop() if wanted else gate.default), gate.name


def test_an_explicit_gate_wins_over_a_sweeping_one() -> None:
    gates = resolve_gates({"AllAlpha": True, "NativeHistograms": False}).gates
    assert not gates.enabled("NativeHistograms")
    assert gates.enabled("LoggingAlphaOptions")


def test_setting_what_will_go_away_is_worth_a_warning() -> None:
    warnings = resolve_gates({"AllowServiceExternalIPs": False, "KMSv1": True}).warnings
    assert [(w.message.split(".")[0], w.gate, w.value) for w in warnings] == [
        ("Warning: setting GA feature gate", "AllowServiceExternalIPs", False),
        ("Warning: setting deprecated feature gate", "KMSv1", True),
    ]
    assert not resolve_gates({"ComponentFlagz": False}).warnings


def test_asking_for_an_unknown_gate_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        default_gates().enabled("Foo")


def test_help_lists_alpha_and_beta_gates_sorted() -> None:
    lines = describe_gates()
    assert len(lines) == 150
    assert list(lines) == sorted(lines, key=lambda line: line.partition("=")[0])
