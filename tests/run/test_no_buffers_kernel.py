"""No buffer space at any one call to netlink: a round fails, or a search, and is repeated.

ipvs is in tests/ipvs, because it needs another kernel.
"""

from __future__ import annotations

import pytest
from tests.run.test_kill_kernel import MODES
from tests.support.scarce import fail_everywhere

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("mode", MODES)
def test_no_buffer_space_at_any_call(mode: str) -> None:
    create, rules = MODES[mode]
    assert fail_everywhere(create, rules) == []
