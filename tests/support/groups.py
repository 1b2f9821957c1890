"""Which tests of a parallel run share a process, and which groups begin first.

A group is a file, so that what its tests share is made once. Larger where a fixture of the session
is dear, smaller where one file would be the longest of all.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_TOGETHER = {
    "tests/api/test_daemon.py": "API server",
    "tests/api/test_real_api.py": "API server",
    "tests/api/test_small_agrees.py": "API server",
    "tests/api/deploy/test_base.py": "API server",
    "tests/api/deploy/test_chart.py": "API server",
    "tests/api/deploy/test_kubeadm.py": "API server",
    "tests/api/deploy/test_role.py": "API server",
    "tests/ipvs/test_uml_balance.py": "user-mode kernel",
    "tests/ipvs/test_uml_commands.py": "user-mode kernel",
    "tests/ipvs/test_uml_cost.py": "user-mode kernel",
    "tests/ipvs/test_uml_kernel.py": "user-mode kernel",
    "tests/ipvs/test_uml_privileges.py": "user-mode kernel",
    "tests/ipvs/test_uml_support.py": "user-mode kernel",
}
_IN_PARTS = ("tests/flows/test_flows_kernel.py", "tests/ipvs/test_uml_flows.py")
"""Files of several labs: one for each mode, and its own for flows that restart the proxies with
other flags; one for each part of the flows in user-mode Linux. A test's ID begins with its part."""
_FIRST = (
    "tests/cluster/test_smoke.py",
    "tests/flows/test_flows_reload.py",
    "tests/ipvs/test_uml_switches.py",
    "tests/bench/test_bench_run.py",
    "tests/nftables/test_nft_properties.py",
    "tests/ipvs/test_uml_flows.py",
    "tests/flows/test_flows_kernel.py",
    "tests/soak/test_soak_short.py",
    "tests/ipvs/test_uml_golden.py",
    "tests/userspace/test_flows_userspace.py",
    "tests/ipvs/test_uml_cuts.py",
    "API server",
    "user-mode kernel",
    "tests/drift/test_drift_kernel.py",
    "tests/top/test_top_kernel.py",
    "tests/trace/test_trace_kernel.py",
    "tests/inspection/test_journal_cost.py",
    "tests/bench/",
    "tests/run/test_interrupted_switch_kernel.py",
    "tests/run/test_starved_kernel.py",
    "tests/attacks/test_hostile_names_kernel.py",
    "tests/flows/test_mode_switches_kernel.py",
    "tests/kernels/",
    "tests/dashboard/",
    "tests/nftables/",
    "tests/iptables/",
    "tests/run/",
    "tests/netfilter/",
    "tests/docs/",
)
"""What takes longest, longest first: begun last, it would keep the others waiting."""


def group_of(test: str) -> str:
    """The group of a test, by its node ID."""
    path = test.partition("::")[0]
    if path in _IN_PARTS:
        return test.partition("-")[0]
    return _TOGETHER.get(path, path)


def rank_of(test: str) -> int:
    """The smaller, the earlier this test's group is to begin."""
    group = group_of(test)
    ranks = (rank for rank, name in enumerate(_FIRST) if group.startswith(name))
    return next(ranks, len(_FIRST))


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out groups, each to one process, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
