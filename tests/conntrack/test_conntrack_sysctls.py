"""Size and time-outs of the conntrack table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.errors import KernelError
from kubeproxy.kernel.conntrack_sysctls import (
    ConntrackSettings,
    Parameter,
    conntrack_max,
    conntrack_parameters,
    count_cpus,
    ensure_parameter,
)
from kubeproxy.run.startup import conntrack_settings

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


LEAVE = "--conntrack-max-per-core=0"


def ensure(root: Path, *parameters: Parameter) -> list[Parameter]:
    """Return those that were written."""
    written: list[Parameter] = []
    for parameter in parameters:
        ensure_parameter(parameter, partial(written.append, parameter), root=root)
    return written


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    """A larger hash table is left alone, a smaller one is raised."""
    same = file(tmp_path, MAX, "131072\n")
    large = file(tmp_path, HASHSIZE, " 65536\n")
    parameters = [Parameter(MAX, 131072, LEAVE), Parameter(HASHSIZE, 32768, LEAVE, is_minimum=True)]
    assert ensure(tmp_path, *parameters) == []
    large.write_text("100")
    same.write_text("what?")
    assert ensure(tmp_path, *parameters) == parameters
    assert (same.read_text(), large.read_text()) == ("131072", "32768")


def test_a_failure_has_upstreams_text_and_the_remedy(tmp_path: Path) -> None:
    """The file and the reason are named."""
    with pytest.raises(KernelError) as raised:
        ensure(tmp_path, Parameter(MAX, 1, LEAVE))
    assert str(raised.value) == (
        "could not set conntrack parameters from kube-proxy configuration: "
        f"open {tmp_path / MAX}: no such file or directory; set it on the host "
        "(sysctl -w net.netfilter.nf_conntrack_max=1), or leave it as it is with "
        "--conntrack-max-per-core=0"
    )


def test_a_value_that_the_kernel_refuses_names_the_file(tmp_path: Path) -> None:
    """The error of a write does not have it."""
    path = file(tmp_path, MAX, "")
    path.unlink()
    path.symlink_to("/proc/self/oom_score_adj")  # takes numbers up to 1000
    with pytest.raises(KernelError, match=f"write {path}: invalid argument; "):
        ensure(tmp_path, Parameter(MAX, 131072, LEAVE))


def test_every_parameter_has_the_flag_that_leaves_it_alone() -> None:
    """Given to the program, it makes the parameter disappear."""
    settings = ConntrackSettings(tcp_be_liberal=True, udp_seconds=1, udp_stream_seconds=1)
    for parameter in conntrack_parameters(settings, 4):
        parsed = parse_command_line([
            "--conntrack-tcp-be-liberal", "--conntrack-udp-timeout=1s",
            "--conntrack-udp-timeout-stream=1s", parameter.leave_alone,
        ])  # fmt: skip
        assert isinstance(parsed, Settings)
        left = conntrack_parameters(conntrack_settings(parsed.config), 4)
        assert parameter.path not in {p.path for p in left}
        assert left


def test_an_unreadable_hash_size_is_a_failure(tmp_path: Path) -> None:
    """Other values that cannot be read only count as different."""
    with pytest.raises(KernelError, match="hashsize"):
        ensure(tmp_path, Parameter(HASHSIZE, 1, LEAVE, is_minimum=True))


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
