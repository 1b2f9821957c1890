"""A proxy in ipvs mode that is killed at its calls to a real kernel, or whose calls fail.

At every call it is done against fakes (test_ipvs_engine); here at some, because tools take long.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kpctl.places.uml import UserModeKernel

pytestmark = pytest.mark.uml

GUEST = Path(__file__).with_name("guest_cuts.py")


@pytest.mark.timeout(3600)
def test_a_process_killed_at_its_calls_is_succeeded(uml: UserModeKernel) -> None:
    assert uml.call(GUEST, "cut", 5) == []


@pytest.mark.timeout(3600)
def test_no_buffer_space_at_its_calls(uml: UserModeKernel) -> None:
    assert uml.call(GUEST, "fail", 3) == []
