"""Limits that follow the machine."""

from __future__ import annotations

from kpctl.lab.pace import bounded, scaled, slowness


def test_limits_are_never_shorter_than_on_an_ordinary_machine() -> None:
    assert bounded(0.3) == 1.0
    assert bounded(7.5) == 7.5


def test_nobody_waits_for_ever_on_a_machine_that_is_broken() -> None:
    assert bounded(1000.0) == 20.0


def test_the_machine_is_measured_once() -> None:
    assert slowness() >= 1.0
    assert scaled(3.0) == 3.0 * slowness()
