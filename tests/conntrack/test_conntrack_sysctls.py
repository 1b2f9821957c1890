"""Size and time-outs of the conntrack table."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.errors import KernelError
from kubeproxy.kernel.conntrack_sysctls import (
    ConntrackSettings,
    Parameter,
    conntrack_max,
    conntrack_parameters,
    count_cpus,
    set_conntrack_parameters,
)

MAX = "proc/sys/net/netfilter/nf_conntrack_max"
HASHSIZE = "sys/module/nf_conntrack/parameters/hashsize"


@pytest.mark.parametrize(
    ("per_core", "minimum", "cpus", "expected"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 64, 1048576),
        (32768, 2000000, 64, 1048576),
        (32768, 2000000, 4, 2000000),
        (0, 131072, 8, 0),
        (1, 0, 0, 0),
    ],
)
def test_the_table_grows_with_the_cores(
    per_core: int, minimum: int, cpus: int, expected: int
) -> None:
    """Between the minimum and the cap; 0 leaves it alone."""
    settings = ConntrackSettings(max_per_core=per_core, min=minimum)
    assert conntrack_max(settings, cpus) == expected


def test_everything_is_written_in_upstreams_order() -> None:
    """Whole seconds, cut off; half a second becomes 0."""
    settings = ConntrackSettings(tcp_be_liberal=True, udp_seconds=0.5, udp_stream_seconds=90.9)
    written = [(p.path.rpartition("/")[2], p.value) for p in conntrack_parameters(settings, 4)]
    assert written == [
        ("nf_conntrack_max", 131072),
        ("hashsize", 32768),
        ("nf_conntrack_tcp_timeout_established", 86400),
        ("nf_conntrack_tcp_timeout_close_wait", 3600),
        ("nf_conntrack_tcp_be_liberal", 1),
        ("nf_conntrack_udp_timeout", 0),
        ("nf_conntrack_udp_timeout_stream", 90),
    ]


def test_zero_and_false_leave_parameters_alone() -> None:
    """In particular be_liberal is never written as 0."""
    settings = ConntrackSettings(
        max_per_core=0, tcp_established_seconds=0, tcp_close_wait_seconds=0
    )
    assert conntrack_parameters(settings, 4) == ()


def file(root: Path, path: str, text: str) -> Path:
    found = root / path
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text(text)
    return found


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    """A larger hash table is left alone, a smaller one is raised."""
    same = file(tmp_path, MAX, "131072\n")
    large = file(tmp_path, HASHSIZE, " 65536\n")
    parameters = [Parameter(MAX, 131072), Parameter(HASHSIZE, 32768, is_minimum=True)]
    assert set_conntrack_parameters(parameters, root=tmp_path) == []
    large.write_text("100")
    same.write_text("what?")
    assert set_conntrack_parameters(parameters, root=tmp_path) == parameters
    assert (same.read_text(), large.read_text()) == ("131072", "32768")


def test_a_failure_has_upstreams_text(tmp_path: Path) -> None:
    """The file and the reason are named."""
    with pytest.raises(KernelError) as raised:
        set_conntrack_parameters([Parameter(MAX, 1)], root=tmp_path)
    assert str(raised.value) == (
        "could not set conntrack parameters from kube-proxy configuration: "
        f"open {tmp_path / MAX}: no such file or directory"
    )


def test_an_unreadable_hash_size_is_a_failure(tmp_path: Path) -> None:
    """Other values that cannot be read only count as different."""
    with pytest.raises(KernelError, match="hashsize"):
        set_conntrack_parameters([Parameter(HASHSIZE, 1, is_minimum=True)], root=tmp_path)


def test_cpus_are_counted_from_sysfs(tmp_path: Path) -> None:
    """By node where there are nodes, else over all; entries like cpufreq do not count."""
    for name in ("cpu0", "cpu1", "cpu10", "cpufreq", "cpuidle"):
        (tmp_path / "sys/devices/system/cpu" / name).mkdir(parents=True)
    assert count_cpus(root=tmp_path) == 3
    for name in ("node0/cpu0", "node1/cpu1", "node1/cpulist"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    assert count_cpus(root=tmp_path) == 2


def test_without_sysfs_the_scheduler_is_asked(tmp_path: Path) -> None:
    """There is always at least one CPU."""
    assert count_cpus(root=tmp_path) >= 1
