"""Which capabilities each mode needs, found by running it with exactly these (ipvs: in ipvs/)."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.support.confined import FRONTENDS, Outcome, serve, with_capabilities
from tests.support.host import PROGRAMS, Host
from tests.support.waiting import FOR_THE_LOCK

from kubeproxy.errors import Unsupported
from kubeproxy.kernel.capabilities import Capabilities, capability_mask, read_capabilities
from kubeproxy.modes.registry import mode_names
from kubeproxy.run.privileges import (
    NEEDS,
    missing_privileges,
    require_privileges,
)

pytestmark = pytest.mark.kernel

ALL = sorted(FRONTENDS)
FLAVOURS = ("nft", "legacy")
TOOLS = ("iptables", "ip6tables")


@pytest.fixture
def flavour(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment in which `iptables` is the flavour of the parameter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        for part in ("", "-save", "-restore"):
            program = shutil.which(f"{tool}-{request.param}{part}")
            if program is None:
                pytest.skip(f"{tool}-{request.param}{part} is not installed")
            (folder / f"{tool}{part}").symlink_to(program)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def run(
    host: Host, mode: str, capabilities: list[str], folder: Path, env: dict[str, str] | None = None
) -> Outcome:
    with host.network.inside():
        return serve(mode, with_capabilities(capabilities), folder / "confined", environment=env)


def test_nftables_mode_serves_with_net_admin_alone(host: Host, tmp_path: Path) -> None:
    outcome = run(host, "nftables", ["NET_ADMIN"], tmp_path)
    assert outcome["answered"] == ALL, outcome["log"]


def is_logged(host: Host, text: str) -> bool:
    return text in host.log


LEFT = "*nat\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n"
"""A sign of iptables mode."""


def test_what_iptables_legacy_left_needs_raw_sockets_to_be_removed(
    host: Host, tmp_path: Path
) -> None:
    """Without them it is reported, with the remedy; what iptables-nft left goes in any case."""
    (tmp_path / "left").write_text(LEFT)
    for flavour in FLAVOURS:
        tool = f"iptables-{flavour}-restore"
        assert host.run(tool, *FOR_THE_LOCK, "--noflush", tmp_path / "left").returncode == 0
    for names in (["NET_ADMIN"], ["NET_ADMIN", "NET_RAW"]):
        command = with_capabilities(names)([str(PROGRAMS / "kube-proxy")])
        process = host.start("--proxy-mode=nftables", program=command)
        awaited = "Removed what another mode had left" if "NET_RAW" in names else "CAP_NET_RAW"
        host.until(partial(is_logged, host, awaited), awaited)
        assert host.stop(process) == 0
        assert "KUBE-NODEPORTS" not in host.run("iptables-nft-save").stdout
    assert "KUBE-NODEPORTS" not in host.run("iptables-legacy-save").stdout


@pytest.mark.parametrize("flavour", FLAVOURS, indirect=True)
@pytest.mark.parametrize("mode", ["iptables", "userspace"])
def test_modes_with_iptables_serve_with_what_the_chart_gives(
    host: Host, tmp_path: Path, mode: str, flavour: dict[str, str]
) -> None:
    names = [need.name for need in NEEDS if mode in need.modes]
    outcome = run(host, mode, names, tmp_path, flavour)
    assert outcome["answered"] == ALL, outcome["log"]


@pytest.mark.parametrize("flavour", ["nft"], indirect=True)
@pytest.mark.parametrize("mode", ["iptables", "userspace"])
def test_iptables_nft_needs_no_raw_sockets(
    host: Host, tmp_path: Path, mode: str, flavour: dict[str, str]
) -> None:
    outcome = run(host, mode, ["NET_ADMIN"], tmp_path, flavour)
    assert outcome["answered"] == ALL, outcome["log"]


@pytest.mark.parametrize("flavour", ["legacy"], indirect=True)
def test_iptables_legacy_without_raw_sockets_ends_with_the_reason(
    host: Host, tmp_path: Path, flavour: dict[str, str]
) -> None:
    outcome = run(host, "iptables", ["NET_ADMIN"], tmp_path, flavour)
    assert outcome["code"] == 1
    assert 'missing="NET_RAW" without="iptables-legacy cannot be used' in str(outcome["log"])


@pytest.mark.parametrize("mode", [mode for mode in mode_names() if mode != "ipvs"])
def test_without_net_admin_it_ends_with_what_to_do(host: Host, tmp_path: Path, mode: str) -> None:
    outcome = run(host, mode, ["NET_RAW", "NET_BIND_SERVICE", "SYS_ADMIN"], tmp_path)
    assert outcome["code"] == 1
    log = str(outcome["log"])
    assert "the capability CAP_NET_ADMIN is missing, without it nothing can be programmed" in log
    assert "securityContext.capabilities" in log


@pytest.mark.parametrize("mode", mode_names())
def test_what_is_missing_is_named(mode: str) -> None:
    assert missing_privileges(mode, None) == ()
    assert "NET_ADMIN" in [need.name for need in missing_privileges(mode, holding())]
    with pytest.raises(Unsupported, match="NET_ADMIN"):
        require_privileges(mode, holding("NET_RAW"))
    require_privileges(mode, holding("NET_ADMIN"))


def holding(*names: str) -> Capabilities:
    mask = capability_mask(names)
    return Capabilities(effective=mask, permitted=mask, inheritable=0)


def test_capabilities_are_read_from_the_kernel(tmp_path: Path) -> None:
    rows = "CapInh:\t0\nCapPrm:\t3000\nCapEff:\t0000000000003000\nCapBnd:\tff\nCapAmb:\t0\n"
    (tmp_path / "status").write_text(f"Name:\tx\n{rows}")
    found = read_capabilities(tmp_path / "status")
    assert found is not None and found.effective == capability_mask(["NET_ADMIN", "NET_RAW"])
    assert read_capabilities(tmp_path / "nothing") is None
    assert not missing_privileges("nftables", read_capabilities())


def test_the_document_has_the_same_table() -> None:
    text = (Path(__file__).parents[2] / "docs/privileges.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for mode in mode_names():
        (row,) = (row for row in rows if row.startswith(f"| `{mode}`"))
        assert [n.name for n in NEEDS if n.name in row] == [
            n.name for n in NEEDS if mode in n.modes
        ]
