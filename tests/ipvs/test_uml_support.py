"""The checks before the start, in a kernel that has IPVS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kpctl.places.uml import UserModeKernel

GUEST = Path(__file__).with_name("guest_support.py")

pytestmark = pytest.mark.uml


def test_its_timer_is_looked_at_when_it_is_nudged(
    uml: UserModeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that sleeps has nearly no timer interrupts of its own."""
    monkeypatch.setattr("kpctl.places.guest._NUDGE_SECONDS", 3600.0)
    of_its_own: Any = uml.call(GUEST, "timer_interrupts", 2.0)
    monkeypatch.setattr("kpctl.places.guest._NUDGE_SECONDS", 0.005)
    nudged: Any = uml.call(GUEST, "timer_interrupts", 2.0)
    assert nudged > 2 * of_its_own


@pytest.mark.parametrize("scheduler", ["", "wlc", "lblcr", "sed", "dh", "fo", "ovf", "lblc"])
def test_every_scheduler_of_the_kernel_is_usable(uml: UserModeKernel, scheduler: str) -> None:
    """The probe leaves nothing behind."""
    assert uml.call(GUEST, "check_scheduler", scheduler) == ["", 0]


def test_an_unknown_scheduler_is_named_with_a_remedy(uml: UserModeKernel) -> None:
    answer: Any = uml.call(GUEST, "check_scheduler", "nonsense")
    assert answer == [
        "can't use the IPVS proxier: no such file or directory: the kernel has no IPVS scheduler "
        '"nonsense"; check ipvs.scheduler, or install the module ip_vs_nonsense',
        0,
    ]


def test_clean_up_touches_nothing_of_others(uml: UserModeKernel) -> None:
    assert uml.call(GUEST, "clean_foreign") == [[], 1, True]


def test_switching_from_iptables_mode_leaves_nothing_of_it(uml: UserModeKernel) -> None:
    """And a restart in ipvs mode leaves everything as it was."""
    assert uml.call(GUEST, "switch_from_iptables") == [True, [], True, True]
