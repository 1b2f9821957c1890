"""Every captured case in a kernel with IPVS: its state equals what upstream left there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.ipvs_golden import case_names, load_case
from tests.support.ipvs_states import assert_states

from kpctl.places.uml import UserModeKernel

ROOT = Path(__file__).parents[1] / "golden/ipvs"
GUEST = Path(__file__).with_name("guest_golden.py")

pytestmark = pytest.mark.uml


@pytest.mark.parametrize("name", case_names(ROOT))
def test_the_kernel_holds_what_upstream_left(uml: UserModeKernel, name: str) -> None:
    case = load_case(ROOT / name)
    states: Any = uml.call(GUEST, "run_case", str(case.folder))
    assert_states(case, states)
