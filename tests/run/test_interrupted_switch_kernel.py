"""A change of mode that is cut off anywhere: the next proxy ends as if nothing had happened.

The process that dies takes over from another mode: it writes its rules, and removes what the other
one had left. After every call to the kernel both sets of rules may stand, one of them in part.
Rules of ipvs mode, and chains that are renamed, are in tests/netfilter; changes of mode under load
are in tests/flows.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.support.cuts import run_cut

from kpctl.look.apply import apply_once
from kpctl.look.offline import OfflineRequest, settings_for
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import Running
from kubeproxy.modes.registry import load_mode
from kubeproxy.modes.traces import find_traces
from kubeproxy.plan.conntrack import Socket
from kubeproxy.run.leftovers import Leftovers
from kubeproxy.sync.clock import SystemClock

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1800)]

STEP = 5
"""Every so many places a cut is made, beginning with another place for each successor."""
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.5]}, {addresses: [10.244.1.6]}]
"""


class Finished(Exception):
    """The first attempt to remove what other modes have left is over."""


async def serve(manifest: Path, name: str) -> None:
    """What a daemon does until nothing of another mode is left: one round, and the removal."""
    request = OfflineRequest(files=(manifest,), mode=name, node="worker-a")
    mode = load_mode(name)
    for report in await apply_once(request, mode, SystemClock()):
        assert report.failure_text == ""
    settings = settings_for(request)
    options = mode.options(settings.config, await mode.resolve(settings.extensions))
    backends = tuple(mode.create(family, options) for family in Family)
    for backend in backends:
        for sink in backend.kernel_sinks:
            await sink.read()
    leftovers = Leftovers(Running(name, backends), forget_flows=forget_no_flows, sleep=finish)
    leftovers.first_sync_done()
    with pytest.raises(Finished):
        await leftovers.run()
    for backend in backends:
        await backend.close()


async def forget_no_flows(_: Family, __: frozenset[Socket]) -> None:
    raise AssertionError("no mode here has any")


async def finish(_: float) -> None:
    raise Finished


def rules() -> list[str]:
    """All rules of ours, without counters, in an order that does not depend on what came first.

    The kubelet's chain is not among them: it stays where an iptables mode has once been.
    """
    tables = [_lines("nft", "list", "table", family, "kube-proxy") for family in ("ip", "ip6")]
    saved = [_lines("iptables-save"), _lines("ip6tables-save")]
    chains = [[line for line in listed if "KUBE-" in line] for listed in saved]
    ours = (line for listed in (*tables, *chains) for line in sorted(listed))
    return [line for line in ours if "KUBE-FIREWALL" not in line]


def _lines(*argv: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True)
    return re.sub(r"\[\d+:\d+\]|counter packets \d+ bytes \d+", "", done.stdout).splitlines()


def undisturbed(manifest: Path, *modes: str) -> list[str]:
    """The rules after each of these modes has taken over from the one before."""
    with scratch_namespace():
        for mode in modes:
            asyncio.run(serve(manifest, mode))
        return rules()


def cut(manifest: Path, modes: Sequence[str], place: int | None) -> int:
    before, after = modes
    asyncio.run(serve(manifest, before))
    return run_cut(partial(serve, manifest, after), cut_at=place)


@pytest.mark.parametrize(
    "modes", [("nftables", "iptables"), ("iptables", "nftables")], ids=" to ".join
)
@pytest.mark.parametrize("goes_back", [False, True], ids=["goes on", "goes back"])
def test_a_switch_that_is_cut_off_is_finished_or_undone(
    tmp_path: Path, modes: tuple[str, str], goes_back: bool
) -> None:
    """Nothing of the mode that is not chosen stays, whichever call was the last one."""
    manifest = tmp_path / "web.yaml"
    manifest.write_text(SERVICE)
    before, after = modes
    chosen = before if goes_back else after
    wanted = undisturbed(manifest, before, after, chosen)
    with scratch_namespace():
        places = cut(manifest, modes, None)
    assert places > 10
    wrong: list[str] = []
    for place in range(goes_back, places, STEP):
        with scratch_namespace():
            assert cut(manifest, modes, place) == -1
            asyncio.run(serve(manifest, chosen))
            found = rules()
            left = find_traces(Running(chosen, ()))
        if left or found != wanted:
            wrong.append(f"{place} of {places}: {set(left)} {sorted(set(found) ^ set(wanted))[:5]}")
    assert wrong == []
