"""Which variant of iptables is programmed: the one the node uses, by upstream's rules."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.support.host import Host
from tests.support.waiting import FOR_THE_LOCK

from kpctl.places.scratch import scratch_namespace
from kubeproxy.config.flags import Extensions
from kubeproxy.facts.ids import Family
from kubeproxy.modes.iptables.cleanup import cleanup
from kubeproxy.modes.netfilter.options import VARIANT_FLAG, tool_options_of
from kubeproxy.modes.netfilter.rules.variant import choose_by_hint, choose_by_rules
from kubeproxy.modes.netfilter.sinks.chains import has_legacy_tables
from kubeproxy.modes.netfilter.sinks.variant import find_variant, resolve_variant

HINT = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"
CANARY = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n"
OURS = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]\nCOMMIT\n"


def rules(count: int) -> str:
    lines = [f"-A INPUT -s 192.0.2.{number} -j ACCEPT\n" for number in range(count)]
    return f"*filter\n{''.join(lines)}COMMIT\n"


def restore(program: str, text: str) -> None:
    argv = [f"{program}-restore", *FOR_THE_LOCK, "--noflush"]
    subprocess.run(argv, input=text, text=True, check=True)


@pytest.fixture
def namespace() -> Iterator[None]:
    with scratch_namespace():
        yield


@pytest.mark.kernel
@pytest.mark.parametrize("hint", [HINT, CANARY], ids=["hint", "canary"])
@pytest.mark.parametrize("program", ["iptables", "ip6tables"])
@pytest.mark.parametrize(("hinted", "other"), [("nft", "legacy"), ("legacy", "nft")])
async def test_the_kubelets_hint_decides_whatever_rules_there_are(
    namespace: None, hinted: str, other: str, program: str, hint: str
) -> None:
    restore(f"{program}-{hinted}", hint)
    restore(f"iptables-{other}", rules(5))
    assert (await find_variant()).variant == hinted


@pytest.mark.kernel
@pytest.mark.parametrize(("more", "fewer"), [("nft", "legacy"), ("legacy", "nft")])
async def test_without_a_hint_the_variant_with_more_rules_is_used(
    namespace: None, more: str, fewer: str
) -> None:
    restore(f"iptables-{more}", rules(3))
    restore(f"iptables-{fewer}", rules(2))
    choice = await find_variant()
    assert (choice.variant, choice.reason) == (
        more,
        f"{3 if more == 'nft' else 2} rules in nft, {3 if more == 'legacy' else 2} in legacy, "
        "no hint of the kubelet",
    )


@pytest.mark.kernel
async def test_a_node_without_rules_gets_its_default_and_no_legacy_tables(namespace: None) -> None:
    """Looking for legacy rules must not create legacy tables."""
    choice = await find_variant()
    assert choice.variant == ""
    assert not any(has_legacy_tables(family) for family in Family)


def test_the_nft_hint_comes_first_and_equal_counts_choose_nothing() -> None:
    """As in upstream's image, whose default is nft too."""
    hinted = choose_by_hint(nft=True, legacy=True)
    assert hinted is not None
    assert hinted.variant == "nft"
    assert choose_by_hint(nft=False, legacy=False) is None
    assert choose_by_rules(nft=7, legacy=7).variant == ""


@pytest.mark.kernel
async def test_a_forced_variant_is_not_looked_for(namespace: None) -> None:
    restore("iptables-nft", HINT)
    forced = await resolve_variant(Extensions({VARIANT_FLAG: "legacy"}))
    assert tool_options_of(forced).variant == "legacy"
    found = await resolve_variant(Extensions())
    assert tool_options_of(found).variant == "nft"


@pytest.mark.kernel
async def test_clean_up_reaches_both_variants(namespace: None) -> None:
    """Rules in the variant that the node's tools do not show are removed as well."""
    for variant in ("nft", "legacy"):
        restore(f"iptables-{variant}", OURS)
    assert await cleanup() == []
    for variant in ("nft", "legacy"):
        saved = subprocess.run([f"iptables-{variant}-save"], capture_output=True, text=True)
        assert "KUBE-" not in saved.stdout, variant


SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
"""


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("flags", "reason"),
    [((), "hint chain"), (("--iptables-variant=legacy",), "--iptables-variant")],
    ids=["found", "forced"],
)
def test_the_daemon_programs_the_nodes_variant_and_logs_the_reason(
    host: Host, flags: tuple[str, ...], reason: str
) -> None:
    with host.network.inside():
        restore("iptables-nft" if flags else "iptables-legacy", HINT)
    (host.manifests / "web.yaml").write_text(SERVICE)
    host.start("--proxy-mode=iptables", *flags)
    host.until(
        lambda: "10.96.0.10/32" in host.run("iptables-legacy-save").stdout,
        "programming iptables-legacy",
    )
    assert "10.96.0.10" not in host.run("iptables-nft-save").stdout
    lines = [line for line in host.log.splitlines() if "Using iptables variant" in line]
    assert len(lines) == 1, host.log
    assert 'variant="legacy"' in lines[0]
    assert reason in lines[0]


@pytest.mark.kernel
def test_kpctl_apply_programs_the_same_variant(host: Host) -> None:
    with host.network.inside():
        restore("iptables-legacy", HINT)
    (host.manifests / "web.yaml").write_text(SERVICE)
    done = host.run("kpctl", "apply", "--mode=iptables", host.manifests / "web.yaml")
    assert done.returncode == 0, done.stderr
    assert "10.96.0.10/32" in host.run("iptables-legacy-save").stdout
