"""Which capabilities ipvs mode needs, found by running it with exactly these.

The tools of this kernel are those of iptables-legacy, so raw sockets are needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import confined

from kpctl.places.uml import UserModeKernel
from kubeproxy.run.privileges import NEEDS

pytestmark = [pytest.mark.uml, pytest.mark.timeout(1800)]

GUEST = Path(confined.__file__)


def serve(uml: UserModeKernel, *capabilities: str) -> Any:
    folder = f"/run/confined-{len(capabilities)}"
    call = (GUEST, "serve_with_capabilities", "ipvs", list(capabilities), folder)
    return uml.call(*call)


def test_ipvs_mode_serves_with_what_the_chart_gives(uml: UserModeKernel) -> None:
    outcome = serve(uml, *(need.name for need in NEEDS if "ipvs" in need.modes))
    assert outcome["answered"] == sorted(confined.FRONTENDS), outcome["log"]


def test_without_net_admin_it_ends_with_what_to_do(uml: UserModeKernel) -> None:
    outcome = serve(uml, "NET_RAW")
    assert outcome["code"] == 1
    assert "the capability CAP_NET_ADMIN is missing" in outcome["log"]
